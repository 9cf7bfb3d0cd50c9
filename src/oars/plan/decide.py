"""decide: what to do next, from what shall be, what is there, what the engine says and the time. Pure.

Rules, in this order:
1. A cluster that shall not run is removed whole.
2. A dead member is started again: at once the first time, then with growing pauses while it keeps dying.
3. Workers of a lost head hold nothing that a new head knows: they go at once, and new ones start with it.
   Where the place heals (Kubernetes) it starts what is missing, but only we know that a new head needs new workers.
4. Too few workers: start the missing ones. Too many: choose who goes, drain, and remove only what is drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from oars.model import (
    HEAD,
    Decision,
    Desired,
    Drain,
    Ensure,
    Failure,
    Group,
    LoopState,
    Member,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Remove,
    Retiring,
    Role,
    Step,
    View,
)
from oars.plan import names

STABLE = 30.0  # seconds after which a member counts as having started well
REMEMBER = 600.0  # seconds for which a death stays visible
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
CRASH_LOOP = 3  # deaths in a row that make a crash loop

SOON, RESTING = 0.1, 1.0
# The place tells of changes by itself; only the engine must be asked, and why something is still missing.
HEALING_SOON, HEALING_WAITING, HEALING_RESTING = 0.5, 2.0, 10.0


def decide(desired: Desired, observed: Observed, view: View, now: float) -> Decision:
    """The next steps; performing them and deciding again converges on what is desired."""
    if not desired.running:
        return _stop(observed)
    failures = _failures(observed, now)
    observed = _with_head(observed)
    lost = _orphans(observed)
    head = _head_steps(desired, observed, failures, now)
    plans = [_plan_group(group, observed, view, lost, now) for group in desired.shape.workers]
    unknown = _members_of_removed_groups(desired, observed, view, lost)
    steps: list[Step] = [*head]
    away: list[Step] = [Remove(tuple(sorted(lost)), "the head was lost", grace=0.0)] if lost else []
    head_is_coming = (bool(head) or _there(observed.member(HEAD))) and not _head_is_being_replaced(observed)
    starts = [s for plan in plans if head_is_coming for s in _ensure(plan, observed, failures, lost, now)]
    # Where the place replaces what goes, it must know before by what.
    steps += [*starts, *away] if observed.heals else [*away, *starts]
    retiring = {m: r for plan in plans for m, r in plan.retiring.items()}
    retiring |= {m.id: observed.notes.retiring.get(m.id, Retiring(now)) for m in unknown}
    if not desired.force:
        retiring = {m: _undrain_if_serving(m, state, observed, view) for m, state in retiring.items()}
    steps += _retire(observed, view, retiring)
    notes = replace(observed.notes, retiring=retiring, failures=failures)
    return Decision(tuple(steps), notes, _again_after(desired, observed, view, notes, now))


def ready(member: Member, observed: Observed, view: View) -> bool:
    """Does the engine list this very incarnation, with the head that is there now?"""
    head = observed.member(HEAD)
    if member.state is not MemberState.RUNNING or not view.up or not _there(head):
        return False
    if member.role is Role.HEAD:
        return True
    seen = _seen(member, view)
    return seen is not None and seen.ready and _serves(member, observed)


@dataclass(frozen=True)
class _GroupPlan:
    group: Group
    wanted: tuple[MemberId, ...]
    retiring: Mapping[MemberId, Retiring]


def _stop(observed: Observed) -> Decision:
    everyone = tuple(sorted(member.id for member in observed.members))
    steps = (Remove(everyone, "the cluster is stopped"),) if everyone else ()
    return Decision(steps, LoopState(), RESTING)


def _failures(observed: Observed, now: float) -> dict[MemberId, Failure]:
    """Deaths remembered from before, less what is long past, plus those seen now for the first time."""
    known = {m: f for m, f in observed.notes.failures.items() if now - f.last < REMEMBER}
    if observed.heals:
        return known  # the place counts them itself
    for member in observed.members:
        if member.state is not MemberState.EXITED or member.id in observed.notes.retiring:
            continue
        if member.role is Role.WORKER and not _serves(member, observed):
            continue  # it died of the head's death
        before = known.get(member.id)
        if before is None or before.incarnation != member.incarnation:
            known[member.id] = _failure(member, before, now)
    return known


def _failure(member: Member, before: Failure | None, now: float) -> Failure:
    lived_well = now - member.started > STABLE
    count = 1 if before is None or lived_well else before.count + 1
    pause = 0.0 if count == 1 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (count - 2))
    return Failure(count, now, now + pause, member.incarnation, member.reason, member.tail)


def _serves(worker: Member, observed: Observed) -> bool:
    """Was it started for the head that is there now?"""
    if observed.heals:
        return worker.head == str(observed.notes.head_changes)
    head = observed.member(HEAD)
    return head is not None and _there(head) and worker.head == head.incarnation


def _with_head(observed: Observed) -> Observed:
    """Where the place heals, a new head appears by itself: remember which one the workers serve."""
    head, notes = observed.member(HEAD), observed.notes
    if not observed.heals or head is None or head.state is not MemberState.RUNNING or head.head == notes.head:
        return observed
    changes = notes.head_changes + (1 if notes.head else 0)
    return replace(observed, notes=replace(notes, head=head.head, head_changes=changes))


def _head_is_being_replaced(observed: Observed) -> bool:
    """By the place itself: workers that were started now would have to be started again when the new head is there."""
    head = observed.member(HEAD)
    replaced = head is None or head.state is MemberState.WAITING
    return observed.heals and bool(observed.notes.head) and replaced


def _there(member: Member | None) -> bool:
    """It runs, or is about to."""
    return member is not None and member.state is not MemberState.EXITED


def _orphans(observed: Observed) -> set[MemberId]:
    """Workers whose head is gone or is another one than they were started with."""
    return {m.id for m in observed.members if m.role is Role.WORKER and _there(m) and not _serves(m, observed)}


def _head_steps(desired: Desired, observed: Observed, failures: Mapping[MemberId, Failure], now: float) -> list[Step]:
    if observed.heals:
        return [Ensure(desired.shape.head, (HEAD,))]
    if _there(observed.member(HEAD)) or not _may_start(HEAD, failures, now):
        return []
    return [Ensure(desired.shape.head, (HEAD,))]


def _may_start(member: MemberId, failures: Mapping[MemberId, Failure], now: float) -> bool:
    failure = failures.get(member)
    return failure is None or failure.until <= now


def _plan_group(group: Group, observed: Observed, view: View, lost: set[MemberId], now: float) -> _GroupPlan:
    """Who stays, who goes, who is to come."""
    mine = [m for m in observed.members if m.role is Role.WORKER and m.group == group.name]
    existing = {m.id: m for m in mine if m.id not in lost}
    retiring = {m: r for m, r in observed.notes.retiring.items() if m in existing}
    active = [member for member in existing.values() if member.id not in retiring]
    surplus = len(active) - group.replicas
    if surplus > 0:
        ranked = sorted(active, key=lambda member: _keep_rank(member, observed, view))
        for victim in ranked[:surplus]:
            retiring[victim.id] = Retiring(now)
    elif surplus < 0:
        retiring = _unretire(retiring, -surplus)
    staying = [m for m in existing if m not in retiring]
    missing = names.member_ids(group, group.replicas - len(staying), existing) if len(staying) < group.replicas else []
    return _GroupPlan(group, tuple([*staying, *missing]), retiring)


def _keep_rank(member: Member, observed: Observed, view: View) -> tuple[bool, bool, bool, int, float, int]:
    """Smallest goes first: dead, not ready, idle, least data, newest. One that is not ready does no work yet; if it
    holds something after all, its drain keeps it."""
    seen = _seen(member, view)
    idle, held = (seen.idle > 0, seen.held) if seen else (False, 0)
    is_ready = ready(member, observed, view)
    return (_there(member), is_ready, not idle, held, -member.made, -names.index(member.id))


def _seen(member: Member, view: View) -> MemberView | None:
    """What the engine says of this very incarnation."""
    seen = view.members.get(member.id) if view.up else None
    return seen if seen is not None and seen.incarnation in ("", member.incarnation) else None


def _unretire(retiring: Mapping[MemberId, Retiring], count: int) -> dict[MemberId, Retiring]:
    """More workers are wanted again: those that were chosen but not drained are still in service."""
    kept = [m for m, r in sorted(retiring.items()) if not r.drained][:count]
    return {m: r for m, r in retiring.items() if m not in kept}


def _members_of_removed_groups(desired: Desired, observed: Observed, view: View, lost: set[MemberId]) -> list[Member]:
    """Those of an older description of a group (name@revision) stay until their successors can take over."""
    groups = {group.name: group for group in desired.shape.workers}

    def succeeded(member: Member) -> bool:
        successor = groups.get(member.group.partition("@")[0])
        serving = [m for m in observed.members if successor and m.group == successor.name and ready(m, observed, view)]
        return successor is None or len(serving) >= successor.replicas

    strangers = [m for m in observed.members if m.role is Role.WORKER and m.group not in groups and m.id not in lost]
    return [m for m in strangers if m.id in observed.notes.retiring or succeeded(m)]


def _ensure(
    plan: _GroupPlan, observed: Observed, failures: Mapping[MemberId, Failure], lost: set[MemberId], now: float
) -> Iterable[Step]:
    def runs(member: MemberId) -> bool:
        return _there(observed.member(member)) and member not in lost

    if observed.heals:
        yield Ensure(plan.group, (*plan.wanted, *plan.retiring))
        return
    wanted = tuple(m for m in plan.wanted if runs(m) or _may_start(m, failures, now))
    if not all(runs(m) for m in wanted):
        yield Ensure(plan.group, wanted)


def _undrain_if_serving(name: MemberId, state: Retiring, observed: Observed, view: View) -> Retiring:
    """A drained one may be back in service before it could be removed: it was still starting when it was drained, or
    was started again since. What the engine said of it then holds no longer."""
    member = observed.member(name)
    is_back = state.drained and member is not None and ready(member, observed, view)
    return replace(state, drained=False) if is_back else state


def _retire(observed: Observed, view: View, retiring: Mapping[MemberId, Retiring]) -> Iterable[Step]:
    """Whether a drained one is not back in service only an engine that answers can say."""
    to_drain: list[MemberId] = []
    to_remove: list[MemberId] = []
    for name, state in sorted(retiring.items()):
        member = observed.member(name)
        if member is None or not _there(member):
            to_remove.append(name)
        elif not state.drained:
            to_drain.append(name)
        elif view.up:
            to_remove.append(name)
    if to_drain:
        yield Drain(tuple(to_drain))
    if to_remove:
        yield Remove(tuple(to_remove), "no longer wanted")


def _again_after(desired: Desired, observed: Observed, view: View, notes: LoopState, now: float) -> float:
    soon, resting = (HEALING_SOON, HEALING_RESTING) if observed.heals else (SOON, RESTING)
    wanted = 1 + sum(group.replicas for group in desired.shape.workers)
    serving = sum(ready(m, observed, view) for m in observed.members if m.id not in notes.retiring)
    if observed.heals and not notes.retiring and not _may_tell_more(observed, view):
        soon = HEALING_WAITING
    if notes.retiring or serving < wanted:
        pauses = [f.until - now for f in notes.failures.values() if f.until > now]
        return max(soon, min([*pauses, soon if not pauses else resting]))
    return resting


def _may_tell_more(observed: Observed, view: View) -> bool:
    """Whether to ask the engine again soon: it has yet to list a member whose process answers. As long as its head does
    not answer there is nobody to ask, and the place tells when it does."""
    head = observed.member(HEAD)
    if head is None or not head.answers:
        return False
    return not all(ready(member, observed, view) for member in observed.members if member.answers)


def with_drain_reply(notes: LoopState, member: MemberId, done: bool, waits_for: str, now: float) -> LoopState:
    """Remember the engine's answer to a Drain. What is emptied must go, even if it was taken back meanwhile."""
    before = notes.retiring.get(member)
    if before is None and not done:
        return notes
    state = replace(before or Retiring(now), drained=done, waits_for=waits_for)
    return notes.with_retiring({**notes.retiring, member: state})
