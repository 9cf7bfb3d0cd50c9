"""autoscale: how many members each group should have. Pure. docs/autoscaling.md explains the rules and the constants.

1. If the engine does not report its demand, nothing changes.
2. The need of a group: what waits and what runs, packed into members (packing.py). Work of known duration does not have
   to run all at once, only within the horizon. Data in memory needs members too.
3. A group whose members cannot start for long is blocked: it keeps those that are ready and one more as a probe. Its
   work is packed into other groups.
4. Scale up: to the need, in one write, as soon as the demand has settled. Members that are starting count as there.
5. Scale down: to the largest need of the last `scale_down_delay` seconds, several members in one write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from oars.model import Autoscale, Demand, Group, Limit, Unservable
from oars.plan import autoscale_reasons as reasons
from oars.plan.packing import ROUNDING, Bounds, Fleet, Packing, Part
from oars.plan.starts import UNKNOWN, Starts

LOOK = 1.0  # seconds until the next look; while the demand settles, `Autoscale.settle`
MAX_GAP = 30.0  # seconds without a look; after a longer gap the past is not known
SURGE = 1.0  # second after which demand that still grows is acted upon
AHEAD = 12.0  # seconds for which such growth is extrapolated, and at most half of the time that a member takes to start
STARTING_SHARE = 0.6  # of the members that are starting: growth below that waits for them, unless it has settled
STRETCH = 1.3  # times as long as a piece of short work takes: the horizon of such work
SHORTEST = 0.5  # seconds: the horizon is at least that
START_SHARE = 0.15  # of the time that a member takes to start: the horizon is at least that
GATHER = 10.0  # seconds in which members that may leave are gathered, if the engine cannot empty the others
WORTHWHILE = 0.03  # of a group: fewer members do not leave, unless they are all that is left to leave
MAX_DOUBLINGS = 30  # a float overflows at a thousand
# Times as long as usual a group keeps its members, if it had to grow again soon after the last ones left.
HESITATION = 2.4
STALLED = 15.0  # seconds in which nothing starts although there is room: no member has enough of it in one piece


@dataclass(frozen=True)
class Supply:
    """The members of one group by state; retiring ones are in `retiring` only."""

    ready: int = 0
    starting: int = 0  # also those that a place has yet to list
    stuck: int = 0  # they cannot start for now: no node has room, a quota refuses them
    stuck_since: float = 0.0  # of the first of them
    stuck_reason: str = ""  # a clause, such as "no node has a free GPU"
    has_node_autoscaler: bool = False  # a node autoscaler is adding nodes for them
    retiring: int = 0
    removable: int | None = None  # how many of the ready ones may leave now; None: the engine can empty any
    holding: int = 0  # how many of the ready ones hold data
    held: int = 0  # bytes in the memory of the ready ones
    start_seconds: float = UNKNOWN  # that a member takes to become ready

    @property
    def present(self) -> int:
        return self.ready + self.starting + self.stuck

    @property
    def usable(self) -> int:
        """Those that are ready or will be."""
        return self.ready + self.starting


@dataclass(frozen=True)
class Situation:
    """What `targets` decides about. Groups without `max` are not scaled, but serve demand."""

    groups: Sequence[Group]
    supply: Mapping[str, Supply]
    demand: Sequence[Demand] | None
    limits: Sequence[Limit] = ()


@dataclass(frozen=True)
class GroupTarget:
    """How many members a group should have, how many the demand needs now, and why."""

    target: int
    need: int
    reason: str
    message: str


@dataclass(frozen=True)
class GroupMemory:
    """What is remembered of a group."""

    target: int
    known_since: float  # what it needed since then is known
    window: tuple[tuple[float, int], ...] = ()  # (time, need), larger needs first: those that count in the last delay
    load: float = 0.0  # at the last look
    grown_at: float = -math.inf  # when the load grew last
    surge: tuple[float, float] | None = None  # (since, load at that time) while the need exceeds the target
    surplus_since: float | None = None
    scaled_down_at: float = -math.inf
    hesitates: bool = False  # the last members that left were soon missed
    is_blocked: bool = False
    blocked_until: float = -math.inf
    blocks: int = 0  # how often in a row


@dataclass(frozen=True)
class Waiting:
    """Since when nothing has changed for a demand that waits. `is_answered`: members were added for it."""

    count: int
    running: int
    since: float
    is_answered: bool = False


@dataclass(frozen=True)
class Memory:
    """What the loop keeps between two looks, in its memory only. Losing it can only delay a scale-down."""

    at: float = -math.inf
    groups: Mapping[str, GroupMemory] = field(default_factory=dict)
    waiting: Mapping[object, Waiting] = field(default_factory=dict)
    starts: Starts = field(default_factory=Starts)  # kept by the caller of `targets`


@dataclass(frozen=True)
class Scaling:
    """The decision. `next_look`: seconds."""

    groups: Mapping[str, GroupTarget]
    unservable: tuple[Unservable, ...]
    memory: Memory
    next_look: float


@dataclass(frozen=True)
class _Look:
    """One call of `targets`: the groups in the fleet's order, with their supply and memory."""

    fleet: Fleet
    supply: Sequence[Supply]
    memories: Sequence[GroupMemory]
    policy: Autoscale
    now: float
    limits: Sequence[Limit]
    gangs: Sequence[tuple[Part, ...]] = ()
    counts: Sequence[Sequence[int]] = ()  # how many of each part must run at once
    floors: Sequence[tuple[Part, ...]] = ()


