"""The loop when an engine or a place raises something unexpected."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.base.errors import EngineUnreachable
from oars.control.loop import DOUBT_SECONDS, DRAIN_PAUSE, HOLD_SECONDS, RELEASE_SECONDS, Loop
from oars.engines.base import Engine
from oars.model import (
    Autoscale,
    Cause,
    Demand,
    Desired,
    Drained,
    DrainOutcome,
    Lifetime,
    LoopState,
    MemberId,
    MemberView,
    Observed,
    Remove,
    Retiring,
    View,
)
from oars.places.base import Place, PlaceError
from oars.places.report import Report
from oars.plan.decide import JOIN_TIMEOUT
from oars.plan.why import LATE_SECONDS
from oars.spec.status import Expires, Phase
from tests.unit.plan.clusters import NOW, desired, head, view_of, worker

VICTIM = worker(2).id


class World:
    """Three workers, of which one is to leave, and an engine that cannot drain it. Place, wire and engine in one."""

    def __init__(self) -> None:
        state = LoopState(retiring={VICTIM: Retiring(NOW)}, head="1", head_epoch=0)
        self.observed = Observed((head(), worker(0), worker(1), worker(2)), state)
        self.report: Report | None = None
        self.look_error: Exception | None = None
        self.observe_error: Exception | None = None
        self.ensure_error: Exception | None = None
        self.collected = 0
        self.reconciled: list[View] = []
        self.demand: tuple[Demand, ...] = ()

    async def observe(self, desired: Desired) -> Observed:
        if self.observe_error:
            raise self.observe_error
        return self.observed

    def wire(self, desired: Desired) -> World:
        return self

    def fill(self, text: str) -> str:
        return text

    async def ensure(self, *_: Any) -> None:
        if self.ensure_error:
            raise self.ensure_error

    async def remove(self, desired: Desired, step: Remove) -> tuple[Cause, ...]:
        return ()

    async def collect(self, desired: Desired) -> None:
        self.collected += 1

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        self.observed = Observed(self.observed.members, state)
        self.report = report or self.report

    async def look(self, _: Any) -> View:
        if self.look_error:
            raise self.look_error
        return replace(view_of(self.observed), demand=self.demand)

    async def reconcile(self, _: Any, view: View) -> None:
        self.reconciled.append(view)

    async def drain(self, *_: Any) -> None:
        raise KeyError("an unexpected answer")

    def loop(self) -> Loop:
        return Loop(cast(Place, self), cast(Engine, self), lambda: NOW)


def run(scenario: Awaitable[None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(10):
            await scenario

    asyncio.run(within())


def test_drain_that_raises_keeps_the_worker_and_reconciliation_continues() -> None:
    world = World()
    loop = world.loop()

    async def passes() -> None:
        for _ in range(3):
            await loop.once(desired(2))
            await asyncio.sleep(0)  # let the drain run
        await loop.close()

    run(passes())
    state = world.observed.state.retiring[VICTIM]
    assert (state.drained, state.waits_for) == (False, "its drain failed (KeyError)")


@pytest.mark.parametrize("reason", ["QuotaExceeded", "StepFailed"])
def test_step_that_fails_is_reported_and_the_others_are_performed(reason: str) -> None:
    world = World()
    error: Exception = OSError("no space")
    if reason == "QuotaExceeded":
        error = PlaceError(Cause(reason, "The quota is used up."))
    world.ensure_error = error

    async def one_pass() -> None:
        loop = world.loop()
        await loop.once(desired(2))
        await loop.close()

    run(one_pass())
    assert world.report is not None and world.report.status.reason == reason
    assert world.collected == 1


def test_unexpected_error_of_an_engine_does_not_stop_healing() -> None:
    world = World()
    world.look_error = KeyError("an unexpected answer")

    async def passes() -> None:
        loop = world.loop()
        await loop.once(desired(2))
        assert loop.report is not None and any(
            "KeyError" in line for cause in loop.report.causes for line in cause.lines
        )
        await loop.close()

    run(passes())


def test_failed_first_pass_does_not_overwrite_the_recorded_state() -> None:
    """A loop that takes over from another one knows nothing of its state before it has observed."""
    world = World()
    before = world.observed.state
    world.observe_error = KeyError("an unexpected answer")

    async def passes() -> None:
        loop = world.loop()
        with pytest.raises(KeyError):
            await loop.once(desired(2))
        await loop.report_failure(desired(2), Cause("InternalError", "Unexpected error."))
        assert loop.report is not None and loop.report.status.reason == "InternalError"
        await loop.close()

    run(passes())
    assert world.observed.state == before


def test_report_about_an_older_spec_is_not_ready_after_a_failure() -> None:
    world = World()

    async def passes() -> None:
        loop = world.loop()
        await loop.once(desired(2))
        assert loop.report is not None and loop.report.status.phase is Phase.READY
        newer = Desired("demo", "toy", "local", desired(2).shape, generation=1)
        await loop.report_failure(newer, Cause("InternalError", "Unexpected error."))
        await loop.close()

    run(passes())
    assert world.report is not None
    status = world.report.status
    assert (status.phase, status.reason, status.generation) == (Phase.DEGRADED, "InternalError", 1)


def removals(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[MemberId, ...]]:
    """Filled with the members that the loop removes from now on."""
    removed: list[tuple[MemberId, ...]] = []

    async def remove(desired: Desired, step: Remove) -> tuple[Cause, ...]:
        removed.append(step.members)
        return ()

    monkeypatch.setattr(world, "remove", remove)
    return removed


def test_drain_reply_for_another_worker_removes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    removed = removals(world, monkeypatch)
    others = [Drained(each, DrainOutcome.FINISHED) for each in (worker(0).id, MemberId("stranger"))]

    async def drain(*_: Any) -> list[Drained]:
        return others

    async def look(_: Any) -> View:
        return View(up=True)  # nobody is in service, so nothing contradicts the reply

    monkeypatch.setattr(world, "drain", drain)
    monkeypatch.setattr(world, "look", look)

    async def passes() -> None:
        loop = world.loop()
        for _ in range(3):
            await loop.once(desired(2))
            await asyncio.sleep(0)
        await loop.close()

    run(passes())
    assert not removed
    assert not any(retiring.drained for retiring in world.observed.state.retiring.values())


def test_silence_of_a_head_that_answered_before_is_reported_as_such() -> None:
    world = World()

    async def passes() -> list[str]:
        loop = world.loop()
        reasons: list[str] = []
        for error in (EngineUnreachable("refused"), None, EngineUnreachable("refused")):
            world.look_error = error
            await loop.once(desired(3))
            assert loop.report is not None
            reasons.append(loop.report.status.reason)
        return reasons

    world.observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(head="1"))
    assert asyncio.run(passes()) == ["HeadStarting", "", "HeadSilent"]


@pytest.mark.parametrize(
    "member",
    [
        MemberView(True, held=cast(int, "many")),
        MemberView(True, idle=float("nan")),
        MemberView(True, held=-1),
        MemberView(True, incarnation=cast(str, None)),
    ],
    ids=["text", "not a number", "negative", "no text"],
)
def test_report_that_cannot_be_used_counts_as_no_answer(member: MemberView, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    removed = removals(world, monkeypatch)

    async def look(_: Any) -> View:
        return View(up=True, members={worker(0).id: member})

    monkeypatch.setattr(world, "look", look)

    async def once() -> None:
        loop = world.loop()
        await loop.once(desired(2))
        await loop.close()

    run(once())
    assert world.report is not None and world.report.status.phase is Phase.STARTING
    assert not removed


def test_what_workers_hold_is_unknown_until_it_has_been_so_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new loop must not take away the protection of workers that hold data."""
    world, seconds, ensured = World(), [0.0], list[Any]()
    monkeypatch.setattr("oars.control.loop.time.monotonic", lambda: seconds[0])

    async def ensure(_: Any, step: Any) -> None:
        ensured.append(dict(step.holding))

    async def look(_: Any) -> View:
        return View(up=True, members={worker(0).id: MemberView(True, held=9), worker(1).id: MemberView(True)})

    monkeypatch.setattr(world, "ensure", ensure)
    monkeypatch.setattr(world, "look", look)

    async def passes() -> list[Any]:
        loop = world.loop()
        found: list[Any] = []
        for seconds[0] in (0.0, HOLD_SECONDS, RELEASE_SECONDS):
            await loop.once(desired(2))
            found.append(ensured[-1])
        await loop.close()
        return found

    both = {worker(0).id: True, worker(1).id: False}
    assert asyncio.run(passes()) == [{}, {worker(0).id: True}, both]


