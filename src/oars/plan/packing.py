"""Pack demand into members of groups: how many members of each group it needs. Pure.

Everything is counted, nothing is listed one by one: a million equal tasks cost as much as one. Members of a group with
the same free room are one entry, and placing a demand splits an entry in at most three: members that are full, one that
is partly filled, and the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from oars.model import GROUP_LABEL, Demand, Group, LabelRule, Limit, Placement

MEMBERS = "members"  # the resource of a Limit that counts members
ROUNDING = 1e-9
MANY = 1e9
MAX_ENTRIES = 16  # room beyond them stays unused, so the need is too large rather than too small

Room = Mapping[str, float]
Needs = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Bounds:
    """How many members a group may have. `minimum`: the number that exists even if no work needs it. `exempt`: the
    number that limits do not apply to, because these members exist already or the user demands them. `reliable`: the
    number that is known to start; only work that must run in this group counts on further ones."""

    maximum: int
    minimum: int = 0
    exempt: int = 0
    reliable: float = math.inf


@dataclass(frozen=True)
class Part:
    """A demand and the groups that can serve it, as indexes into Fleet.groups: those without a GPU, then the others.
    Work that needs no GPU uses the latter last."""

    demand: Demand
    needs: Needs
    tiers: tuple[tuple[int, ...], tuple[int, ...]]
    groups: int  # the same as a set: bit i stands for group i
    is_spread: bool


def offers(group: Group) -> Room:
    """What one member has for work."""
    own = group.resources
    memory = math.inf if own.memory is None else own.memory
    return group.offers or {"cpu": own.cpu, "gpu": own.gpu, "memory": memory}


class Fleet:
    """The groups in order of preference: higher priority first, then smaller members."""

    def __init__(self, groups: Sequence[Group]) -> None:
        rooms = {group.name: offers(group) for group in groups}
        self.largest: dict[str, float] = {}  # resource → what the largest member offers
        for room in rooms.values():
            for name, amount in room.items():
                self.largest[name] = max(amount, self.largest.get(name, 0.0))

        def preference(group: Group) -> tuple[int, float, str]:
            shares = (self._share(name, amount) for name, amount in rooms[group.name].items())
            return -group.priority, sum(shares), group.name

        self.groups = tuple(sorted(groups, key=preference))
        self.rooms = tuple(rooms[group.name] for group in self.groups)
        self._gpu = sum(1 << i for i, room in enumerate(self.rooms) if room.get("gpu"))
        self._sets: dict[object, int] = {}  # a need or a rule → the groups that have it
        self._indexes: dict[int, tuple[int, ...]] = {}  # the same sets as indexes

    def arrange(self, demands: Sequence[Demand]) -> list[tuple[Part, ...]]:
        """The demands in the order in which to pack them: gangs first, then those with labels, then those that need
        many kinds of resources or much of one. The parts of a gang stay together."""
        gangs: dict[str, list[Demand]] = {}
        for number, demand in enumerate(demands):
            gangs.setdefault(demand.gang or f"#{number}", []).append(demand)
        merged = ([_together(gang)] if gang[0].placement is Placement.PACK else gang for gang in gangs.values())
        return sorted((tuple(map(self._part, gang)) for gang in merged), key=self._hardness)

    def _hardness(self, gang: tuple[Part, ...]) -> tuple[bool, bool, int, float]:
        first = gang[0].demand
        shares = [self._share(name, amount) for part in gang for name, amount in part.needs]
        return not first.gang, not first.labels, -len(shares), -max(shares, default=0.0)

    def _share(self, name: str, amount: float) -> float:
        largest = self.largest.get(name, 0.0)
        return amount / largest if 0.0 < largest < math.inf else 0.0

    def _part(self, demand: Demand) -> Part:
        needs = tuple((name, amount) for name, amount in demand.needs.items() if amount > 0)
        found = (1 << len(self.groups)) - 1
        for need in needs:
            found &= self._sets[need] if need in self._sets else self._offering(need)
        for rule in demand.labels:
            found &= self._sets[rule] if rule in self._sets else self._labelled(rule)
        tiers = self._indexes_of(found & ~self._gpu), self._indexes_of(found & self._gpu)
        return Part(demand, needs, tiers, found, demand.placement is Placement.SPREAD)

    def _offering(self, need: tuple[str, float]) -> int:
        name, amount = need
        found = sum(1 << i for i, room in enumerate(self.rooms) if room.get(name, 0.0) + ROUNDING >= amount)
        return self._sets.setdefault(need, found)

    def _labelled(self, rule: LabelRule) -> int:
        labels = ({**group.labels, GROUP_LABEL: group.name} for group in self.groups)
        found = sum(1 << i for i, own in enumerate(labels) if (own.get(rule.key) in rule.values) is not rule.negated)
        return self._sets.setdefault(rule, found)

    def _indexes_of(self, groups: int) -> tuple[int, ...]:
        if groups not in self._indexes:
            self._indexes[groups] = tuple(index for index in range(len(self.groups)) if groups >> index & 1)
        return self._indexes[groups]


def _together(gang: Sequence[Demand]) -> Demand:
    """One demand for all parts of a gang that must run on one member."""
    needs: dict[str, float] = {}
    for part in gang:
        for name, amount in part.needs.items():
            needs[name] = needs.get(name, 0.0) + amount * part.count
    labels = tuple(rule for part in gang for rule in part.labels)
    running = int(all(part.running for part in gang))
    return replace(gang[0], needs=needs, count=1, running=running, labels=labels, placement=Placement.ANY)


class _Entry(NamedTuple):
    """Members of a group that have the same room left. `gang`: they have a part of this gang, which must be spread.
    `is_reliable`: see Bounds."""

    group: int
    members: int
    room: Room
    gang: str = ""
    is_reliable: bool = True


class Packing:
    """Members of the groups, filled with one gang after another. `in_use`: per group, how many are full already."""

    def __init__(
        self, fleet: Fleet, bounds: Sequence[Bounds], limits: Sequence[Limit] = (), in_use: Sequence[int] = ()
    ) -> None:
        self.members = list(in_use) or [0] * len(bounds)  # per group: how many have something on them
        self.load = [0.0] * len(bounds)  # what was placed, in members; not rounded up
        self.serves: dict[int, tuple[int, Part]] = {}  # group → what most of its work is, and how much
        self.limited: dict[int, str] = {}  # group → message of the limit that keeps it from growing
        self._fleet = fleet
        self._maximum = [bound.maximum for bound in bounds]
        self._exempt = [bound.exempt for bound in bounds]
        self._reliable = [bound.reliable for bound in bounds]
        self._limits = [(limit.message, [_cost(group, limit) for group in fleet.groups]) for limit in limits]
        self._left = [
            limit.amount - sum(cost * exempt for cost, exempt in zip(costs, self._exempt, strict=True))
            for limit, (_, costs) in zip(limits, self._limits, strict=True)
        ]
        self._entries: list[_Entry] = []
        self.minimum = [min(bound.minimum, bound.maximum) for bound in bounds]  # as the limits allow
        for index, minimum in enumerate(self.minimum):
            if minimum > self._exempt[index]:
                self._exempt[index] += self.charge(index, minimum - self._exempt[index])
                self.minimum[index] = self._exempt[index]

    def place(self, gang: Sequence[Part], counts: Sequence[int]) -> int:
        """Place `counts` of the parts. Returns the number that finds no room. A gang is placed whole or not at all."""
        if not gang[0].demand.gang:
            return self._place(gang[0], counts[0])
        before = list(self.members), list(self.load), dict(self.serves), list(self._left), list(self._entries)
        left = sum(self._place(part, count) for part, count in zip(gang, counts, strict=True))
        if left:
            self.members, self.load, self.serves, self._left, self._entries = before
        return sum(counts) if left else 0

    def _place(self, part: Part, count: int) -> int:
        """Use the room of members that have something on them, then the minimum of each group, then further ones."""
        count = self._use_room(part, count)
        for tier in part.tiers:
            for limit in (self.minimum, self._maximum):
                for index in tier:
                    if count and self.members[index] < limit[index]:
                        count = self._open(part, index, limit[index], count)
        del self._entries[MAX_ENTRIES:]
        return count

    def _use_room(self, part: Part, count: int) -> int:
        entries, self._entries = self._entries, []
        for position, entry in enumerate(entries):
            if not count:
                self._entries += entries[position:]
                break
            is_usable = part.groups >> entry.group & 1 and not (part.is_spread and part.demand.gang == entry.gang)
            is_usable = is_usable and (entry.is_reliable or not part.tiers[0] or entry.group in part.tiers[0])
            if is_usable and (each := _fit(entry.room, part.needs, 1 if part.is_spread else count)):
                count = self._fill(entry, part, each, count)
            else:
                self._entries.append(entry)
        return count

    def _open(self, part: Part, index: int, maximum: int, count: int) -> int:
        """Use further members of the group, up to `maximum` in all."""
        room, present = self._fleet.rooms[index], self.members[index]
        each = 1 if part.is_spread else _fit(room, part.needs, count)
        wanted = min(math.ceil(count / each), maximum - present)
        free = max(0, self._exempt[index] - present)
        if wanted > free:
            wanted = free + self.charge(index, wanted - free)
        self.members[index] += wanted
        reliable = int(max(0, min(wanted, self._reliable[index] - present)))
        if reliable:
            count = self._fill(_Entry(index, reliable, room), part, each, count)
        if wanted > reliable:
            count = self._fill(_Entry(index, wanted - reliable, room, is_reliable=False), part, each, count)
        return count

    def charge(self, index: int, wanted: int) -> int:
        """How many more members the limits allow, at most `wanted`; they are charged to the limits."""
        for left, (message, costs) in zip(self._left, self._limits, strict=True):
            if costs[index] and left < wanted * costs[index] - ROUNDING:
                wanted = max(0, int(left / costs[index] + ROUNDING))
                self.limited[index] = message
        self._left = [left - wanted * costs[index] for left, (_, costs) in zip(self._left, self._limits, strict=True)]
        return wanted

    def _fill(self, entry: _Entry, part: Part, each: int, count: int) -> int:
        """Put `each` on each of these members; the number that finds no room. The entry is split, and kept."""
        group, members, room, gang, is_reliable = entry
        full = min(members, count // each)
        rest = min(count - full * each, each) if full < members else 0
        used = part.demand.gang if part.is_spread else gang
        if full:
            self._entries.append(_Entry(group, full, _less(room, part.needs, each), used, is_reliable))
        if rest:
            self._entries.append(_Entry(group, 1, _less(room, part.needs, rest), used, is_reliable))
        if members > full + (rest > 0):
            self._entries.append(_Entry(group, members - full - (rest > 0), room, gang, is_reliable))
        placed = full * each + rest
        self.load[group] += placed / _fit(self._fleet.rooms[group], part.needs, MANY)
        if placed > self.serves.get(group, (0,))[0]:
            self.serves[group] = placed, part
        return count - placed


def _fit(room: Room, needs: Needs, most: float) -> int:
    """How many of these fit into the room, at most `most`."""
    for name, amount in needs:
        found = room.get(name, 0.0) / amount + ROUNDING
        if found < most:
            most = found
    return int(most)


def _less(room: Room, needs: Needs, count: int) -> Room:
    left = dict(room)
    for name, amount in needs:
        left[name] -= count * amount
    return left


def _cost(group: Group, limit: Limit) -> float:
    """What one member takes of a limit."""
    if limit.groups is not None and group.name not in limit.groups:
        return 0.0
    own = group.resources
    costs = {MEMBERS: 1.0, "cpu": own.cpu, "gpu": float(own.gpu), "memory": float(own.memory or 0)}
    return costs.get(limit.resource, offers(group).get(limit.resource, 0.0))