@dataclass(frozen=True)
class _Plan:
    """Per group: the need; `at_once`: what it must have without waiting for the demand to settle; `wish`: what it
    would need if no group were blocked."""

    packing: Packing
    budget: Packing  # of the last members that were added: what the limits still allow
    need: Sequence[int]
    at_once: Sequence[int]
    wish: Sequence[int]
    left: Sequence[int]  # per gang: how many find no room
    waiting: Mapping[object, Waiting]


def targets(situation: Situation, policy: Autoscale, memory: Memory, now: float) -> Scaling:
    """How many members each group should have now. A pure function: `memory` is what the last call returned."""
    if not 0.0 <= now - memory.at <= MAX_GAP:
        memory = Memory()
    fleet = Fleet(situation.groups)
    supply = [situation.supply.get(group.name, Supply()) for group in fleet.groups]
    memories = [_recall(group, own, memory, policy, now) for group, own in zip(fleet.groups, supply, strict=True)]
    look = _Look(fleet, supply, memories, policy, now, situation.limits)
    if situation.demand is None:
        return _hold(look, memory)
    floors = fleet.arrange([demand for demand in situation.demand if demand.floor])
    gangs = fleet.arrange([demand for demand in situation.demand if not demand.floor and demand.count > 0])
    counts = [[_at_once(part, supply, policy) for part in gang] for gang in gangs]
    look = replace(look, gangs=gangs, counts=counts, floors=floors)
    plan = _plan(look, memory.waiting)
    look = replace(look, memories=[_remember(look, plan, index) for index in range(len(supply))])
    return _decide(look, plan)


def _bounds(group: Group) -> tuple[int, int]:
    """The smallest and the largest number of members."""
    return (group.replicas, group.replicas) if group.max is None else (min(group.min or 0, group.max), group.max)


def _recall(group: Group, supply: Supply, memory: Memory, policy: Autoscale, now: float) -> GroupMemory:
    """What is remembered of the group, and whether it is blocked now."""
    known = memory.groups.get(group.name) or GroupMemory(supply.present, known_since=now)
    if group.max is None:
        known = replace(known, target=group.replicas)
    if known.is_blocked:
        is_over = not supply.stuck and now >= known.blocked_until
        return replace(known, is_blocked=not is_over)
    patience = policy.patience_node_autoscaler if supply.has_node_autoscaler else policy.patience
    if supply.stuck and now - supply.stuck_since >= patience:
        pause = min(policy.max_pause, policy.pause * 2.0**known.blocks)
        return replace(known, is_blocked=True, blocked_until=now + pause, blocks=min(known.blocks + 1, MAX_DOUBLINGS))
    return replace(known, blocks=0) if now - known.blocked_until > policy.max_pause else known