LOST = LoopState(head="", head_epoch=1)  # the loop has recorded the loss of the head


def test_worker_that_joined_a_head_while_no_loop_ran_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.observed = Observed((replace(head(), incarnation="2"), worker(0), worker(1)), LOST)
    removed = removals(world, monkeypatch)
    joined = View(up=True, members={worker(0).id: MemberView(True, held=1)})

    async def look(_: Any) -> View:
        if world.look_error:
            raise world.look_error
        return joined

    monkeypatch.setattr(world, "look", look)
    seconds = [0.0]
    monkeypatch.setattr("oars.control.loop.time.monotonic", lambda: seconds[0])

    async def passes() -> None:
        loop = world.loop()
        world.look_error = EngineUnreachable("it is busy")
        await loop.once(desired(2))
        assert not removed, "any worker may have joined a head that has not answered yet"
        world.look_error = None
        await loop.once(desired(2))
        assert not removed, "the first answer may miss somebody"
        seconds[0] = DOUBT_SECONDS + 1
        await loop.once(desired(2))
        assert removed == [(worker(1).id,)]
        world.look_error = EngineUnreachable("it is busy")
        await loop.once(desired(2))
        assert removed == [(worker(1).id,)] * 2

    run(passes())


def test_workers_of_an_earlier_head_are_replaced_at_once_if_the_loop_saw_the_new_one_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.observed = Observed((worker(0), worker(1)), LOST)
    world.look_error = EngineUnreachable("it is starting")
    removed = removals(world, monkeypatch)

    async def passes() -> None:
        loop = world.loop()
        await loop.once(desired(2))
        removed.clear()
        world.observed = replace(world.observed, members=(replace(head(), incarnation="2"), worker(0), worker(1)))
        await loop.once(desired(2))

    run(passes())
    assert removed == [(worker(0).id, worker(1).id)]


