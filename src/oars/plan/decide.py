"""decide: what to do next, from what shall be, what is there, what the engine says and the time. Pure.

Rules, in this order:
1. A cluster that shall not run is removed whole.
2. A dead member is started again: at once the first time, then with growing pauses while it keeps dying.
3. Workers of a lost head hold nothing that a new head knows: they go at once, and new ones start with it.
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
    Member,
    MemberId,
    MemberState,
    Notes,
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


def decide(desired: Desired, observed: Observed, view: View, now: float) -> Decision:
    """The next steps; performing them and deciding again converges on what is desired."""
    if not desired.running:
        return _stop(observed)
    failures = _failures(observed, now)
    lost = set() if observed.heals else _orphans(observed)
    head = _head_steps(desired, observed, failures, now)
    plans = [_plan_group(group, observed, view, lost, now) for group in desired.shape.workers]
    unknown = _members_of_removed_groups(desired, observed, lost)
    steps: list[Step] = [*head]
    if lost:
        steps.append(Remove(tuple(sorted(lost)), "the head was lost", grace=0.0))
    head_is_coming = bool(head) or _there(observed.member(HEAD)) or observed.heals
    for plan in plans:
        if head_is_coming:
            steps += _ensure(plan, observed, failures, lost, now)
    retiring = {m: r for plan in plans for m, r in plan.retiring.items()}
    retiring |= {m.id: observed.notes.retiring.get(m.id, Retiring(now)) for m in unknown}
    steps += _retire(observed, retiring)
    notes = Notes(retiring=retiring, failures=failures)
    return Decision(tuple(steps), notes, _again_after(desired, observed, view, notes, now))


def ready(member: Member, observed: Observed, view: View) -> bool:
    """Does the engine list this very incarnation, with the head that is there now?"""
    head = observed.member(HEAD)
    if member.state is not MemberState.RUNNING or not view.up or not _there(head):
        return False
    if member.role is Role.HEAD:
        return True
    seen = view.members.get(member.id)
    if seen is None or not seen.ready or (head is not None and member.head != head.incarnation and not observed.heals):
        return False
    return seen.incarnation in ("", member.incarnation)


@dataclass(frozen=True)
class _GroupPlan:
    group: Group
    wanted: tuple[MemberId, ...]
    retiring: Mapping[MemberId, Retiring]


def _stop(observed: Observed) -> Decision:
    everyone = tuple(sorted(member.id for member in observed.members))
    steps = (Remove(everyone, "the cluster is stopped"),) if everyone else ()
    return Decision(steps, Notes(), RESTING)


def _failures(observed: Observed, now: float) -> dict[MemberId, Failure]:
    """Deaths remembered from before, less what is long past, plus those seen now for the first time."""
    known = {m: f for m, f in observed.notes.failures.items() if now - f.last < REMEMBER}
    head = observed.member(HEAD)
    for member in observed.members:
        if member.state is not MemberState.EXITED or member.id in observed.notes.retiring:
            continue
        if member.role is Role.WORKER and not _serves(member, head):
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


def _serves(worker: Member, head: Member | None) -> bool:
    return _there(head) and head is not None and worker.head == head.incarnation


def _there(member: Member | None) -> bool:
    """It runs, or is about to."""
    return member is not None and member.state is not MemberState.EXITED


def _orphans(observed: Observed) -> set[MemberId]:
    """Workers whose head is gone or is another one than they were started with."""
    head = observed.member(HEAD)
    return {m.id for m in observed.members if m.role is Role.WORKER and _there(m) and not _serves(m, head)}


def _head_steps(desired: Desired, observed: Observed, failures: Mapping[MemberId, Failure], now: float) -> list[Step]:
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
        retiring = _take_back(retiring, -surplus)
    staying = [m for m in existing if m not in retiring]
    missing = names.member_ids(group, group.replicas - len(staying), existing) if len(staying) < group.replicas else []
    return _GroupPlan(group, tuple([*staying, *missing]), retiring)


def _keep_rank(member: Member, observed: Observed, view: View) -> tuple[bool, bool, int, float, int]:
    """Smallest goes first: dead, not ready, least data, longest idle, newest."""
    seen = view.members.get(member.id)
    held, idle = (seen.held, seen.idle) if seen else (0, 0.0)
    return (_there(member), ready(member, observed, view), held, -idle, -names.index(member.id))


def _take_back(retiring: Mapping[MemberId, Retiring], count: int) -> dict[MemberId, Retiring]:
    """More workers are wanted again: those that were chosen but not drained are still in service."""
    kept = [m for m, r in sorted(retiring.items()) if not r.drained][:count]
    return {m: r for m, r in retiring.items() if m not in kept}


def _members_of_removed_groups(desired: Desired, observed: Observed, lost: set[MemberId]) -> list[Member]:
    groups = {group.name for group in desired.shape.workers}
    return [m for m in observed.members if m.role is Role.WORKER and m.group not in groups and m.id not in lost]


def _ensure(
    plan: _GroupPlan, observed: Observed, failures: Mapping[MemberId, Failure], lost: set[MemberId], now: float
) -> Iterable[Step]:
    def runs(member: MemberId) -> bool:
        return _there(observed.member(member)) and member not in lost

    wanted = tuple(m for m in plan.wanted if runs(m) or _may_start(m, failures, now))
    if not all(runs(m) for m in wanted):
        yield Ensure(plan.group, wanted)


def _retire(observed: Observed, retiring: Mapping[MemberId, Retiring]) -> Iterable[Step]:
    to_drain: list[MemberId] = []
    to_remove: list[MemberId] = []
    for member, state in sorted(retiring.items()):
        done = state.drained or not _there(observed.member(member))
        (to_remove if done else to_drain).append(member)
    if to_drain:
        yield Drain(tuple(to_drain))
    if to_remove:
        yield Remove(tuple(to_remove), "no longer wanted")


def _again_after(desired: Desired, observed: Observed, view: View, notes: Notes, now: float) -> float:
    wanted = 1 + sum(group.replicas for group in desired.shape.workers)
    serving = sum(ready(m, observed, view) for m in observed.members if m.id not in notes.retiring)
    if notes.retiring or serving < wanted:
        pauses = [f.until - now for f in notes.failures.values() if f.until > now]
        return max(SOON, min([*pauses, SOON if not pauses else RESTING]))
    return RESTING


def with_drained(notes: Notes, member: MemberId, done: bool, waits_for: str, now: float) -> Notes:
    """Remember the engine's answer to a Drain. What is emptied must go, even if it was taken back meanwhile."""
    before = notes.retiring.get(member)
    if before is None and not done:
        return notes
    state = replace(before or Retiring(now), drained=done, waits_for=waits_for)
    return notes.with_retiring({**notes.retiring, member: state})