def _hold(look: _Look, memory: Memory) -> Scaling:
    """Change nothing. The present number counts as needed, so that no scale-down follows at once."""
    groups, memories = {}, {}
    for group, known in zip(look.fleet.groups, look.memories, strict=True):
        groups[group.name] = GroupTarget(known.target, known.target, *reasons.SILENT)
        memories[group.name] = replace(known, window=((look.now, known.target),), surge=None, surplus_since=None)
    return Scaling(groups, (), Memory(look.now, memories, memory.waiting), LOOK)


def _at_once(part: Part, supply: Sequence[Supply], policy: Autoscale) -> int:
    """How many of the part must run at the same time for all to be done within the horizon. Short work is not to wait
    for much longer than it takes, unless members take so long to start that it would be done before."""
    demand, groups = part.demand, (*part.tiers[0], *part.tiers[1])
    if demand.seconds is None or demand.gang or not groups:
        return demand.count
    horizon = START_SHARE * supply[groups[0]].start_seconds
    if horizon <= policy.horizon:
        horizon = min(policy.horizon, max(SHORTEST, STRETCH * demand.seconds))
    return min(demand.count, math.ceil(demand.count * demand.seconds / horizon)) or 1


# The need


def _plan(look: _Look, waiting: Mapping[object, Waiting]) -> _Plan:
    blocked, free = _group_bounds(look, with_blocks=True), _group_bounds(look, with_blocks=False)
    if look.floors:
        floor, _ = _pack(look, blocked, look.floors, [[part.demand.count for part in gang] for gang in look.floors])
        blocked = [replace(own, minimum=max(own.minimum, n)) for own, n in zip(blocked, floor.members, strict=True)]
    packing, left = _pack(look, blocked, look.gangs, look.counts)
    need = list(map(max, packing.members, packing.minimum))
    wish = _pack(look, free, look.gangs, look.counts)[0].members if free != blocked else need
    waiting, stalled = _stalled(look, need, left, waiting)
    at_once, budget = packing.minimum, packing
    if stalled:  # only further members can serve it
        exempt = [replace(own, exempt=max(own.exempt, n)) for own, n in zip(blocked, need, strict=True)]
        in_use = [max(known.target, own.ready) for known, own in zip(look.memories, look.supply, strict=True)]
        counts = [[part.demand.count - part.demand.running for part in gang] for gang in stalled]
        budget, _ = _pack(look, exempt, stalled, counts, in_use)
        added = [n if n > used else 0 for n, used in zip(budget.members, in_use, strict=True)]
        at_once, need = list(map(max, at_once, added)), list(map(max, need, added))
    return _Plan(packing, budget, need, at_once, wish, left, waiting)


def _group_bounds(look: _Look, *, with_blocks: bool) -> list[Bounds]:
    bounds = []
    for group, own, known in zip(look.fleet.groups, look.supply, look.memories, strict=True):
        least, most = _bounds(group)
        exempt = max(own.present, known.target, least) + own.retiring
        minimum = max(least, _members_for_data(group, own, look.policy))
        if with_blocks and known.is_blocked:
            most = min(most, own.usable)
        bounds.append(Bounds(most, minimum, exempt, own.usable if own.stuck else math.inf))
    return bounds


def _members_for_data(group: Group, supply: Supply, policy: Autoscale) -> int:
    """Never so few that memory use is above `memory_high`; if it is, as many as bring it to `memory_aim`."""
    memory = group.resources.memory
    if not memory:
        return 0
    share = policy.memory_aim if supply.held > policy.memory_high * memory * supply.ready else policy.memory_high
    return math.ceil(supply.held / (share * memory))


def _pack(
    look: _Look, bounds: Sequence[Bounds], gangs: Sequence[tuple[Part, ...]], counts: Sequence[Sequence[int]],
    in_use: Sequence[int] = (),
) -> tuple[Packing, list[int]]:  # fmt: skip
    packing = Packing(look.fleet, bounds, look.limits, in_use)
    return packing, [packing.place(gang, numbers) for gang, numbers in zip(gangs, counts, strict=True)]


