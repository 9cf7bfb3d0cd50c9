"""decide: the next steps, from the desired and the observed state, the engine's view and the time. Pure.

Rules, in this order:
1. A cluster that is not to run is removed whole.
2. A dead member is started again: at once the first time, then with growing pauses while it keeps dying. One whose
   group does not restart it has finished.
3. Every head has an epoch. Workers of an earlier epoch hold nothing that the present head knows: they are removed at
   once, and new ones start when the new head runs. One that has joined the present head after all stays. The head comes
   first: workers start when it has room, and leave if it finds none.
4. Too few workers: start the missing ones. Too many: choose victims, drain them, and remove only what is drained. One
   that cannot be emptied for long stays, and a worker that holds nothing leaves instead. A worker that a user wants
   drained, or that its place will end soon, is drained and replaced.
5. A worker that runs but that the head has not listed for a long time is replaced: nobody can reach what it holds.

`Ensure` is emitted in every pass, for it is idempotent; the place compares and writes only what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from oars.model import (
    HEAD,
    Death,
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
    Pause,
    Remove,
    Restart,
    Retiring,
    Role,
    Step,
    View,
)
from oars.plan import names

STABLE = 30.0  # seconds after which a member counts as having started well
REMEMBER = 600.0  # seconds for which a death stays visible
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
MAX_DOUBLINGS = 30  # a float overflows at a thousand
CRASH_LOOP = 3  # deaths in a row that make a crash loop
JOIN_TIMEOUT = 180.0  # seconds for which the head may fail to list a running worker
SURGE_SECONDS = 60.0  # for which successors wait for workers of older revisions that are more than desired
SETTLED = 15.0  # seconds of being ready after which the cluster counts as settled
EXCHANGE = 10.0  # seconds of refused drains after which another worker may leave instead


def decide(desired: Desired, observed: Observed, view: View, now: float) -> Decision:
    """The next steps; performing them and deciding again converges on the desired state."""
    if not desired.running:
        return _stop(observed)
    observed = _without_future(observed, now)
    state = _with_head(observed, now)
    observed = replace(observed, state=replace(state, failures=failures(desired.groups, observed, state, now)))
    orphans = _orphans(observed, view)
    in_service = {m.id for m in observed.members if m.role is not Role.DRIVER and is_ready(m, observed, view)}
    ready = Counter(member.group for member in observed.members if member.id in in_service)
    plans = _plan_groups(desired, observed, view, orphans, in_service, now)
    retiring = {m: r for plan in plans for m, r in plan.retiring.items()}
    retiring |= _retire_obsolete(desired, observed, view, orphans, in_service, now)
    # A drained worker that the engine lists again must be drained again.
    again = {m for m in retiring if m in in_service and not is_forced(desired, m)}
    retiring = {m: replace(r, drained=r.drained and m not in again) for m, r in retiring.items()}
    # Workers of an older revision of a group do not make up for missing ones.
    serving = (desired.shape.head, *desired.shape.workers)
    complete = not retiring and all(ready[group.name] >= group.replicas for group in serving)
    ready_since = (observed.state.ready_since or now) if complete else None
    state = replace(observed.state, retiring=retiring, ready_since=ready_since)
    observed = replace(observed, state=state)

    steps: list[Step] = []
    head_may_start = may_start(HEAD, observed, now)
    if head_may_start:
        settled = ready_since is not None and now - ready_since >= SETTLED
        steps.append(Ensure(desired.shape.head, (HEAD,), settled))
    head = observed.member(HEAD)
    is_first = head_may_start and state.head_epoch == 0 and observed.has_head_room
    if _is_running(head) or is_first:  # at first they start together, as soon as the head has its room
        steps += [Ensure(plan.group, _startable(plan, observed, now), holding=view.holding) for plan in plans]
    if orphans:
        steps.append(Remove(tuple(sorted(orphans)), "they have no head", grace=0.0))
    steps += _retire(desired, observed, retiring, _patient(desired, observed, retiring, in_service), is_up=view.up)
    stuck = [m for m, seconds in view.unlisted.items() if seconds > JOIN_TIMEOUT and m not in {*retiring, *orphans}]
    if stuck:
        steps.append(Remove(tuple(sorted(stuck)), "the head does not list it"))
    return Decision(tuple(steps), _without_removed(state, steps), _pause(observed, in_service, complete, now))


def _without_removed(state: LoopState, steps: Iterable[Step]) -> LoopState:
    """A worker that is removed on purpose takes its failures along: a later one of that name is another. Those of a
    worker that is removed because of its head, or because it does not join, still count."""
    removed = {m for step in steps if isinstance(step, Remove) for m in step.members if m in state.retiring}
    failures = {m: f for m, f in state.failures.items() if m not in removed}
    return state if len(failures) == len(state.failures) else replace(state, failures=failures)


def is_forced(desired: Desired, member: MemberId) -> bool:
    """May the worker be removed with what it holds?"""
    request = desired.drain.get(member)
    return desired.force or (request is not None and request.force)


def _without_future(observed: Observed, now: float) -> Observed:
    """Move times that are later than now to now. They come from a clock that was set back since, or from a node whose
    clock is ahead: a member would stay dead until the clock has caught up. A start in the future counts as unknown."""
    state = observed.state
    failures = {m: _moved_failure(f, now) if f.last > now else f for m, f in state.failures.items()}
    retiring = {m: replace(r, since=now) if r.since > now else r for m, r in state.retiring.items()}
    ready_since = state.ready_since if state.ready_since is None else min(state.ready_since, now)
    lost_at = state.head_lost_at if state.head_lost_at is None else min(state.head_lost_at, now)
    deaths = {m: _moved_death(d, now) if d.at > now else d for m, d in observed.deaths.items()}
    state = replace(state, failures=failures, retiring=retiring, ready_since=ready_since, head_lost_at=lost_at)
    members = observed.members
    if any(member.started_at > now for member in members):
        members = tuple(replace(m, started_at=0.0) if m.started_at > now else m for m in members)
    return replace(observed, members=members, state=state, deaths=deaths)


def _moved_failure(failure: Failure, now: float) -> Failure:
    return replace(failure, last=now, until=failure.until - failure.last + now)


def _moved_death(death: Death, now: float) -> Death:
    return replace(death, at=now, started_at=death.started_at - death.at + now)


def is_ready(member: Member, observed: Observed, view: View) -> bool:
    """Does the engine list this very incarnation, with the head that exists now?"""
    if member.state is not MemberState.RUNNING or not view.up or not _is_alive(observed.member(HEAD)):
        return False
    if member.role is not Role.WORKER:
        return True
    if member.id in view.draining:
        return False  # also if the engine has not begun with it
    reported = _reported(member, view)
    return reported is not None and reported.ready and _serves_head(member, observed, view)


@dataclass(frozen=True)
class _GroupPlan:
    group: Group
    wanted: tuple[MemberId, ...]
    retiring: Mapping[MemberId, Retiring]


def _stop(observed: Observed) -> Decision:
    everyone = tuple(sorted(member.id for member in observed.members))
    steps = (Remove(everyone, "the cluster is stopped"),) if everyone else ()
    return Decision(steps, LoopState(), Pause(observed.pace.resting, limited=True))


def _with_head(observed: Observed, now: float) -> LoopState:
    """Counts heads: a head that is gone, or is another one than before, begins a new epoch. If the place replaced the
    head while no loop ran, workers may have started after it and serve it already; then they stay, and those that do
    not join it are replaced one by one."""
    head, state = observed.member(HEAD), observed.state
    if state.head_lost_at is not None and now - state.head_lost_at >= REMEMBER:
        state = replace(state, head_lost_at=None)
    current = head.incarnation if head is not None and _is_alive(head) else ""
    if current == state.head:
        return state
    if current and head is not None and any(started_after(head, member) for member in observed.members):
        return replace(state, head=current)
    if not state.head:
        return replace(state, head=current)
    return replace(state, head=current, head_epoch=state.head_epoch + 1, head_lost_at=now)


def started_after(head: Member | None, member: Member) -> bool:
    """True if the worker started after the head did: it can have joined no other."""
    is_later = head is not None and 0.0 < head.started_at < member.started_at
    return member.role is Role.WORKER and _is_alive(member) and is_later


def failures(groups: Sequence[Group], observed: Observed, state: LoopState, now: float) -> dict[MemberId, Failure]:
    """Deaths remembered from before, less those long past, plus those seen now for the first time. Those of members
    that are not always restarted are never forgotten: their count decides whether they have finished."""
    limited = {group.name for group in groups if group.restart is not Restart.ALWAYS}
    kept = {m.id for m in observed.members if m.group in limited}
    known = {m: f for m, f in state.failures.items() if m in kept or now - f.last < REMEMBER}
    for name, death in observed.deaths.items():
        member = observed.member(name)
        if member is None or name in state.retiring or (name not in kept and now - death.at >= REMEMBER):
            continue
        if member.role is Role.WORKER and member.head_epoch != state.head_epoch:
            continue  # it died because its head did
        if member.exit_code == 0 and name in kept:
            continue  # it succeeded
        before = known.get(name)
        if before is None or before.incarnation != death.incarnation:
            known[name] = _failure(death, before, forgiving=name not in kept)
    return known


def _failure(death: Death, before: Failure | None, *, forgiving: bool) -> Failure:
    """`forgiving`: the count starts from zero after the member has run well for a while."""
    lived_well = forgiving and death.at - death.started_at > STABLE
    count = max(death.count, 1 if before is None or lived_well else before.count + 1)
    pause = 0.0 if count == 1 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(count - 2, MAX_DOUBLINGS))
    return Failure(count, death.at, death.at + pause, death.incarnation, death.reason, death.tail)


def _is_running(member: Member | None) -> bool:
    return member is not None and member.state is MemberState.RUNNING


def _is_alive(member: Member | None) -> bool:
    """It runs, or will without our doing."""
    return member is not None and member.state is not MemberState.EXITED


def _orphans(observed: Observed, view: View) -> set[MemberId]:
    """Workers of an earlier head, and those that may have taken the room of this one."""
    workers = (m for m in observed.members if m.role is Role.WORKER and _is_alive(m))
    head = observed.member(HEAD)
    has_no_room = head is not None and bool(head.blocked)
    return {member.id for member in workers if has_no_room or not _serves_head(member, observed, view)}


def _serves_head(member: Member, observed: Observed, view: View) -> bool:
    """True if the worker was started for the head that exists now, starts after it or has joined it: while no loop
    runs, a place may replace members itself, and a worker that waits for a head joins the next one."""
    if member.head_epoch == observed.state.head_epoch:
        return True
    head = observed.member(HEAD)
    if head is None or head.state is not MemberState.RUNNING:
        return False
    will_start = member.state is MemberState.WAITING and 0.0 < head.started_at < member.created_at
    return will_start or started_after(head, member) or member.id in view.joined


def may_start(member: MemberId, observed: Observed, now: float) -> bool:
    """True unless it exited and its back-off has not passed."""
    failure = observed.state.failures.get(member)
    return failure is None or failure.until <= now or _is_alive(observed.member(member))


def has_finished(member: Member, group: Group, state: LoopState) -> bool:
    """It exited and its group's policy does not start it again."""
    if member.state is not MemberState.EXITED or group.restart is Restart.ALWAYS:
        return False
    if group.restart is Restart.NEVER or member.exit_code == 0:
        return True
    failure = state.failures.get(member.id)
    return group.max_restarts is not None and failure is not None and failure.count > group.max_restarts


