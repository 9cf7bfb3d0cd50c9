"""status: the one account of a cluster, computed from desired, observed and view. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oars.model import HEAD, Cause, Desired, Group, LoopState, Member, MemberState, Observed, Role, View
from oars.plan.decide import CRASH_LOOP, ready
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status


def status(
    desired: Desired, observed: Observed, view: View, causes: tuple[Cause, ...], endpoints: Mapping[str, str]
) -> Status:
    """`observed.notes` are those of the decision just made; `causes` come from why.explain."""
    groups = tuple(_group(group, observed, view) for group in desired.shape.workers)
    phase = _phase(desired, observed, view, groups)
    first = causes[0] if causes else Cause("", "")
    return Status(
        name=desired.name,
        engine=desired.engine,
        place=desired.place,
        phase=phase,
        reason=first.reason,
        message=first.message,
        endpoints=Endpoints(client=endpoints.get("client", ""), dashboard=endpoints.get("dashboard", "")),
        groups=groups,
        members=tuple(_member(member, desired, observed, view) for member in observed.members),
        generation=desired.generation,
    )


def _group(group: Group, observed: Observed, view: View) -> GroupStatus:
    mine = [m for m in observed.members if m.group == group.name and m.role is Role.WORKER]
    serving = [m for m in mine if ready(m, observed, view) and m.id not in observed.notes.retiring]
    return GroupStatus(group.name, group.replicas, len(serving))


def _phase(desired: Desired, observed: Observed, view: View, groups: tuple[GroupStatus, ...]) -> Phase:
    if not desired.running:
        return Phase.STOPPING if observed.members else Phase.STOPPED
    head = observed.member(HEAD)
    failures = observed.notes.failures
    if _crash_loops(observed.notes, HEAD) and not (head and ready(head, observed, view)):
        return Phase.FAILED
    if head is not None and ready(head, observed, view) and all(g.ready >= g.wanted for g in groups):
        return Phase.READY
    broken = [m for m in observed.members if m.id in failures and not ready(m, observed, view)]
    if broken:
        return Phase.DEGRADED
    return Phase.STARTING if observed.members else Phase.PENDING


def _crash_loops(notes: LoopState, member: str) -> bool:
    return any(m == member and failure.count >= CRASH_LOOP for m, failure in notes.failures.items())


def _member(member: Member, desired: Desired, observed: Observed, view: View) -> MemberStatus:
    seen = view.members.get(member.id)
    address = (seen.address if seen else "") or member.address
    phase, reason = _member_phase(member, desired, observed, view)
    return MemberStatus(member.id, member.role, member.group, phase, address, member.pid, reason)


def _member_phase(member: Member, desired: Desired, observed: Observed, view: View) -> tuple[Phase, str]:
    notes = observed.notes
    failure = notes.failures.get(member.id)
    past = f"restarted, the one before {failure.reason}" if failure and failure.reason else ""
    if not desired.running:
        return Phase.STOPPING, ""
    if member.id in notes.retiring:
        return Phase.STOPPING, notes.retiring[member.id].waits_for
    if ready(member, observed, view):
        return Phase.READY, past
    if member.state is MemberState.EXITED:
        return (Phase.FAILED if _crash_loops(notes, member.id) else Phase.DEGRADED), member.reason
    return Phase.STARTING, past or member.reason
