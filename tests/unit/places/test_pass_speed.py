"""The CPU time of one pass over a large cluster. All clusters of an operator share one event loop: a pass of one tenant
delays the others by what it computes at a stretch."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from oars.control.loop import Loop
from oars.control.runner import Runner
from oars.engines.base import Engine
from oars.model import Desired, MemberView, Pause, View
from oars.places.base import Place
from tests.unit.places.clusters import cluster
from tests.unit.places.world import World

Key = tuple[str, int]  # tenant, number

WORKERS = 1000
MOST_SECONDS = 1.0


class ListingEngine:
    """Lists every worker."""

    async def look(self, wire: Any) -> View:
        members = {member: MemberView(True, held=1, incarnation=each) for member, each in wire.incarnations.items()}
        return View(up=True, members=members)

    async def reconcile(self, *_: object) -> None:
        """Nothing to do."""

    async def drain(self, *_: object) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("change", [{}, {"image": "i:2"}, {"workers": WORKERS // 2}], ids=["rest", "rolled", "shrunk"])
def test_pass_over_a_thousand_workers_is_short(change: dict[str, Any]) -> None:
    world = World(cluster(workers=WORKERS), workers=[f"w{number}" for number in range(WORKERS)])
    loop = Loop(cast(Place, world.place), cast(Engine, ListingEngine()), lambda: world.now)
    desired = replace(cluster(**{"workers": WORKERS, **change}), generation=2)
    times: list[float] = []

    async def passes() -> None:
        for _ in range(3):
            started = time.process_time()
            await loop.once(desired)
            times.append(time.process_time() - started)
        await loop.close()

    asyncio.run(asyncio.wait_for(passes(), 60))
    assert min(times) < MOST_SECONDS, times


class Clusters:
    """Reconciles clusters of two tenants, as the operator does: three of 1,000 workers and a small one."""

    def __init__(self) -> None:
        sizes = {("noisy", number): WORKERS for number in range(3)} | {("team", 0): 3}
        self.loops: dict[Key, tuple[Loop, Desired]] = {}
        for key, workers in sizes.items():
            world = World(cluster(workers=workers), workers=[f"w{number}" for number in range(workers)])
            loop = Loop(cast(Place, world.place), cast(Engine, ListingEngine()), partial(getattr, world, "now"))
            self.loops[key] = loop, replace(cluster(workers=workers, image="i:2"), generation=2)
        self.passes: Counter[Key] = Counter()
        self.reconciled = asyncio.Event()

    async def reconcile(self, key: Key) -> Pause:
        loop, desired = self.loops[key]
        await loop.once(desired)
        self.passes[key] += 1
        if key[0] == "team":
            self.reconciled.set()
            return Pause(1000)
        return Pause(0.0)

    async def report_failure(self, key: Key, error: Exception) -> None:
        raise AssertionError from error


def test_clusters_of_a_thousand_workers_do_not_delay_those_of_another_tenant() -> None:
    """Measured as the CPU time that this process uses meanwhile."""
    clusters = Clusters()
    delays: list[float] = []

    async def body() -> None:
        runner: Runner[Key] = Runner(clusters, workers=16, tenant=lambda key: key[0])
        running = asyncio.create_task(runner.run())
        for key in clusters.loops:
            runner.wake(key)
        for _ in range(5):
            before = clusters.passes.total()
            while clusters.passes.total() < before + 3:  # noqa: ASYNC110 (passes of the large clusters)
                await asyncio.sleep(0)
            clusters.reconciled.clear()
            started = time.process_time()
            runner.wake(("team", 0))
            await clusters.reconciled.wait()
            delays.append(time.process_time() - started)
        assert min(clusters.passes.values()) > 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for loop, _ in clusters.loops.values():
            await loop.close()

    asyncio.run(asyncio.wait_for(body(), 120))
    assert statistics.median(delays) < MOST_SECONDS, delays
