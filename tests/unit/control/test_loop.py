"""The loop when an engine or a place raises something unexpected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from oars.base.errors import EngineUnreachable
from oars.control.loop import Loop
from oars.engines.base import Engine
from oars.model import Cause, Desired, LoopState, MemberView, Observed, Remove, Retiring, View
from oars.places.base import Place, PlaceError
from oars.places.report import Report
from oars.plan.decide import JOIN_TIMEOUT
from oars.plan.why import LATE_SECONDS
from oars.spec.status import Phase
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
        return view_of(self.observed)

    async def reconcile(self, *_: Any) -> None:
        return None

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


def test_worker_that_the_head_does_not_list_is_reported_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    world, seconds = World(), [0.0]
    world.observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(head="1"))
    removed: list[Remove] = []

    async def remove(desired: Desired, step: Remove) -> tuple[Cause, ...]:
        removed.append(step)
        return ()

    async def look(_: Any) -> View:
        if world.look_error:
            raise world.look_error
        return View(up=True, members={worker(n).id: MemberView(True) for n in (0, 1)})

    monkeypatch.setattr(world, "remove", remove)
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
    assert [step.members for step in removed] == [(VICTIM,)]
