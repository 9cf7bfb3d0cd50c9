"""Converts loop state, status and causes to the data stored in Kubernetes, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from oars.base import codec
from oars.model import HEAD, Cause, LoopState, Member, MemberId, MemberView, Retiring, View
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.report import Report
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status

READY = "Ready"
MAX_CAUSES = 5
MAX_LINES, MAX_LINE_LENGTH = 8, 300
MAX_UNREADY = 20


def dump_state(state: LoopState) -> Object:
    """The part of the loop state that the status shows: the present head and the retiring members. The loop can restore
    it from an empty status: it adopts the running head, reads the epoch from the worker Deployments, and retires
    drained workers first, for they are not ready. The kubelet counts deaths."""
    return {
        "head": {"incarnation": state.head, "epoch": state.head_epoch},
        "retiring": {member: codec.dump(retiring) for member, retiring in state.retiring.items()},
    }


def load_state(status: Mapping[str, Any] | None) -> LoopState:
    head = (status or {}).get("head") or {}
    retiring = {MemberId(m): codec.load(Retiring, r) for m, r in ((status or {}).get("retiring") or {}).items()}
    return LoopState(retiring=retiring, head=head.get("incarnation", ""), head_epoch=head.get("epoch", 0))


def dump_causes(causes: Sequence[Cause], before: Mapping[str, Any]) -> list[Object]:
    """The first causes. If only their log lines differ from `before`, the old causes are kept, for logs change all the
    time and each change would cost a write. Draining is left out: `retiring` shows it."""
    fresh = [_dump_cause(cause) for cause in causes if cause.reason != "Draining"][:MAX_CAUSES]
    old: list[Object] = before.get("causes") or []
    had_lines = {_cause_key(cause) for cause in old if cause.get("lines")}
    has_new_lines = any(cause["lines"] and _cause_key(cause) not in had_lines for cause in fresh)
    same = [*map(_cause_key, old)] == [*map(_cause_key, fresh)]
    return old if same and not has_new_lines else fresh


def _dump_cause(cause: Cause) -> Object:
    lines = [line[:MAX_LINE_LENGTH] for line in cause.lines[-MAX_LINES:]]
    return {"reason": cause.reason, "message": cause.message, "hint": cause.hint, "lines": lines}


def _cause_key(cause: Mapping[str, Any]) -> tuple[str, str]:
    return str(cause["reason"]), str(cause["message"])


def load_causes(data: Sequence[Mapping[str, Any]] | None) -> tuple[Cause, ...]:
    return tuple(Cause(*_cause_key(each), each.get("hint", ""), tuple(each.get("lines") or ())) for each in data or ())


def cr_status(status: Status, causes: Sequence[Cause], before: Mapping[str, Any], now: str) -> Object:
    """The status of a ComputeCluster, with causes if there are any. It omits the members: there may be thousands, and
    the pods show them."""
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
        "headReady": any(member.id == HEAD and member.phase is Phase.READY for member in status.members),
        "groups": [_group(group, status.members) for group in status.groups],
        "conditions": [_condition(status, message, before, now)],
        "mode": status.mode,
        **({"causes": listed} if listed else {}),
    }


def _group(group: GroupStatus, members: Sequence[MemberStatus]) -> Object:
    """`unready` names pods that run although the engine does not list them, so that clients can tell who is ready."""
    starting = [m.id for m in members if m.group == group.name and m.phase not in (Phase.READY, Phase.STOPPING)]
    return asdict(group) | ({"unready": starting[:MAX_UNREADY]} if starting and group.ready else {})


def load_view(status: Mapping[str, Any], members: Sequence[Member]) -> View:
    """The engine's view, as far as the status shows it: the number of ready workers per group, and the names of those
    that are not ready. A pod whose probe succeeds is not ready until the engine lists it."""
    if not status.get("headReady"):
        return View()
    ready: dict[MemberId, MemberView] = {}
    leaving = status.get("retiring") or {}
    for group in status.get("groups") or ():
        unready = {*(group.get("unready") or ()), *leaving}
        mine = [m for m in members if m.group == group["name"] and m.probe_ready and m.id not in unready]
        oldest = sorted(mine, key=lambda member: member.created_at)[: group.get("ready", 0)]
        ready |= {member.id: MemberView(True) for member in oldest}
    return View(up=True, members=ready)


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


def failed_status(cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str) -> Object:
    """The status of a cluster that could not be reconciled. Without a phase the last one is kept, for running members
    keep running; but a status about an older spec is not Ready."""
    if phase is None:
        phase = Phase(before.get("phase") or Phase.PENDING)
        if phase is Phase.READY and before.get("observedGeneration") != generation:
            phase = Phase.DEGRADED
    message = f"{cause.message} {cause.hint}".strip()
    status = Status("", "", "kubernetes", phase, cause.reason, message, generation=generation)
    causes = None if phase is Phase.FAILED else dump_causes((cause,), before)
    return {**_brief(status, before, now), "causes": causes}


def _brief(status: Status, before: Mapping[str, Any], now: str) -> Object:
    return {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "observedGeneration": status.generation,
        "conditions": [_condition(status, status.message, before, now)],
    }


class StatusCodec(Protocol):
    """Reads and writes the status of one kind of custom resource: the report and the loop state."""

    def load_state(self, status: Mapping[str, Any]) -> LoopState: ...

    def dump_state(self, state: LoopState) -> Object: ...

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object: ...

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object: ...


class _ComputeClusterStatus:
    def load_state(self, status: Mapping[str, Any]) -> LoopState:
        return load_state(status)

    def dump_state(self, state: LoopState) -> Object:
        return dump_state(state)

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object:
        status = report.status
        first = status.groups[0].name if status.groups else "default"
        selector = names.selector(names.pod_labels(status.name, first))
        grave = causes_that_matter(report.causes)
        if status.phase in (Phase.PENDING, Phase.STARTING) and not grave:
            status = replace(status, reason="", message="")  # ordinary progress is not worth a write each time
        return {**cr_status(status, grave, before, now), "selector": selector}

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        return failed_status(cause, phase, generation, before, now)


COMPUTE_CLUSTER_STATUS: StatusCodec = _ComputeClusterStatus()


def causes_that_matter(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Without those that only report progress."""
    return tuple(cause for cause in causes if cause.hint or cause.lines)