def _plan_groups(
    desired: Desired, observed: Observed, view: View, orphans: Collection[MemberId], in_service: Collection[MemberId],
    now: float,
) -> list[_GroupPlan]:  # fmt: skip
    """Per group: the members that stay, leave and are missing."""
    limits = _limits(desired, observed, now)
    existing: dict[str, list[Member]] = {}
    for member in observed.members:
        if member.role is not Role.HEAD and member.id not in orphans:
            existing.setdefault(member.group, []).append(member)
    plans = []
    for group in desired.groups[1:]:
        mine = existing.get(group.name, [])
        known = {member.id for member in mine}
        retiring = {m: r for m, r in observed.state.retiring.items() if m in known}
        must_leave = {member.id: reason for member in mine if (reason := _must_leave(desired, member))}
        for name, reason in must_leave.items():
            retiring[name] = replace(retiring.get(name, Retiring(now)), reason=reason)
        active = [member for member in mine if member.id not in retiring]
        surplus = len(active) - group.replicas
        # Of those that cannot be emptied, autoscaling counts on the ones that have been idle for long.
        is_counted = group.max is not None and not desired.shape.moves_data
        long = desired.autoscale.scale_down_delay if is_counted else 0.0
        if surplus == 0:
            refused = [m for m, r in retiring.items() if m not in must_leave and _is_stuck(m, r, view, now)]
            empty = [m.id for m in active if refused and m.id in in_service and _is_empty(m, view, long)]
            for stays, leaves in zip(refused, empty, strict=False):
                del retiring[stays]
                retiring[leaves] = Retiring(now)
        elif surplus > 0:
            ranked = sorted(active, key=lambda member: _keep_rank(member, in_service, view, long))
            retiring |= {victim.id: Retiring(now) for victim in ranked[:surplus]}
        else:
            # Keep workers that are in service, are being drained, or have yet to start. Any other may be drained
            # already, although the reply was lost with an earlier loop.
            usable = {*in_service, *view.draining, *(m.id for m in mine if m.state is not MemberState.RUNNING)}
            candidates = [m for m in sorted(retiring) if m in usable - must_leave.keys() and not retiring[m].drained]
            for name in candidates[:-surplus]:
                del retiring[name]
        staying = [member.id for member in mine if member.id not in retiring]
        missing = names.member_ids(group, max(0, limits[group.name] - len(staying)), known)
        plans.append(_GroupPlan(group, (*staying, *missing), retiring))
    return plans


