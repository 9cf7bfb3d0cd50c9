"""The loop with toy parts around it: workers scaled by demand; and drivers that end with an exit code, which no place
starts yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.control.loop import Loop
from oars.engines.base import Engine, Wire
from oars.model import (
    HEAD,
    Autoscale,
    Demand,
    Desired,
    Drained,
    DrainOutcome,
    Group,
    MemberId,
    MemberState,
    MemberView,
    Process,
    Restart,
    Role,
    View,
)
from oars.plan.decide import REMEMBER, STABLE
from oars.spec.status import MemberStatus, Phase, Status
from tests.memory_place import MemoryPlace, MemoryStore
from tests.unit.plan.clusters import desired

JOB = MemberId("job-0")


class ToyEngine:
    """Lists all workers that it has not drained. Tasks wait until there is a worker for each."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.tasks = 0
        self.drained: list[MemberId] = []

    async def look(self, wire: Wire) -> View:
        running = [m for m in self.store.members.values() if m.state is MemberState.RUNNING and m.role is Role.WORKER]
        members = {m.id: MemberView(True, incarnation=m.incarnation) for m in running if m.id not in self.drained}
        demand = Demand({"cpu": 1}, self.tasks, running=min(self.tasks, len(members)))
        return View(up=True, members=members, demand=(demand,))

    async def reconcile(self, wire: Wire, view: View) -> None:
        return None

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> list[Drained]:
        assert all(member in self.store.members for member in members), "removed before it was drained"
        self.drained += members
        return [Drained(member, DrainOutcome.FINISHED) for member in members]


class Cluster:
    """A loop over an in-memory place."""

    def __init__(self, wanted: Desired) -> None:
        self.wanted = wanted
        self.store = MemoryStore(now=1000.0)
        self.engine = ToyEngine(self.store)
        self.loop = Loop(MemoryPlace(self.store), cast(Engine, self.engine), lambda: self.store.now)

    async def passes(self, count: int = 4, seconds: float = 2.0) -> Status:
        for _ in range(count):
            await self.loop.once(self.wanted)
            await asyncio.sleep(0)  # drains run beside the loop
            self.store.now += seconds
        assert self.loop.report is not None
        return self.loop.report.status

    def workers(self) -> set[str]:
        return {m.id for m in self.store.members.values() if m.role is Role.WORKER}

    def reasons(self) -> dict[str, str]:
        assert self.loop.report is not None
        return {cause.reason: cause.message for cause in self.loop.report.causes}


def with_job(restart: Restart, max_restarts: int | None = None) -> Desired:
    job = Group("job", Role.DRIVER, 1, Process(("job",)), restart=restart, max_restarts=max_restarts)
    return replace(desired(2), drivers=(job,))


def driver(status: Status) -> MemberStatus:
    return next(member for member in status.members if member.role == Role.DRIVER)


