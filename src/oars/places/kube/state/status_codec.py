"""Converts loop state, report and causes to the status of a ComputeCluster, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from oars.base import codec
from oars.model import HEAD, Cause, GroupScaling, LoopState, Member, MemberId, MemberView, Retiring, View
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.state.observe import seconds, timestamp
from oars.places.kube.state.transitions import transitions
from oars.places.report import Report
from oars.plan.status import failed
from oars.plan.why import HEAD_OUTDATED
from oars.spec.status import Expires, GroupStatus, MemberStatus, Phase, Status

READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"  # types of conditions
EARLY = (Phase.PENDING, Phase.STARTING)
MAX_CAUSES = 5
MAX_LINES, MAX_LINE_LENGTH = 8, 300
MAX_UNREADY = 500  # names of one group; a name has about 40 bytes


class StatusCodec(Protocol):
    """Reads and writes the status of one kind of custom resource: the report and the loop state. The dumped fields are
    merged into the status; None removes a field. `before` is the status as last written."""

    def load_state(self, status: Mapping[str, Any]) -> LoopState: ...

    def dump_state(self, state: LoopState) -> Object: ...

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object: ...

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        """Of a cluster that could not be reconciled. Without a phase, see plan.status.failed."""

    def is_progress(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """True if the change only shows progress: nobody acts on it, so its write may be delayed."""

    def transitions(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Sequence[Cause]:
        """What has happened between the two, for Normal events."""


def dump_state(state: LoopState) -> Object:
    """The part of the loop state that the status shows: the present head, the retiring members, and the numbers that
    autoscaling chose. The loop can restore it from an empty status: it adopts the running head, reads the epoch from
    the worker Deployments, retires drained workers first, for they are not ready, and scales from the members that
    exist. The kubelet counts deaths."""
    return {
        "head": {
            "incarnation": state.head,
            "epoch": state.head_epoch,
            **({} if state.head_lost_at is None else {"replaced": state.head_lost_at}),
        },
        "retiring": {member: codec.dump(retiring) for member, retiring in state.retiring.items()},
        "scaling": {group: codec.dump(scaling) for group, scaling in state.scaling.items()} or None,
    }


def load_state(status: Mapping[str, Any] | None) -> LoopState:
    head = (status or {}).get("head") or {}
    retiring = {MemberId(m): codec.load(Retiring, r) for m, r in ((status or {}).get("retiring") or {}).items()}
    scaling = {group: codec.load(GroupScaling, s) for group, s in ((status or {}).get("scaling") or {}).items()}
    return LoopState(
        retiring=retiring,
        head=head.get("incarnation", ""),
        head_epoch=head.get("epoch", 0),
        head_lost_at=head.get("replaced"),
        scaling=scaling,
    )


class _ComputeClusterStatus:
    """It omits the members: there may be thousands, and the pods show them."""

    load_state = staticmethod(load_state)
    dump_state = staticmethod(dump_state)
    transitions = staticmethod(transitions)

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object:
        status, causes = report.status, causes_that_matter(report.causes)
        if status.phase in EARLY and not causes:
            status = replace(status, reason="", message="")  # ordinary progress is not worth a write each time
        elif status.phase is not Phase.READY and causes:
            status = replace(status, message=f"{status.message} {causes[0].hint}".strip())
        first = status.groups[0] if status.groups else GroupStatus("default", 0, 0)
        return {
            **_summary(status, before, now, next((c for c in report.causes if c.reason == HEAD_OUTDATED), None)),
            "ready": f"{status.ready}/{status.wanted}",
            "replicas": first.ready,
            "selector": names.selector(names.pod_labels(status.name, first.name)),
            "endpoints": asdict(status.endpoints),
            "headReady": any(member.id == HEAD and member.phase is Phase.READY for member in status.members),
            "groups": [_group(group, status.members) for group in status.groups],
            "mode": status.mode,
            "expires": _dump_expires(status.expires),
            "causes": _dump_causes(causes, before) or None,
        }

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        known = Status("", "", "kubernetes", phase or Phase(before.get("phase") or Phase.PENDING))
        status = failed(replace(known, generation=before.get("observedGeneration") or 0), cause, generation)
        status = replace(status, message=f"{cause.message} {cause.hint}".strip())
        causes = None if status.phase is Phase.FAILED else _dump_causes((cause,), before)
        return {**_summary(status, before, now), "causes": causes or None}

    def is_progress(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        if "observedGeneration" not in before:  # a cluster that becomes ready quickly gets a single write
            return after["phase"] in EARLY and not after["reason"]
        is_starting = {after["phase"], before.get("phase")} <= set(EARLY)
        steady = (
            "reason",
            "observedGeneration",
            "expires",
            *(() if is_starting else ("phase", "head", "retiring", "endpoints")),
        )
        return all(after.get(key) == before.get(key) for key in steady)


COMPUTE_CLUSTER_STATUS: StatusCodec = _ComputeClusterStatus()


def _conditions(status: Status, before: Mapping[str, Any], now: str, held: Cause | None) -> list[Object]:
    """Ready, and what else is true, as kstatus reads it, and with it Flux and Argo CD: Stalled if nothing will happen
    until somebody changes the spec, Reconciling while Oars works on it. `held`: why the head runs with an older
    spec."""
    reason, message = status.reason or status.phase.value, status.message
    found = {READY: (str(status.phase is Phase.READY), reason, message)}
    if status.phase is Phase.FAILED:
        found[STALLED] = ("True", reason, message)
    elif status.phase not in (Phase.READY, Phase.STOPPED):
        found[RECONCILING] = ("True", reason, message)
    if held is not None:
        found[HEAD_OUTDATED] = ("True", "OnDelete", held.message)
    old: Mapping[str, Mapping[str, Any]] = {each["type"]: each for each in before.get("conditions") or ()}
    return [
        {
            "type": kind,
            "status": is_true,
            "reason": why,
            "message": text or f"{status.ready}/{status.wanted} workers are ready.",
            "observedGeneration": status.generation,
            "lastTransitionTime": old[kind]["lastTransitionTime"] if _status_of(old, kind) == is_true else now,
        }
        for kind, (is_true, why, text) in found.items()
    ]


def _status_of(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> object:
    return conditions.get(kind, {}).get("status")


def _summary(status: Status, before: Mapping[str, Any], now: str, held: Cause | None = None) -> Object:
    return {
        "phase": status.phase.value,
        "reason": status.reason,
        "message": status.message,
        "observedGeneration": status.generation,
        "conditions": _conditions(status, before, now, held),
    }


def _group(group: GroupStatus, members: Sequence[MemberStatus]) -> Object:
    """`unready` names members that the engine does not list, so that clients can tell who is ready; see load_view for
    what they make of a list that is too long."""
    starting = [m.id for m in members if m.group == group.name and m.phase not in (Phase.READY, Phase.STOPPING)]
    return group.to_dict() | ({"unready": starting[:MAX_UNREADY]} if starting and group.ready else {})


def causes_that_matter(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Without those that only report progress."""
    return tuple(cause for cause in causes if cause.hint or cause.lines)