def _is_stuck(member: MemberId, retiring: Retiring, view: View, now: float) -> bool:
    """Its drains were refused for long, and it cannot be emptied now. When it was chosen, all may have been busy."""
    if retiring.drained or not retiring.waits_for or now - retiring.since < EXCHANGE:
        return False
    reported = view.members.get(member) if view.up else None
    return reported is not None and (reported.pinned or not reported.idle > 0)


def _is_empty(member: Member, view: View, long: float) -> bool:
    """It holds nothing and has been idle for `long` seconds."""
    reported = _reported(member, view)
    return reported is not None and reported.idle > long and not reported.held and not reported.pinned


def _limits(desired: Desired, observed: Observed, now: float) -> dict[str, int]:
    """Group → how many workers of its present revision may run. With those of older revisions they are at most twice as
    many as desired. One that does not leave, because it cannot be emptied or nobody answers, does not count for long:
    its successors would wait for it."""
    older: Counter[str] = Counter()
    for member in observed.members:
        retiring = observed.state.retiring.get(member.id)
        is_stuck = retiring is not None and (bool(retiring.waits_for) or now - retiring.since > SURGE_SECONDS)
        if _is_alive(member) and not is_stuck and (name := _successor(member)) != member.group:
            older[name] += 1
    return {group.name: group.replicas - max(0, older[group.name] - group.replicas) for group in desired.groups}


