"""What is kept of a cluster in Kubernetes itself: notes, status, causes, as plain data and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from oars.model import Cause, MemberId, Notes, Retiring
from oars.places.kube.names import Object
from oars.spec.status import Phase, Status

READY = "Ready"


def dump_notes(notes: Notes) -> Object:
    """Without failures: Kubernetes counts them itself."""
    retiring = {member: asdict(state) for member, state in notes.retiring.items()}
    return {"retiring": retiring, "head": notes.head, "headChanges": notes.head_changes}


def load_notes(data: Mapping[str, Any] | None) -> Notes:
    data = data or {}
    retiring = {MemberId(member): Retiring(**state) for member, state in (data.get("retiring") or {}).items()}
    return Notes(retiring=retiring, head=data.get("head", ""), head_changes=data.get("headChanges", 0))


def cr_status(status: Status, causes: Sequence[Cause], before: Mapping[str, Any], now: str) -> Object:
    """The status of a ComputeCluster. Members are left out: there may be thousands, and the pods are there to see."""
    todo = causes[0].todo if causes else ""
    message = f"{status.message} {todo}".strip() if status.phase is not Phase.READY else status.message
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
    condition = _condition(status, sentence, before, now)
    return {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": sentence,
        "observedGeneration": generation,
        "conditions": [condition],
    }