def _dump_causes(causes: Sequence[Cause], before: Mapping[str, Any]) -> list[Object]:
    """The first causes. If only their log lines differ from `before`, the old causes are kept, for logs change all the
    time and each change would cost a write. Draining is left out: `retiring` shows it."""
    fresh: list[Object] = [
        {
            "reason": cause.reason,
            "message": cause.message,
            "hint": cause.hint,
            "lines": [line[:MAX_LINE_LENGTH] for line in cause.lines[-MAX_LINES:]],
        }
        for cause in causes
        if cause.reason != "Draining"
    ][:MAX_CAUSES]
    old: list[Object] = before.get("causes") or []
    had_lines = {_cause_key(cause) for cause in old if cause.get("lines")}
    has_new_lines = any(cause["lines"] and _cause_key(cause) not in had_lines for cause in fresh)
    same = [*map(_cause_key, old)] == [*map(_cause_key, fresh)]
    return old if same and not has_new_lines else fresh


def _cause_key(cause: Mapping[str, Any]) -> tuple[str, str]:
    return str(cause["reason"]), str(cause["message"])


def _dump_expires(expires: Expires | None) -> Object | None:
    return {**asdict(expires), "at": timestamp(expires.at)} if expires is not None else None


def load_expires(data: Mapping[str, Any] | None) -> Expires | None:
    return Expires(seconds(data["at"]), data["reason"], data["message"]) if data else None


def load_causes(data: Sequence[Mapping[str, Any]] | None) -> tuple[Cause, ...]:
    return tuple(codec.load(Cause, cause) for cause in data or ())


def load_view(status: Mapping[str, Any], members: Sequence[Member]) -> View:
    """The engine's view, as far as the status shows it: the number of ready workers per group, and the names of those
    that are not ready. A pod whose probe succeeds is not ready until the engine lists it: more such pods than ready
    workers are newer than the status. See also `unknown`."""
    if not status.get("headReady"):
        return View()
    ready: dict[MemberId, MemberView] = {}
    for group in status.get("groups") or ():
        oldest = sorted(_candidates(status, group, members), key=lambda member: member.created_at)
        if not _is_unknown(group, oldest):
            ready |= {member.id: MemberView(True) for member in oldest[: group.get("ready", 0)]}
    return View(up=True, members=ready)


def unknown(status: Mapping[str, Any], members: Sequence[Member]) -> dict[MemberId, str]:
    """The members of which the status does not say whether they are ready, for it names only some of those that are
    not; with what it does say."""
    found: dict[MemberId, str] = {}
    for group in (status.get("groups") or ()) if status.get("headReady") else ():
        if _is_unknown(group, candidates := _candidates(status, group, members)):
            text = f"unknown; {group.get('ready', 0)} of {len(candidates)} such workers are ready"
            found |= {member.id: text for member in candidates}
    return found


def _candidates(status: Mapping[str, Any], group: Mapping[str, Any], members: Sequence[Member]) -> list[Member]:
    """The members of the group that may be ready."""
    unready = {*(group.get("unready") or ()), *(status.get("retiring") or ())}
    return [m for m in members if m.group == group["name"] and m.probe_ready and m.id not in unready]


def _is_unknown(group: Mapping[str, Any], candidates: Sequence[Member]) -> bool:
    has_all_names = len(group.get("unready") or ()) < MAX_UNREADY
    return not has_all_names and len(candidates) > group.get("ready", 0)