def _successor(member: Member) -> str:
    """The member's group, without the revision that an older one has in its name."""
    return member.group.partition("@")[0]


def _must_leave(desired: Desired, member: Member) -> str:
    """Why the worker is replaced, as a clause; empty: it is not."""
    request = desired.drain.get(member.id)
    if member.role is Role.WORKER and request is not None and request.incarnation in ("", member.incarnation):
        return "its drain was requested"
    return member.departing


def _keep_rank(
    member: Member, in_service: Collection[MemberId], view: View, long: float
) -> tuple[bool, bool, bool, bool, bool, bool, int, float, int]:
    """Smallest leaves first: dead, blocked, not ready, free to leave, idle for `long` seconds, idle, least data,
    newest. One that is not ready does no work yet; if it holds something after all, its drain keeps it."""
    reported = _reported(member, view) or MemberView(ready=False)
    newest = (-member.created_at, -names.index(member.id))
    serves = (_is_alive(member), not member.blocked, member.id in in_service)
    return (*serves, reported.pinned, reported.idle < long, not reported.idle > 0, reported.held, *newest)


def _reported(member: Member, view: View) -> MemberView | None:
    """What the engine reports of this very incarnation."""
    reported = view.members.get(member.id) if view.up else None
    return reported if reported is not None and reported.incarnation in ("", member.incarnation) else None