def test_worker_that_the_head_does_not_list_is_reported_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    world, seconds = World(), [0.0]
    world.observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(head="1"))
    removed = removals(world, monkeypatch)

    async def look(_: Any) -> View:
        if world.look_error:
            raise world.look_error
        return View(up=True, members={worker(n).id: MemberView(True) for n in (0, 1)})

    monkeypatch.setattr(world, "look", look)
    monkeypatch.setattr("oars.control.loop.time.monotonic", lambda: seconds[0])

    async def passes() -> None:
        loop = world.loop()
        for seconds[0] in (0.0, LATE_SECONDS + 1):
            await loop.once(desired())
        assert world.report is not None and world.report.status.reason == "NotJoined"
        assert VICTIM in world.report.status.message and not removed
        seconds[0] = JOIN_TIMEOUT + 1
        world.look_error = EngineUnreachable("a large graph")
        await loop.once(desired())
        world.look_error = None
        await loop.once(desired())
        assert not removed, "the time in which the head did not answer does not count"
        seconds[0] += JOIN_TIMEOUT + 1
        await loop.once(desired())

    run(passes())
    assert removed == [(VICTIM,)]


class Drains(World):
    """An engine whose drains take until `go`. Everyone is to leave, one more in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = Observed((head(), *map(worker, range(8))), LoopState(head="1"))
        self.requests: list[tuple[MemberId, ...]] = []
        self.deadlines: list[float] = []
        self.go = asyncio.Event()

    def retire(self, count: int) -> None:
        retiring = {worker(n).id: Retiring(NOW) for n in range(count)}
        self.observed = Observed(self.observed.members, replace(self.observed.state, retiring=retiring))

    async def drain(self, wire: Any, members: Sequence[MemberId], deadline: float, force: bool) -> Any:
        self.requests.append(tuple(members))
        self.deadlines.append(deadline)
        await self.go.wait()
        return [Drained(member, DrainOutcome.REFUSED, "busy") for member in members]


def test_drain_timeout_of_the_spec_is_the_deadline_of_the_engine() -> None:
    async def passes() -> None:
        world = Drains()
        loop = world.loop()
        world.retire(1)
        await loop.once(replace(desired(7), drain_timeout=7.0))
        await asyncio.sleep(0)
        assert world.deadlines == [7.0]
        await loop.close()

    run(passes())


def test_drains_at_a_time_are_limited_and_later_ones_share_a_request() -> None:
    """One more worker is to leave in each pass, as after many `oars scale`."""

    async def passes() -> None:
        world = Drains()
        loop = world.loop()
        for count in range(1, 7):
            world.retire(count)
            await loop.once(desired(8 - count))
            await asyncio.sleep(0)
        assert world.requests == [(worker(0).id,), (worker(1).id,), (worker(2).id,)]
        world.go.set()
        for _ in range(2):
            await asyncio.sleep(0)
            world.retire(6)
            await loop.once(desired(2))
        assert world.requests[3] == (worker(3).id, worker(4).id, worker(5).id)
        await loop.close()

    run(passes())


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
def test_step_of_the_clock_does_not_stop_drains(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    wall, seconds = [NOW], [50.0]

    async def passes() -> None:
        world = Drains()
        world.go.set()
        loop = Loop(cast(Place, world), cast(Engine, world), lambda: wall[0])
        world.retire(1)

        async def one_pass() -> None:
            world.retire(1)
            await loop.once(desired(7))
            await asyncio.sleep(0)

        await one_pass()  # asks
        await one_pass()  # hears that it is busy, and pauses
        wall[0] += step
        await one_pass()
        assert len(world.requests) == 1, "the pause is not over"
        seconds[0] += DRAIN_PAUSE + 0.1
        await one_pass()
        assert len(world.requests) == 2
        await loop.close()

    monkeypatch.setattr("oars.control.loop.time.monotonic", lambda: seconds[0])
    run(passes())


def test_loop_forgets_workers_that_were_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods have new names all the time."""
    seconds = [50.0]

    async def passes() -> None:
        world = Drains()
        world.go.set()
        loop = world.loop()
        for _ in range(3):
            world.retire(8)
            await loop.once(desired(0))
            await asyncio.sleep(0)
        assert loop._next_drain
        seconds[0] += 10.0
        world.retire(0)
        await loop.once(desired(8))
        assert not loop._next_drain and not loop._draining
        await loop.close()

    monkeypatch.setattr("oars.control.loop.time.monotonic", lambda: seconds[0])
    run(passes())