def _stalled(
    look: _Look, need: Sequence[int], left: Sequence[int], before: Mapping[object, Waiting]
) -> tuple[dict[object, Waiting], list[tuple[Part, ...]]]:
    """Gangs that wait and for which nothing has changed for long, although every group that may serve them has what it
    needs: running work leaves room, but nowhere enough in one piece. Each is answered once."""
    waiting: dict[object, Waiting] = {}
    stalled = []
    for gang, counts, missing in zip(look.gangs, look.counts, left, strict=True):
        demand, key = gang[0].demand, tuple((part.needs, part.demand.labels, part.demand.gang) for part in gang)
        if all(part.demand.running >= count for part, count in zip(gang, counts, strict=True)):
            continue  # the rest is to run after them
        known = before.get(key)
        if known is None or (known.count, known.running) != (demand.count, demand.running):
            known = Waiting(demand.count, demand.running, look.now)
        is_served = not missing and all(
            need[index] <= look.supply[index].ready for part in gang for tier in part.tiers for index in tier
        )
        is_late = look.now - known.since >= max(STALLED, 2 * (demand.seconds or 0.0))
        if is_served and is_late and not known.is_answered:
            known = replace(known, is_answered=True)
            stalled.append(gang)
        waiting[key] = known
    return waiting, stalled


# The decision


def _remember(look: _Look, plan: _Plan, index: int) -> GroupMemory:
    """The memory of a group with this look's need and load."""
    known, need, load = look.memories[index], plan.need[index], plan.packing.load[index]
    start = look.now - _delay(look, known)
    window = tuple((at, value) for at, value in known.window if at > start and value > need)
    grown_at = look.now if load > known.load + ROUNDING else known.grown_at
    return replace(known, window=(*window, (look.now, need)), load=load, grown_at=grown_at)


def _decide(look: _Look, plan: _Plan) -> Scaling:
    overdue = [_is_overdue(look, known) for known in look.memories]
    unplaced, unservable, has_waiting = _unplaced(look, plan)
    is_pressed = has_waiting or any(overdue)
    keep = [0] * len(overdue)
    if any(overdue):  # what has no place on other members that are ready must stay
        ready = [Bounds(own.ready, exempt=own.ready) for own in look.supply]
        keep = _pack(look, ready, look.gangs, look.counts)[0].members
    groups: dict[str, GroupTarget] = {}
    memories: dict[str, GroupMemory] = {}
    for index, group in enumerate(look.fleet.groups):
        known = look.memories[index]
        changed = known if group.max is None else _scale(look, plan, index, keep[index], is_pressed)
        memories[group.name] = changed
        facts = reasons.Facts(
            group,
            before=known.target,
            target=changed.target,
            need=plan.need[index],
            peak=known.window[0][1],
            ready=look.supply[index].ready,
            is_overdue=overdue[index],
            blocked=look.supply[index].stuck_reason if changed.is_blocked else None,
            limit=plan.budget.limited.get(index) or plan.packing.limited.get(index, ""),
            has_no_room=bool(unplaced >> index & 1),
            serves=plan.packing.serves.get(index),
        )
        groups[group.name] = GroupTarget(changed.target, plan.need[index], *reasons.explain(facts, look.policy))
    is_settling = any(plan.need[i] > memories[group.name].target for i, group in enumerate(look.fleet.groups))
    next_look = look.policy.settle if is_settling and is_pressed else LOOK
    return Scaling(groups, unservable, Memory(look.now, memories, plan.waiting), next_look)


def _is_overdue(look: _Look, known: GroupMemory) -> bool:
    """It has more members than were needed in the whole delay."""
    return known.window[0][1] < known.target and look.now - known.known_since >= look.policy.scale_down_delay


def _delay(look: _Look, known: GroupMemory) -> float:
    return look.policy.scale_down_delay * (HESITATION if known.hesitates else 1.0)


