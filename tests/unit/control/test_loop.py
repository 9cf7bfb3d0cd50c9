"""The loop where an engine breaks in a way that nobody foresaw."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from oars.control.loop import Loop
from oars.engines.base import Engine
from oars.model import LoopState, Observed, Retiring, View
from oars.places.base import Place
from tests.unit.plan.clusters import NOW, desired, head, view_of, worker

VICTIM = worker(2).id


class World:
    """Three workers of which one shall go, and an engine that cannot let it go."""

    def __init__(self) -> None:
        self.observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(retiring={VICTIM: Retiring(NOW)}))

    async def observe(self) -> Observed:
        return self.observed

    def wire(self) -> World:
        return self

    def fill(self, text: str) -> str:
        return text

    async def record(self, notes: LoopState, *_: Any) -> None:
        self.observed = Observed(self.observed.members, notes)

    async def look(self, _: Any) -> View:
        return view_of(self.observed)

    async def drain(self, *_: Any) -> None:
        raise KeyError("an answer that nobody expects")


def test_a_drain_that_breaks_keeps_the_worker_and_the_care_goes_on() -> None:
    world = World()
    loop = Loop(cast(Place, world), cast(Engine, world), lambda: NOW)

    async def passes() -> None:
        for _ in range(3):
            await loop.once(desired(2))
            await asyncio.sleep(0)  # the drain's turn
        await loop.close()

    asyncio.run(passes())
    state = world.observed.notes.retiring[VICTIM]
    assert (state.drained, state.waits_for) == (False, "its drain failed (KeyError)")