def test_head_that_stays_silent_is_asked_less_and_less_often() -> None:
    world = World()
    world.observed = replace(world.observed, state=replace(world.observed.state, retiring={}))

    async def scenario() -> None:
        loop = world.loop()
        world.look_error = TimeoutError()
        pauses = [(await loop.once(desired(3))).seconds for _ in range(6)]
        assert pauses == sorted(pauses) and pauses[0] < pauses[-1] == world.observed.pace.resting
        world.look_error = None
        await loop.once(desired(3))
        world.look_error = TimeoutError()
        assert (await loop.once(desired(3))).seconds == pauses[0]

    run(scenario())


def test_demand_that_no_group_can_serve_is_reported_to_the_engine_when_it_changes() -> None:
    world = World()
    world.observed = Observed((head(), worker(0), worker(1)), LoopState(head="1", head_epoch=0))
    loop, wanted = world.loop(), desired(2)
    groups = tuple(replace(group, max=5) for group in wanted.shape.workers)
    wanted = replace(wanted, shape=replace(wanted.shape, workers=groups), autoscale=Autoscale(enabled=True))
    moon, more = Demand({"moon": 1.0}, 2), Demand({"moon": 1.0}, 9)

    async def passes() -> None:
        for world.demand in ((), (moon,), (more,), (), ()):
            await loop.once(wanted)
        await loop.close()

    run(passes())
    reported = [view.unservable for view in world.reconciled]
    assert reported[0] is None and reported[2] is None and reported[4] is None, "nothing new"
    assert reported[1] is not None and [each.demand for each in reported[1]] == [moon]
    assert "moon" in reported[1][0].message and reported[3] == ()


def test_end_of_a_cluster_is_in_its_report_and_left_to_the_caller() -> None:
    world = World()
    lifetime = Lifetime(max=100.0)

    async def passes() -> None:
        loop = world.loop()
        pause = await loop.once(replace(desired(2), lifetime=lifetime, created_at=NOW - 99.5))
        assert pause.seconds <= 1.0 and not loop.outlook.is_due
        assert loop.report is not None and loop.report.status.expires == Expires(
            float(math.ceil(NOW + 0.5)), "MaxLifetime", "1m40s after its creation (lifetime.max)"
        )
        await loop.once(replace(desired(2), lifetime=lifetime, created_at=NOW - 100))
        assert loop.outlook.is_due and world.observed.members
        await loop.once(desired(2))
        assert loop.report.status.expires is None
        await loop.close()

    run(passes())