def _scale(look: _Look, plan: _Plan, index: int, keep: int, is_pressed: bool) -> GroupMemory:
    """The group's memory with its new target."""
    known, own, need = look.memories[index], look.supply[index], plan.need[index]
    least, most = _bounds(look.fleet.groups[index])
    target = known.target
    if known.is_blocked:
        # The probe is one of those that start until the place reports that it cannot.
        probe = own.ready + max(1, own.starting)
        target = min(probe, plan.wish[index]) if plan.wish[index] > own.ready else min(target, own.usable)
        least = max(least, min(target, most)) if plan.wish[index] > own.ready else least  # the probe stays
    target = min(max(target, plan.at_once[index], least), most)
    surge = surplus_since = None
    if need > target and is_pressed:
        target, surge = _grow(look, plan, index, target)
    elif _is_overdue(look, known):
        target, surplus_since = _shrink(look, index, max(keep, plan.at_once[index], least), target)
    window, scaled_down_at, hesitates = known.window, known.scaled_down_at, known.hesitates
    if target > known.target:  # what was asked for is kept for a whole delay
        if scaled_down_at > -math.inf:
            hesitates = look.now - scaled_down_at < look.policy.scale_down_delay
            scaled_down_at = -math.inf
        window = (*((at, value) for at, value in window if value > target), (look.now, target))
    elif target < known.target:
        scaled_down_at = look.now
    return replace(
        known,
        target=target,
        window=window,
        surge=surge,
        surplus_since=surplus_since,
        scaled_down_at=scaled_down_at,
        hesitates=hesitates,
    )


def _grow(look: _Look, plan: _Plan, index: int, target: int) -> tuple[int, tuple[float, float] | None]:
    """The new target, and the surge to remember. Demand that has not grown for a moment is complete. Demand that still
    grows after SURGE seconds will go on to do so while members start: ask for more than the need, once."""
    known, own, need, now = look.memories[index], look.supply[index], plan.need[index], look.now
    settle = look.policy.settle * (1 if target == 0 else 2)
    since, first = known.surge or (now, known.load)
    starting = max(0, target - own.ready - own.stuck)
    if now - since >= settle and now - known.grown_at >= settle:
        return need, None
    if starting and need <= target + STARTING_SHARE * starting:
        return target, None
    if now - since < SURGE:
        return target, (since, first)
    ahead = min(AHEAD, own.start_seconds / 2) if need > 3 * target else 0.0
    extra = math.ceil(ahead * max(0.0, known.load - first) / (now - since))
    _, most = _bounds(look.fleet.groups[index])
    return need + plan.budget.charge(index, min(extra, most - need)), None


def _shrink(look: _Look, index: int, least: int, target: int) -> tuple[int, float | None]:
    """The new target, and since when there is a surplus. Members leave together: a few wait for others that may follow
    soon, unless all that may ever leave can leave now."""
    known, own, policy, now = look.memories[index], look.supply[index], look.policy, look.now
    low = max(least, known.window[0][1], own.holding - math.ceil(policy.share * own.holding))
    if own.removable is not None:
        low = max(low, min(target, own.ready) - own.removable)
    if low >= target:
        return target, None
    since = now if known.surplus_since is None else known.surplus_since
    soon = now + min(policy.step, policy.scale_down_delay) - policy.scale_down_delay
    later = max((need for at, need in known.window if at > soon), default=0)
    wait = GATHER if own.removable is not None else policy.step if later < low else 0.0
    is_due = now - since >= wait and now - known.scaled_down_at >= policy.step
    if low == _bounds(look.fleet.groups[index])[0] or (is_due and target - low >= WORTHWHILE * target):
        return low, None
    return target, since


def _unplaced(look: _Look, plan: _Plan) -> tuple[int, tuple[Unservable, ...], bool]:
    """The groups for which there is more work than room, as a set; the demand that they can never serve; and whether
    other work waits."""
    groups, unservable, has_waiting = 0, [], False
    most = [Bounds(_bounds(group)[1]) for group in look.fleet.groups]
    for gang, counts, left in zip(look.gangs, look.counts, plan.left, strict=True):
        is_possible = not left or any(most[index].maximum for part in gang for tier in part.tiers for index in tier)
        if left and gang[0].demand.gang:
            is_possible = Packing(look.fleet, most).place(gang, counts) == 0
        if not is_possible:
            unservable += [Unservable(part.demand, reasons.why_never(look.fleet, part)) for part in gang]
            continue
        has_waiting = has_waiting or any(part.demand.count > part.demand.running for part in gang)
        for part in gang if left else ():
            groups |= part.groups
    return groups, tuple(unservable), has_waiting