def _retire_obsolete(
    desired: Desired, observed: Observed, view: View, orphans: Collection[MemberId], in_service: Collection[MemberId],
    now: float,
) -> dict[MemberId, Retiring]:  # fmt: skip
    """Workers of groups that are no longer desired. Those of older revisions of a group (name@revision), as many as are
    desired, stay until their successors are ready."""
    groups = {group.name: group for group in desired.groups[1:]}
    ready = Counter(member.group for member in observed.members if member.id in in_service)
    retiring, staying = {}, {name: list[Member]() for name in groups}
    for member in observed.members:
        if member.role is Role.HEAD or member.group in groups or member.id in orphans:
            continue
        before = observed.state.retiring.get(member.id)
        successor = groups.get(_successor(member))
        if before is not None or successor is None or ready[successor.name] >= successor.replicas:
            retiring[member.id] = before or Retiring(now)
        else:
            staying[successor.name].append(member)
    for name, older in staying.items():
        ranked = sorted(older, key=lambda member: _keep_rank(member, in_service, view, 0.0))
        retiring |= {member.id: Retiring(now) for member in ranked[: max(0, len(older) - groups[name].replicas)]}
    return retiring


def _startable(plan: _GroupPlan, observed: Observed, now: float) -> tuple[MemberId, ...]:
    """Who must run: those that stay and may be started now, and those that leave until they are removed."""
    running = []
    for name in plan.wanted:
        member = observed.member(name)
        finished = member is not None and has_finished(member, plan.group, observed.state)
        if not finished and may_start(name, observed, now):
            running.append(name)
    leaving = [name for name in plan.retiring if _is_alive(observed.member(name))]
    return (*running, *leaving)


def _patient(
    desired: Desired, observed: Observed, retiring: Mapping[MemberId, Retiring], in_service: Collection[MemberId]
) -> set[MemberId]:
    """Departing workers that serve until their successors do: nobody has said when they end, and there may be no room
    for successors."""
    serving = Counter(m.group for m in observed.members if m.id in in_service and m.id not in retiring)
    short = {group.name for group in desired.shape.workers if serving[group.name] < group.replicas}
    waiting = (m for m in observed.members if m.departing and not m.is_doomed and m.group in short)
    return {m.id for m in waiting if m.id not in desired.drain and m.id in in_service}


def _retire(
    desired: Desired, observed: Observed, retiring: Mapping[MemberId, Retiring], patient: Collection[MemberId], *,
    is_up: bool,
) -> Iterable[Step]:  # fmt: skip
    """While the engine does not answer, a drained worker may be back in service: it is only removed by force."""
    to_drain: list[MemberId] = []
    to_remove: list[MemberId] = []
    for name, state in sorted(retiring.items()):
        if not _is_alive(observed.member(name)):
            to_remove.append(name)
        elif not state.drained:
            to_drain += [name] if name not in patient else []
        elif is_up or is_forced(desired, name):
            to_remove.append(name)
    if to_drain:
        yield Drain(tuple(to_drain))
    if to_remove:
        yield Remove(tuple(to_remove), "no longer wanted")


def _pause(observed: Observed, in_service: Collection[MemberId], complete: bool, now: float) -> Pause:
    """When to look again, at the place's own pace."""
    pace, state = observed.pace, observed.state
    if complete:
        return Pause(pace.resting, limited=True)
    backing_off = [
        failure.until - now
        for name, failure in state.failures.items()
        if failure.until > now and not _is_alive(observed.member(name))
    ]
    if backing_off and not state.retiring:
        return Pause(max(pace.soon, min(*backing_off, pace.resting)))
    if state.retiring or _engine_may_report_more(observed, in_service):
        return Pause(pace.soon)
    return Pause(pace.waiting, limited=True)


def _engine_may_report_more(observed: Observed, in_service: Collection[MemberId]) -> bool:
    """The engine has yet to list a member whose probe succeeds. While the head's probe fails there is nobody to ask,
    and the place announces when it succeeds."""
    head = observed.member(HEAD)
    if head is None or not head.probe_ready:
        return False
    return any(member.probe_ready and member.id not in in_service for member in observed.members)


def with_drain_reply(state: LoopState, member: MemberId, done: bool, waits_for: str, now: float) -> LoopState:
    """Remember the engine's reply to a Drain. What is drained must leave, even if it was unretired meanwhile."""
    before = state.retiring.get(member)
    if before is None and not done:
        return state
    changed = replace(before or Retiring(now), drained=done, waits_for=waits_for)
    return replace(state, retiring={**state.retiring, member: changed})
