"""What autoscaling guarantees for any demand: thirteen invariants."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from oars.model import (
    HEAD,
    Autoscale,
    Demand,
    Desired,
    Drain,
    Group,
    GroupScaling,
    Limit,
    LoopState,
    Member,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Placement,
    Process,
    Remove,
    Resources,
    Role,
    View,
)
from oars.plan.autoscale import Memory, Scaling, Situation, Supply, targets
from oars.plan.decide import decide, with_drain_reply
from oars.plan.scale import scale
from tests.unit.plan.clusters import desired

POLICY = Autoscale(enabled=True)
DELAY = POLICY.scale_down_delay
ROOMS = ({"cpu": 4.0}, {"cpu": 4.0, "gpu": 1.0}, {"cpu": 16.0}, {"cpu": 2.0, "tape": 8.0})
NEEDS: tuple[dict[str, float], ...] = (
    {"cpu": 1.0},
    {"cpu": 3.0},
    {"cpu": 1.0, "gpu": 1.0},
    {"gpu": 1.0},
    {"cpu": 20.0},
    {"tape": 4.0},
    {},
)
SECONDS = (None, 0.1, 5.0, 100.0)
START = 3.0
MANY = 1000  # pieces of work without needs that run on one member

Look = Sequence[Demand] | None


def group(kind: int, least: int = 0, most: int = 20, priority: int = 0) -> Group:
    room = ROOMS[kind]
    own = Resources(room["cpu"], gpu=int(room.get("gpu", 0)))
    return Group(f"g{kind}", Role.WORKER, 0, Process(()), own, min=least, max=most, priority=priority, offers=room)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Group, ...]:
    kinds = draw(st.lists(st.sampled_from(range(len(ROOMS))), min_size=1, max_size=3, unique=True))
    made = []
    for kind in kinds:
        least = draw(st.integers(0, 3))
        made.append(group(kind, least, least + draw(st.integers(0, 20)), draw(st.integers(0, 1))))
    return tuple(made)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    count = draw(st.integers(1, 60))
    gang = draw(st.sampled_from(("", "", "a", "b")))
    placement = draw(st.sampled_from(Placement)) if gang else Placement.ANY
    running = 0 if gang else draw(st.integers(0, count))
    return Demand(
        draw(st.sampled_from(NEEDS)),
        count,
        running,
        draw(st.sampled_from(SECONDS)),
        gang=gang and f"{gang}{draw(st.integers(0, 9**9))}",
        placement=placement,
    )


quick = settings(deadline=None, max_examples=150)
looks = st.lists(demands(), max_size=4)


@dataclass
class Scenario:
    """Members of each group: ready, and seconds until the others are. `places`: for how many there is room."""

    groups: Sequence[Group]
    places: dict[str, int] = field(default_factory=dict)
    limits: Sequence[Limit] = ()
    memory: Memory = field(default_factory=Memory)
    now: float = 1000.0
    ready: dict[str, int] = field(default_factory=dict)
    starting: dict[str, list[float]] = field(default_factory=dict)
    stuck_since: dict[str, float] = field(default_factory=dict)

    def supply(self) -> dict[str, Supply]:
        found = {}
        for each in self.groups:
            name = each.name
            ready, starting = self.ready.setdefault(name, 0), self.starting.setdefault(name, [])
            room = self.places.get(name, 10**6)
            usable = min(len(starting), max(0, room - ready))
            stuck = len(starting) - usable
            if not stuck:
                self.stuck_since.pop(name, None)
            since = self.stuck_since.setdefault(name, self.now) if stuck else 0.0
            found[name] = Supply(ready, usable, stuck, since, "no node has room" if stuck else "")
        return found

    def running(self, demand: Demand) -> int:
        """How many of these pieces of work the ready members have room for; of a gang all or none."""
        room = sum(self.ready.get(each.name, 0) * fit(each, demand) for each in self.groups)
        return min(demand.count, room) if room >= demand.count or not demand.gang else 0

    def look(self, demand: Look) -> Scaling:
        if demand is not None:
            demand = [replace(each, running=self.running(each)) for each in demand]
        result = targets(Situation(self.groups, self.supply(), demand, self.limits), POLICY, self.memory, self.now)
        self.memory = result.memory
        for name, each in result.groups.items():
            starting = self.starting[name]
            missing = each.target - self.ready[name] - len(starting)
            starting += [START] * missing
            for _ in range(-missing):
                if starting:
                    starting.pop()
                else:
                    self.ready[name] -= 1
        return result

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, starting in self.starting.items():
            left = [each - seconds for each in starting]
            come = min(sum(each <= 0 for each in left), max(0, self.places.get(name, 10**6) - self.ready[name]))
            self.ready[name] += come
            self.starting[name] = sorted(left)[come:]

    def run(self, demand: Sequence[Look]) -> Iterator[Scaling]:
        """One look per second, and more while the demand settles."""
        for each in demand:
            end = self.now + 1.0
            while self.now < end:
                result = self.look(each)
                yield result
                self.wait(min(result.next_look, end - self.now))


def fit(group: Group, demand: Demand) -> int:
    return int(min((group.offers.get(name, 0.0) / amount for name, amount in demand.needs.items()), default=MANY))


def numbers(result: Scaling) -> dict[str, int]:
    return {name: each.target for name, each in result.groups.items()}


def history(scenario: Scenario, demand: Sequence[Look], name: str) -> list[tuple[float, int]]:
    return [(scenario.now, result.groups[name].target) for result in scenario.run(demand)]


def directions(found: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """(when, 1 or -1) of each change."""
    return [(at, 1 if after > before else -1) for (_, before), (at, after) in pairwise(found) if after != before]


@quick
@given(fleets(), st.lists(st.none() | looks, min_size=1, max_size=30), st.integers(1, 200))
def test_1_numbers_are_within_their_bounds_and_the_limits(
    groups: tuple[Group, ...], demand: list[Look], processors: int
) -> None:
    limit = Limit("this machine is full", "cpu", processors)
    least = sum(each.resources.cpu * (each.min or 0) for each in groups)
    scenario = Scenario(groups, limits=(limit,))
    has_reported = False  # until then nothing changes, and nothing exists
    for reported in demand:
        has_reported = has_reported or reported is not None
        for result in scenario.run([reported]):
            for each in groups:
                assert has_reported * (each.min or 0) <= numbers(result)[each.name] <= (each.max or 0)
            taken = sum(each.resources.cpu * numbers(result)[each.name] for each in groups)
            assert taken <= max(processors, least)


@quick
@given(fleets(), demands(), st.integers(1, 50))
def test_2_more_of_the_same_never_lowers_a_number(groups: tuple[Group, ...], demand: Demand, more: int) -> None:
    if demand.gang:
        demand = replace(demand, gang="", placement=Placement.ANY)
    larger = replace(demand, count=demand.count + more)
    before, after = ([*Scenario(groups).run([[each]] * 4)][-1] for each in (demand, larger))
    assert all(numbers(after)[name] >= number for name, number in numbers(before).items())


@quick
@given(fleets(), looks, st.integers(0, 5))
def test_3_same_situation_gives_the_same_numbers(groups: tuple[Group, ...], demand: list[Demand], looks: int) -> None:
    scenario = Scenario(groups)
    for _ in scenario.run([demand] * (looks + 1)):
        pass
    situation = Situation(groups, scenario.supply(), demand)
    once, twice = (targets(situation, POLICY, scenario.memory, scenario.now) for _ in range(2))
    assert once == twice
    again = targets(situation, POLICY, once.memory, scenario.now)
    assert numbers(again) == numbers(once), "a second look at the same time writes nothing"


@quick
@given(fleets(), looks)
def test_4_constant_demand_settles(groups: tuple[Group, ...], demand: list[Demand]) -> None:
    """Up to the need; and once more for work that finds no member with enough room in one piece."""
    rows = [numbers(result) for result in Scenario(groups).run([demand] * 200)]
    for each in groups:
        assert sum(before[each.name] != after[each.name] for before, after in pairwise(rows)) <= 2


@quick
@given(st.integers(1, 60), st.integers(1, 25), st.integers(1, 25), st.sampled_from(SECONDS))
def test_5_periodic_demand_does_not_shrink_a_group(count: int, on: int, off: int, seconds: float | None) -> None:
    scenario = Scenario((group(0),))
    waves: Sequence[Look] = ([[Demand({"cpu": 1.0}, count, seconds=seconds)]] * on + [[]] * off) * 6
    assert all(direction > 0 for _, direction in directions(history(scenario, waves, "g0")))


@quick
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 90)), min_size=2, max_size=6))
def test_5_at_most_one_reversal_per_delay(waves: list[tuple[int, int]]) -> None:
    demand: Sequence[Look] = [
        [Demand({"cpu": 1.0}, count)] if count else [] for count, length in waves for _ in range(length)
    ]
    changes = directions(history(Scenario((group(0),)), demand, "g0"))
    for (grown, before), (at, after) in pairwise(changes):
        # Demand may return at once after a scale-down; a group that has grown keeps its members for the delay.
        assert not before > 0 > after or at - grown >= DELAY


@quick
@given(fleets(), looks)
def test_6_gpu_work_grows_gpu_groups_only_and_cpu_work_uses_them_last(
    groups: tuple[Group, ...], demand: list[Demand]
) -> None:
    groups = tuple(replace(each, min=0) for each in groups)
    for_gpu = [replace(each, needs={"cpu": 1.0, "gpu": 1.0}) for each in demand]
    *_, result = Scenario(groups).run([for_gpu] * 4)
    assert not any(numbers(result)[each.name] for each in groups if "gpu" not in each.offers)
    for_cpu = [replace(each, needs={"cpu": 1.0}, gang="", placement=Placement.ANY) for each in demand]
    *_, result = Scenario(groups).run([for_cpu] * 4)
    if any(numbers(result)[each.name] for each in groups if "gpu" in each.offers):
        assert all(numbers(result)[each.name] == each.max for each in groups if "gpu" not in each.offers)


IMPOSSIBLE = (
    Demand({"moon": 1.0}, 7),
    *(Demand({"cpu": 1.0}, 10_000, gang="never", placement=placement) for placement in Placement),
)


@quick
@given(fleets(), looks, looks, st.integers(0, 10), st.sampled_from(IMPOSSIBLE))
def test_7_demand_that_fits_nowhere_changes_nothing_and_is_named(
    groups: tuple[Group, ...], first: list[Demand], then: list[Demand], ready: int, impossible: Demand
) -> None:
    """Neither with ready members, nor when tasks end and others begin."""

    def results(more: Sequence[Demand]) -> list[Scaling]:
        scenario = Scenario(groups, ready={each.name: min(ready, each.max or 0) for each in groups})
        return [*scenario.run([[*first, *more]] * 5 + [[*then, *more]] * 20)]

    found = results([impossible])
    assert [each.groups for each in found] == [each.groups for each in results([])]
    for each in found:
        assert any(other.demand.needs.keys() == impossible.needs.keys() and other.message for other in each.unservable)


def test_7_running_work_moves_to_no_other_group_because_impossible_work_waits() -> None:
    """A task that needs no GPU runs on the only ready member, which has one."""
    groups = (group(0), group(1))
    for impossible in ((), *([each] for each in IMPOSSIBLE)):
        for result in Scenario(groups, ready={"g1": 1}).run([[Demand({"cpu": 1.0}, 1), *impossible]] * 20):
            assert numbers(result) == {"g0": 0, "g1": 1}


@quick
@given(st.integers(4, 80), st.integers(0, 5))
def test_8_blocked_group_keeps_one_probe_and_others_go_on(count: int, places: int) -> None:
    scenario = Scenario((group(1, most=100), group(2, most=50)), places={"g1": places})
    demand = [Demand({"gpu": 1.0}, count), Demand({"cpu": 1.0}, 40)]
    for result in scenario.run([demand] * 400):
        assert numbers(result)["g1"] <= count
        if scenario.now > 1000.0 + POLICY.patience + 10 and places < count:
            assert len(scenario.starting["g1"]) <= 1
    assert scenario.ready["g1"] == min(count, places) and scenario.ready["g2"] >= 1
    if places < count:
        assert result.groups["g1"].reason == "Blocked" and "no node has room" in result.groups["g1"].message


@quick
@given(fleets(), st.integers(2, 6), st.sampled_from(Placement))
def test_9_gang_gets_all_of_its_members_or_none(groups: tuple[Group, ...], count: int, placement: Placement) -> None:
    groups = tuple(replace(each, min=0) for each in groups)
    gang = Demand({"cpu": 3.0}, count, gang="a", placement=placement)
    *_, result = Scenario(groups).run([[gang]] * 4)
    total = sum(numbers(result).values())
    room = {each.name: fit(each, gang) for each in groups}  # of one member
    if placement is Placement.ANY:
        largest = sum(room[each.name] * (each.max or 0) for each in groups)
        assert bool(result.unservable) == (largest < count), "it is served if there is room for it"
    if result.unservable:
        assert total == 0
    elif placement is Placement.SPREAD:
        assert total == count
    elif placement is Placement.PACK:
        assert [number for name, number in numbers(result).items() if room[name] >= count and number] == [total] == [1]
    else:
        found = sorted(room[name] for name, number in numbers(result).items() for _ in range(number))
        assert sum(found) >= count > sum(found[:-1]), "room for all, and the last member is needed"


@quick
@given(fleets(), st.integers(0, 30), st.lists(looks, max_size=3))
def test_10_silent_engine_changes_nothing(groups: tuple[Group, ...], ready: int, before: list[Look]) -> None:
    scenario = Scenario(groups, ready={each.name: ready for each in groups})
    known = [numbers(result) for result in scenario.run(before)]
    kept = known[-1] if known else {each.name: ready for each in groups}
    assert all(numbers(result) == kept for result in scenario.run([None] * 100))


@quick
@given(st.integers(1, 100), st.integers(1, 59), st.sampled_from(SECONDS))
def test_11_lost_memory_only_delays_a_scale_down(ready: int, after: int, seconds: float | None) -> None:
    scenario = Scenario((group(0, most=100),), ready={"g0": ready})
    demand = [Demand({"cpu": 1.0}, 1, 1, seconds)]
    for _ in scenario.run([demand] * after):
        pass
    scenario.memory = Memory()
    assert all(numbers(result)["g0"] == ready for result in scenario.run([demand] * int(DELAY - 1)))


def cluster(ready: int, moves_data: bool) -> tuple[Desired, Observed]:
    """With this number of workers, as autoscaling chose it."""
    wanted = desired(0)
    (workers,) = wanted.shape.workers
    workers = replace(workers, min=0, max=100)
    shape = replace(wanted.shape, workers=(workers,), moves_data=moves_data)
    wanted = replace(wanted, shape=shape, autoscale=POLICY)
    head = Member(HEAD, Role.HEAD, HEAD, MemberState.RUNNING, "h")
    members = [
        Member(MemberId(f"{workers.name}-{number}"), Role.WORKER, workers.name, MemberState.RUNNING, "i")
        for number in range(ready)
    ]
    state = LoopState(head="h", scaling={workers.name: GroupScaling(ready, 0, 0, 100)})
    return wanted, Observed((head, *members), state)


reports = st.lists(
    st.builds(
        MemberView,
        ready=st.just(True),
        idle=st.sampled_from((0.0, 10.0, 1000.0)),
        held=st.integers(0, 10),
        pinned=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@quick
@given(reports, st.booleans())
def test_12_only_workers_that_may_leave_are_chosen(views: list[MemberView], moves_data: bool) -> None:
    wanted, observed = cluster(len(views), moves_data)
    ids = [member.id for member in observed.members[1:]]
    view = View(up=True, members=dict(zip(ids, views, strict=True)), demand=())
    memory, now = Memory(), 1000.0
    for _ in range(200):
        scaled = scale(wanted, observed, view, memory, now)
        decision = decide(scaled.desired, replace(observed, state=scaled.state), view, now)
        observed, memory, now = replace(observed, state=decision.state), scaled.memory, now + 1.0
    may_leave = [name for name, each in view.members.items() if not each.pinned and (moves_data or each.idle >= DELAY)]
    assert scaled.desired.shape.workers[0].replicas == len(views) - len(may_leave)
    chosen = decision.state.retiring
    assert set(chosen) == set(may_leave) and not any(each.drained for each in chosen.values())
    assert not any(type(step).__name__ == "Remove" for step in decision.steps), "removed before they are drained"


@quick
@given(st.integers(1, 8), st.lists(st.sets(st.integers(0, 7), min_size=1), max_size=8), st.booleans(), st.booleans())
def test_12_last_holder_of_a_result_does_not_leave(
    ready: int, held_by: list[set[int]], moves_data: bool, is_stale: bool
) -> None:
    """Workers that drain hand over what only they hold, or refuse. `is_stale`: reports say that holders are idle."""
    wanted, observed = cluster(ready, moves_data)
    ids = [member.id for member in observed.members[1:]]
    results = [{ids[number % ready] for number in numbers} for numbers in held_by]
    memory, now = Memory(), 1000.0
    for _ in range(60):
        drained = {name for name, each in observed.state.retiring.items() if each.drained}  # the engine has let them go
        serving = [member.id for member in observed.members[1:] if member.id not in drained]
        held = {name: sum(name in each for each in results) for name in serving}
        idle = {name: 0.0 if count and not (moves_data or is_stale) else 1000.0 for name, count in held.items()}
        view = View(
            up=True, members={name: MemberView(True, idle=idle[name], held=held[name]) for name in held}, demand=()
        )
        scaled = scale(wanted, observed, view, memory, now)
        decision = decide(scaled.desired, replace(observed, state=scaled.state), view, now)
        state, gone = decision.state, set[MemberId]()
        for step in decision.steps:
            if isinstance(step, Drain):
                for name in step.members:
                    waits_for = hand_over(name, results, held.keys() - state.retiring.keys() if moves_data else ())
                    state = with_drain_reply(state, name, not waits_for, waits_for, now)
            elif isinstance(step, Remove):
                gone |= set(step.members)
        results = [each - gone for each in results]
        assert all(results), "a result is lost"
        left = tuple(each for each in observed.members if each.id not in gone)
        observed, memory, now = replace(observed, members=left, state=state), scaled.memory, now + 5.0
    holders = set[MemberId]().union(*results)
    assert {member.id for member in observed.members[1:]} == holders, "a worker without results stays"
    assert not moves_data or len(holders) <= 1


def hand_over(worker: MemberId, results: list[set[MemberId]], others: Collection[MemberId]) -> str:
    """Move what only this worker holds to another. Returns what it waits for."""
    if not others and any(worker in each for each in results):
        return "results that no other worker can take"
    for each in results:
        if each == {worker}:
            each.add(min(others))
        each.discard(worker)
    return ""


@quick
@given(st.integers(1, 12), st.data())
def test_13_lost_members_do_not_change_the_number(ready: int, data: st.DataObject) -> None:
    """As when a spot node is lost: healing replaces its members."""
    wanted, observed = cluster(ready, moves_data=True)
    ids = [member.id for member in observed.members[1:]]
    lost = data.draw(st.sets(st.sampled_from(ids)))
    demand = (Demand({"cpu": 1.0}, ready, ready),)
    left = replace(observed, members=tuple(each for each in observed.members if each.id not in lost))
    memory, now, found = Memory(), 1000.0, set()
    for seen in (observed, observed, left, left, observed, left):
        views = {each.id: MemberView(True) for each in seen.members[1:]}
        scaled = scale(wanted, seen, View(up=True, members=views, demand=demand), memory, now)
        memory, now = scaled.memory, now + 1.0
        found.add(scaled.desired.shape.workers[0].replicas)
    assert found == {ready}
