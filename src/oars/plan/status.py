"""status: the one account of a cluster, computed from the desired and observed state and the engine's view. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from oars.model import HEAD, Cause, Desired, Group, LoopState, Member, MemberId, MemberState, Observed, Role, View
from oars.plan.autoscale import GroupTarget
from oars.plan.decide import CRASH_LOOP, has_finished, is_ready
from oars.spec.status import Endpoints, Expires, GroupStatus, MemberStatus, Phase, Status


def status(  # noqa: PLR0913 (the results of a pass)
    desired: Desired,
    observed: Observed,
    view: View,
    causes: tuple[Cause, ...],
    endpoints: Mapping[str, str],
    choices: Mapping[str, GroupTarget] = MappingProxyType({}),
    expires: Expires | None = None,
) -> Status:
    """`observed.state` is that of the decision just made; `causes` come from why.explain, `choices` from scale,
    `expires` from lifetime."""
    members = member_statuses(observed, view, desired.groups, running=desired.running)
    serving = [m for m in members if m.phase is Phase.READY]
    groups = tuple(_group(group, serving, choices.get(group.name)) for group in desired.shape.workers)
    first = causes[0] if causes else Cause("", "")
    return Status(
        name=desired.name,
        engine=desired.engine,
        place=desired.place,
        phase=_phase(desired, observed, view, groups),
        reason=first.reason,
        message=first.message,
        endpoints=Endpoints(client=endpoints.get("client", ""), dashboard=endpoints.get("dashboard", "")),
        groups=groups,
        members=members,
        mode=desired.mode,
        namespace=desired.namespace,
        expires=expires,
        generation=desired.generation,
        has_guarded_dashboard=bool(desired.shape.dashboard_secret),
    )


def failed(before: Status, cause: Cause, generation: int) -> Status:
    """The status after a pass that failed. The last known one stays, for members keep running; but a status about an
    older spec is not Ready."""
    outdated = before.phase is Phase.READY and before.generation != generation
    phase = Phase.DEGRADED if outdated else before.phase
    return replace(before, phase=phase, reason=cause.reason, message=cause.message, generation=generation)


def _group(group: Group, serving: list[MemberStatus], choice: GroupTarget | None) -> GroupStatus:
    ready = sum(member.group == group.name and member.role == Role.WORKER for member in serving)
    reason, message, needed = (choice.reason, choice.message, choice.need) if choice else ("", "", None)
    return GroupStatus(group.name, group.replicas, ready, group.min, group.max, reason, message, needed)


def _phase(desired: Desired, observed: Observed, view: View, groups: tuple[GroupStatus, ...]) -> Phase:
    if not desired.running:
        return Phase.STOPPING if observed.members else Phase.STOPPED
    head = observed.member(HEAD)
    is_up = head is not None and is_ready(head, observed, view)
    if _is_crash_looping(observed.state, HEAD) and not is_up:
        return Phase.FAILED
    if observed.is_head_leaving:
        return Phase.STARTING
    if is_up and all(group.ready >= group.wanted for group in groups):
        return Phase.READY
    serving = [m for m in observed.members if m.role is not Role.DRIVER]
    is_silent = view.has_answered and not view.up
    if is_silent or any(m.id in observed.state.failures and not is_ready(m, observed, view) for m in serving):
        return Phase.DEGRADED
    return Phase.STARTING if observed.members else Phase.PENDING


def _is_crash_looping(state: LoopState, member: MemberId) -> bool:
    failure = state.failures.get(member)
    return failure is not None and failure.count >= CRASH_LOOP


def member_statuses(
    observed: Observed, view: View, groups: Sequence[Group] = (), *, running: bool = True
) -> tuple[MemberStatus, ...]:
    by_name = {group.name: group for group in groups}
    found = []
    for member in observed.members:
        reported = view.members.get(member.id)
        address = (reported.address if reported else "") or member.address
        phase, reason = _member_phase(member, by_name.get(member.group), observed, view, running)
        tasks = reported.tasks if reported else None
        found.append(MemberStatus(member.id, member.role, member.group, phase, address, member.pid, reason, tasks))
    return tuple(found)


def _member_phase(
    member: Member, group: Group | None, observed: Observed, view: View, running: bool
) -> tuple[Phase, str]:
    state = observed.state
    failure = state.failures.get(member.id)
    if not running:
        return Phase.STOPPING, ""
    if member.id in state.retiring:
        return Phase.STOPPING, state.retiring[member.id].waits_for
    if group is not None and has_finished(member, group, state):
        return (Phase.SUCCEEDED if member.exit_code == 0 else Phase.FAILED), member.reason
    past = f"restarted, the one before {failure.reason}" if failure and failure.reason else ""
    if is_ready(member, observed, view):
        return Phase.READY, past
    if member.state is MemberState.EXITED or (failure and member.state is MemberState.WAITING and member.incarnation):
        reason = member.reason or (failure.reason if failure else "")
        return (Phase.FAILED if _is_crash_looping(state, member.id) else Phase.DEGRADED), reason
    return Phase.STARTING, past or member.reason
