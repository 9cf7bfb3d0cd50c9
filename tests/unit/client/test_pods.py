"""A cluster of bare pods, reconciled by its client: scale, choose who leaves, failures at the start, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from toy_engine.simulated import SimulatedPodsEngine

from oars.base.errors import StartFailed, TimedOut
from oars.client import pods as module
from oars.client.pods import PodCluster, PodWatches
from oars.engines.base import Wire
from oars.kube.errors import ApiError
from oars.model import View
from oars.places.kube import names
from oars.spec.status import Phase
from tests.unit.places.pod_world import World, cluster

FORBIDDEN = 'pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "lab"'


class Watched(World):
    """The namespace as PodWatches shows it. `watch_error`: why its watches fail."""

    watch_error: Exception | None = None

    def check(self) -> None:
        if self.watch_error is not None:
            raise self.watch_error


class SlowEngine(SimulatedPodsEngine):
    """Replies to a look when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_looking, self.may_reply = asyncio.Event(), asyncio.Event()
        self.may_reply.set()

    async def look(self, wire: Wire) -> View:
        self.is_looking.set()
        await self.may_reply.wait()
        return await super().look(wire)


def run(
    scenario: Callable[[Watched, PodCluster, SlowEngine], Awaitable[None]], *, workers: int = 2, start: bool = True
) -> Watched:
    """The world afterwards. The cluster is stopped, unless the scenario did."""
    world = Watched()

    async def whole() -> None:
        engine = SlowEngine()
        found = PodCluster(world.place, engine, cast(PodWatches, world), world.memory, cluster(workers))
        await found.start()
        try:
            if start:
                await found.wait_until_up()
                await until(lambda: len(found.staying) == workers)
            await scenario(world, found, engine)
        finally:
            await found.stop()

    asyncio.run(asyncio.wait_for(whole(), 30))
    return world


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the loop under test runs beside it)
            await asyncio.sleep(0.01)


def test_workers_follow_the_number_that_is_set() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        found.set_workers(4)
        await until(lambda: len(found.staying) == 4)
        before = set(found.staying)
        found.set_workers(1)
        await until(lambda: len([pod for pod in world.pods() if pod["metadata"]["labels"][names.GROUP] != "head"]) == 1)
        assert set(found.staying) < before

    assert run(scenario).objects == {}, "nothing is left after the end"


def test_named_workers_leave_and_no_others() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        victims = found.staying[1:3]
        found.retire(victims)
        assert found.workers == 2 and not set(victims) & set(found.staying), "known at once"
        await until(lambda: len(world.pods()) == 3)
        assert not {pod["metadata"]["name"] for pod in world.pods()} & set(victims)

    run(scenario, workers=4)


def test_choice_that_is_made_during_a_pass_is_kept() -> None:
    """The pass under way records its own state when it ends."""

    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        engine.may_reply.clear()
        engine.is_looking.clear()
        found.wake()
        await engine.is_looking.wait()
        victim = found.staying[0]  # by itself the loop takes the newest
        found.retire([victim])
        engine.may_reply.set()
        await until(lambda: len(world.pods()) == 2)
        assert ("Pod", victim) not in world.objects

    run(scenario)


def test_others_leave_by_the_loop_s_choice() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        found.retire(["not-a-pod"], others=1)  # type: ignore[list-item]
        assert found.workers == 1
        await until(lambda: len(world.pods()) == 2)

    run(scenario)


def test_head_that_ends_by_itself_ends_the_cluster() -> None:
    ended = []

    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        found.on_end = lambda: ended.append(True)
        world.end(world.head(), 0)
        found.wake()
        await until(lambda: ended)
        assert world.objects == {}

    run(scenario)


def test_head_that_fails_is_replaced_with_its_workers() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        before, first = set(found.staying), world.head()
        world.end(first, 1, after=100.0)
        found.wake()
        await until(lambda: world.head() != first and len(found.staying) == 2 and not before & set(found.staying))

    run(scenario)


def test_head_that_fails_at_the_start_is_reported() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        engine.may_reply.clear()
        await until(world.pods)
        world.end(world.head(), 127)
        found.wake()
        with pytest.raises(StartFailed, match=r"exit code 127|exited with code 127"):
            await found.wait_until_up()

    assert run(scenario, start=False).objects == {}


def test_head_that_ends_at_the_start_is_reported() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        engine.may_reply.clear()
        await until(world.pods)
        world.end(world.head(), 0)
        found.wake()
        engine.may_reply.set()
        with pytest.raises(StartFailed, match="ended by itself before it was ready"):
            await found._wait(lambda: False)

    assert run(scenario, start=False).objects == {}


def test_missing_right_ends_the_start_at_once() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        await found.stop()  # the loop of this one has already created its head
        world.refusal = ApiError(403, {"message": FORBIDDEN})
        refused = PodCluster(world.open(), engine, cast(PodWatches, world), world.memory, cluster())
        await refused.start()
        with pytest.raises(StartFailed, match="ann may not create pods") as failed:
            await refused.wait_until_running()
        assert 'resources: ["pods"]' in failed.value.hint
        await refused.stop()

    run(scenario, start=False)


def test_start_that_times_out_names_the_error_of_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.0)

    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        world.watch_error = ApiError(500, {"message": "etcd has no leader"})
        failing = PodCluster(world.open(), engine, cast(PodWatches, world), world.memory, cluster())
        await failing.start()
        await until(lambda: failing.report)
        with pytest.raises(TimedOut, match="etcd has no leader"):
            await failing.wait_until_running()
        assert failing.report is not None
        assert (failing.report.status.phase, failing.report.status.reason) == (Phase.PENDING, "PassFailed")
        await failing.stop()

    run(scenario, start=False)


def test_failed_pass_changes_the_status() -> None:
    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        await until(lambda: found.report and found.report.status.phase is Phase.READY)
        world.watch_error = ApiError(500, {"message": "etcd has no leader"})
        found.wake()
        await until(lambda: found.report and found.report.status.reason == "PassFailed")
        assert found.report is not None and found.report.status.ready == 2
        world.watch_error = None
        await until(lambda: found.report and not found.report.status.reason)

    run(scenario)


def test_refused_deletion_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [ApiError(503, {"message": "the API server restarts"})]
    delete = World.delete

    async def unwilling(self: World, *args: object, **options: object) -> bool:
        if refusals:
            raise refusals.pop()
        return await delete(self, *args, **options)  # type: ignore[arg-type]

    async def scenario(world: Watched, found: PodCluster, engine: SlowEngine) -> None:
        monkeypatch.setattr(World, "delete", unwilling)
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)

    assert run(scenario).objects == {} and not refusals