def run(test: Callable[[], Any]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(within())


class TestJobs:
    @pytest.mark.parametrize(
        ("restart", "code", "phase", "reason"),
        [
            (Restart.NEVER, 0, Phase.SUCCEEDED, "exited with code 0"),
            (Restart.NEVER, 3, Phase.FAILED, "exited with code 3"),
            (Restart.ON_FAILURE, 0, Phase.SUCCEEDED, "exited with code 0"),
        ],
    )
    def test_driver_that_ends_for_good_is_not_started_again(
        self, restart: Restart, code: int, phase: Phase, reason: str
    ) -> None:
        async def test() -> None:
            cluster = Cluster(with_job(restart))
            status = await cluster.passes()
            assert status.phase is Phase.READY and driver(status).phase is Phase.READY
            cluster.store.exit(JOB, code)
            for seconds in (1.0, REMEMBER):  # also when its death is long past
                status = await cluster.passes(seconds=seconds)
                assert (driver(status).phase, driver(status).reason) == (phase, reason)
                assert status.phase is Phase.READY
            assert cluster.store.starts == 4, "the driver was started again"
            expected = {} if code == 0 else {"DriverFailed": f"job-0 {reason} and is not started again."}
            assert cluster.reasons() == expected

        run(test)

    @pytest.mark.parametrize("runs_for", [1.0, STABLE + 1], ids=["at once", "after a good run"])
    def test_driver_is_restarted_on_failure_until_the_limit(self, runs_for: float) -> None:
        async def test() -> None:
            cluster = Cluster(with_job(Restart.ON_FAILURE, max_restarts=2))
            await cluster.passes()
            for attempt in range(3):
                status = await cluster.passes(8)  # past the back-off
                assert cluster.store.starts == 4 + attempt, "no restart, or one too many"
                assert driver(status).phase is Phase.READY and status.phase is Phase.READY
                cluster.store.now += runs_for
                cluster.store.exit(JOB, 1)
            for seconds in (1.0, REMEMBER):
                status = await cluster.passes(8, seconds=seconds)
                assert cluster.store.starts == 6, "the driver was started again after its last attempt"
                assert (driver(status).phase, driver(status).reason) == (Phase.FAILED, "exited with code 1")
                assert status.phase is Phase.READY

        run(test)

    def test_finished_driver_is_removed_with_its_group(self) -> None:
        async def test() -> None:
            cluster = Cluster(with_job(Restart.NEVER))
            await cluster.passes()
            cluster.store.exit(JOB, 0)
            cluster.wanted = replace(cluster.wanted, drivers=())
            status = await cluster.passes()
            assert JOB not in cluster.store.members and status.phase is Phase.READY

        run(test)


def elastic(least: int, most: int, replicas: int = 0) -> Desired:
    wanted = desired(replicas)
    (group,) = wanted.shape.workers
    group = replace(group, min=least, max=most)
    return replace(wanted, shape=replace(wanted.shape, workers=(group,)), autoscale=Autoscale(True, 60.0))


class TestAutoscaling:
    def test_workers_follow_the_demand_and_the_desired_state_is_untouched(self) -> None:
        async def test() -> None:
            cluster = Cluster(elastic(1, 10))
            status = await cluster.passes()
            assert (status.groups[0].wanted, status.groups[0].min, status.groups[0].max) == (1, 1, 10)
            cluster.engine.tasks = 4
            status = await cluster.passes(6)
            assert (status.phase, status.wanted, status.ready) == (Phase.READY, 4, 4)
            assert status.groups[0].reason and status.groups[0].message
            assert not cluster.engine.drained
            cluster.engine.tasks = 2
            status = await cluster.passes(20)
            assert status.wanted == 4, "it keeps the most that it needed within the delay"
            status = await cluster.passes(80)
            assert (status.phase, status.wanted, status.ready) == (Phase.READY, 2, 2)
            assert len(cluster.engine.drained) == 2, "workers are removed that were not drained"
            assert cluster.workers().isdisjoint(cluster.engine.drained) and len(cluster.workers()) == 2
            cluster.engine.tasks = 0
            assert (await cluster.passes(100)).wanted == 1
            assert cluster.wanted == elastic(1, 10)

        run(test)

    def test_group_scales_from_zero_and_to_zero(self) -> None:
        async def test() -> None:
            cluster = Cluster(elastic(0, 5))
            assert (await cluster.passes()).wanted == 0
            cluster.engine.tasks = 3
            assert (await cluster.passes(6)).ready == 3
            cluster.engine.tasks = 0
            assert (await cluster.passes(120)).ready == 0

        run(test)

    def test_number_set_by_hand_is_kept(self) -> None:
        """By `kubectl scale`, or by another autoscaler."""

        async def test() -> None:
            cluster = Cluster(elastic(0, 10))
            await cluster.passes()
            cluster.wanted = elastic(0, 10, replicas=3)
            status = await cluster.passes(6)
            assert (status.wanted, status.ready, status.groups[0].reason) == (3, 3, "SetByHand")
            status = await cluster.passes(120)
            assert status.wanted == 3
            cluster.wanted = elastic(0, 9, replicas=3)  # other bounds: somebody called `oars adapt`
            assert (await cluster.passes(120)).wanted == 0

        run(test)

    def test_lost_head_does_not_change_the_number_of_workers(self) -> None:
        async def test() -> None:
            cluster = Cluster(elastic(2, 5))
            await cluster.passes()
            cluster.store.exit(HEAD, 1)
            status = await cluster.passes(8)
            assert (status.phase, status.wanted, status.ready) == (Phase.READY, 2, 2)
            assert {m.head_epoch for m in cluster.store.members.values() if m.role is Role.WORKER} == {1}

        run(test)
