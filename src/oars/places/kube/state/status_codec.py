"""What is kept of a cluster in Kubernetes itself: notes, status, causes, as plain data and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from oars.model import Cause, LoopState, MemberId, Retiring
from oars.places.kube.names import Object
from oars.spec.status import Phase, Status

READY = "Ready"
MOST_CAUSES = 5
MOST_LINES, LONGEST_LINE = 8, 300


def dump_notes(notes: LoopState) -> Object:
    """Without failures: Kubernetes counts them itself."""
    retiring = {member: asdict(state) for member, state in notes.retiring.items()}
    return {"retiring": retiring, "head": notes.head, "headChanges": notes.head_changes}


def load_notes(data: Mapping[str, Any] | None) -> LoopState:
    data = data or {}
    retiring = {MemberId(member): Retiring(**state) for member, state in (data.get("retiring") or {}).items()}
    return LoopState(retiring=retiring, head=data.get("head", ""), head_changes=data.get("headChanges", 0))


def dump_causes(causes: Sequence[Cause], before: Mapping[str, Any]) -> list[Object]:
    """The first of them. What was told before stays in the words of then: a log reads differently at each look, and
    that is no news. Draining is told by the notes."""
    fresh = [_dump_cause(cause) for cause in causes if cause.reason != "Draining"][:MOST_CAUSES]
    old: list[Object] = before.get("causes") or []
    had_lines = {_told(cause) for cause in old if cause.get("lines")}
    has_new_lines = any(cause["lines"] and _told(cause) not in had_lines for cause in fresh)
    return old if [*map(_told, old)] == [*map(_told, fresh)] and not has_new_lines else fresh


def _dump_cause(cause: Cause) -> Object:
    lines = [line[:LONGEST_LINE] for line in cause.lines[-MOST_LINES:]]
    return {"reason": cause.reason, "message": cause.message, "hint": cause.hint, "lines": lines}


def _told(cause: Mapping[str, Any]) -> tuple[str, str]:
    return str(cause["reason"]), str(cause["message"])


def load_causes(data: Sequence[Mapping[str, Any]] | None) -> tuple[Cause, ...]:
    return tuple(Cause(*_told(each), each.get("hint", ""), tuple(each.get("lines") or ())) for each in data or ())


def cr_status(status: Status, causes: Sequence[Cause], before: Mapping[str, Any], now: str) -> Object:
    """The status of a ComputeCluster, with causes if there are any. Members are left out: there may be thousands, and
    the pods are there to see."""
    hint = causes[0].hint if causes else ""
    message = f"{status.message} {hint}".strip() if status.phase is not Phase.READY else status.message
    listed = dump_causes(causes, before)
    return {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": message,
        "ready": f"{status.ready}/{status.wanted}",
        "replicas": status.groups[0].ready if status.groups else 0,
        "observedGeneration": status.generation,
        "endpoints": asdict(status.endpoints),
        "groups": [asdict(group) for group in status.groups],
        "conditions": [_condition(status, message, before, now)],
        "mode": status.mode,
        **({"causes": listed} if listed else {}),
    }


def _condition(status: Status, message: str, before: Mapping[str, Any], now: str) -> Object:
    value = "True" if status.phase is Phase.READY else "False"
    old: Mapping[str, Any] = next((c for c in before.get("conditions") or () if c["type"] == READY), {})
    changed = now if old.get("status") != value else old.get("lastTransitionTime", now)
    return {
        "type": READY,
        "status": value,
        "reason": status.reason or status.phase.value,
        "message": message,
        "observedGeneration": status.generation,
        "lastTransitionTime": changed,
    }


def invalid_status(sentence: str, generation: int, before: Mapping[str, Any], now: str) -> Object:
    """For a description that the schema lets through and we do not."""
    status = Status("", "", "kubernetes", Phase.FAILED, "InvalidSpec", sentence, generation=generation)
    return {**_brief(status, before, now), "causes": None}


def refused_status(cause: Cause, generation: int, before: Mapping[str, Any], now: str) -> Object:
    """For a cluster that the API server does not let us look after. What runs goes on; what nobody could act on is not
    ready."""
    phase = Phase(before.get("phase") or Phase.PENDING)
    if phase is Phase.READY and before.get("observedGeneration") != generation:
        phase = Phase.DEGRADED
    sentence = f"{cause.message} {cause.hint}".strip()
    status = Status("", "", "kubernetes", phase, cause.reason, sentence, generation=generation)
    return {**_brief(status, before, now), "causes": dump_causes((cause,), before)}


def _brief(status: Status, before: Mapping[str, Any], now: str) -> Object:
    return {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "observedGeneration": status.generation,
        "conditions": [_condition(status, status.message, before, now)],
    }
