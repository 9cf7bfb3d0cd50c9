"""The demand that the code inside the heads reports: Dask's from a real scheduler, Ray's from messages of its GCS."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Event, Scheduler, Worker
from ray.core.generated import autoscaler_pb2, common_pb2

from oars.engines.base import demands
from oars.engines.dask import head_plugin as dask
from oars.engines.ray import head_helper as ray
from oars.model import Autoscale, Group, LabelRule, Placement, Process, Resources, Role
from oars.plan.autoscale import Memory, Situation, Supply, targets

SECONDS = 30.0
PAGE = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


@asynccontextmanager
async def started() -> AsyncIterator[tuple[Scheduler, Client]]:
    """A scheduler without workers."""
    async with Scheduler(host="127.0.0.1", port=0, **PAGE) as scheduler:
        scheduler.handlers["scatter"] = dask.counted(scheduler.handlers["scatter"])
        async with Client(scheduler.address, asynchronous=True) as client:
            yield scheduler, client


def worker(scheduler: Scheduler, **options: Any) -> Worker:
    return Worker(scheduler.address, **{"name": "worker-0", "nthreads": 2, **PAGE, **options})


def run(story: Callable[[Scheduler, Client], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(2 * SECONDS), started() as (scheduler, client):
            await story(scheduler, client)

    asyncio.run(within())


async def until_reported(scheduler: Scheduler, *expected: dict[str, Any]) -> None:
    """Until that is the demand; entries do not have the durations, which Dask guesses."""
    found: list[dict[str, Any]] = []

    def is_reported() -> bool:
        found[:] = [
            {key: value for key, value in entry.items() if key != "seconds"} for entry in dask.demand(scheduler)
        ]
        return sorted(map(str, found)) == sorted(map(str, expected))

    deadline = time.monotonic() + SECONDS
    while not is_reported():
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.01)


def entry(count: int, running: int = 0, labels: list[Any] | None = None, **needs: float) -> dict[str, Any]:
    return {"needs": {"cpu": 1.0, **needs}, "count": count, "running": running} | ({"labels": labels} if labels else {})


def wait_for(name: str, number: int = 0) -> int:
    Event(name).wait()
    return number


class TestDask:
    def test_tasks_without_workers_are_counted_by_what_they_need(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            plain = client.map(lambda number: number, range(20), key="plain")
            special = client.map(lambda number: number, range(3), key="special", resources={"GPU": 2})
            await until_reported(scheduler, entry(20), entry(3, GPU=2))
            assert all(each["seconds"] > 0 for each in dask.demand(scheduler))
            del plain, special
            await until_reported(scheduler)

        run(story)

    def test_queued_and_running_tasks_count_once_each(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            async with worker(scheduler):
                futures = client.map(wait_for, ["go"] * 50, range(50), key="task")
                await until_reported(scheduler, entry(50, running=2))
                assert len(scheduler.queued) > 40
                await Event("go").set()
                assert await client.gather(futures) == list(range(50))
                await until_reported(scheduler)

        run(story)

    def test_task_for_a_worker_that_does_not_exist_is_reported_with_its_name(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            async with worker(scheduler):
                gone = client.submit(int, workers=["gone"], key="gone-1")
                await until_reported(scheduler, entry(1, labels=[("worker", ("gone",), False)]))
                loose = client.submit(int, workers=["gone"], allow_other_workers=True, key="loose-1")
                assert await loose == 0
                found = unservable(dask.demand(scheduler))
                assert found == [
                    "1 task needs 1 cpu, on workers with worker in (gone); no group of workers has all of that."
                ]
                del gone

        run(story)

    def test_task_that_waits_for_its_busy_worker_needs_no_other(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            async with worker(scheduler, nthreads=1):
                futures = client.map(wait_for, ["go"] * 5, range(5), key="bound", workers=["worker-0"])
                await until_reported(scheduler, entry(1, running=1))
                await Event("go").set()
                await client.gather(futures)

        run(story)

    def test_many_tasks_are_extrapolated_from_a_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dask, "SAMPLE", 100)

        async def story(scheduler: Scheduler, client: Client) -> None:
            futures = client.map(lambda number: number, range(1000), key="plain")
            await until_reported(scheduler, entry(1000))
            del futures

        run(story)

    def test_scatter_that_waits_for_the_first_worker_is_demand(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            scatter = asyncio.create_task(client.scatter([1, 2, 3]))
            await until_reported(scheduler, {"needs": {}, "count": 1})
            async with worker(scheduler):
                assert await client.gather(await scatter) == [1, 2, 3]
                await until_reported(scheduler)

        run(story)


def unservable(entries: list[dict[str, Any]]) -> list[str]:
    group = Group("default", Role.WORKER, 0, Process(("worker",)), Resources(cpu=1.0), min=0, max=5)
    found = targets(Situation([group], {}, demands(entries, {})), Autoscale(True), Memory(), 1000.0)
    return [each.message for each in found.unservable]


class TestRay:
    def state(self) -> Any:
        return autoscaler_pb2.ClusterResourceState()

    def test_tasks_and_actors_are_counted_by_what_they_need(self) -> None:
        state = self.state()
        state.pending_resource_requests.add(count=501).request.resources_bundle["CPU"] = 1.0
        special = state.pending_resource_requests.add(count=5).request
        special.resources_bundle.update({"CPU": 1.0, "GPU": 1.0})
        special.label_selectors.add()  # Ray adds an empty one
        assert ray.demand(state) == [
            {"needs": {"CPU": 1.0}, "count": 501, "labels": []},
            {"needs": {"CPU": 1.0, "GPU": 1.0}, "count": 5, "labels": []},
        ]

    def test_tasks_of_a_placement_group_and_of_a_certain_node_are_left_out(self) -> None:
        """The group is an entry of its own, and another node would not help."""
        state = self.state()
        in_group = {"CPU_group_0a1b": 1.0, "bundle_group_0a1b": 0.001}
        for needs in (in_group, {"CPU": 1.0, "node:10.0.0.1": 0.01}):
            state.pending_resource_requests.add(count=2).request.resources_bundle.update(needs)
        state.pending_resource_requests.add(count=0).request.resources_bundle["CPU"] = 1.0
        assert ray.demand(state) == []

    def test_label_selectors_become_rules(self) -> None:
        state = self.state()
        request = state.pending_resource_requests.add(count=3).request
        request.resources_bundle["CPU"] = 1.0
        first, fallback = request.label_selectors.add(), request.label_selectors.add()
        for key, operator, values in (
            ("oars.dev/group", common_pb2.LABEL_OPERATOR_IN, ["huge", "big"]),
            ("zone", common_pb2.LABEL_OPERATOR_NOT_IN, ["b"]),
        ):
            first.label_constraints.add(label_key=key, operator=operator, label_values=values)
        fallback.label_constraints.add(label_key="zone", operator=common_pb2.LABEL_OPERATOR_IN, label_values=["c"])
        (found,) = demands(ray.demand(state), {"CPU": "cpu"})
        assert found.labels == (
            LabelRule("oars.dev/group", frozenset({"big", "huge"}), negated=False),
            LabelRule("zone", frozenset({"b"}), negated=True),
        )

    @pytest.mark.parametrize(
        ("details", "spread", "placement"),
        [
            ("aa|STRICT_SPREAD|PENDING", True, Placement.SPREAD),
            ("aa|STRICT_PACK|PENDING", False, Placement.PACK),
            ("aa|PACK|RESCHEDULING", False, Placement.ANY),
        ],
    )
    def test_placement_groups_are_gangs(self, details: str, spread: bool, placement: Placement) -> None:
        state = self.state()
        for amounts in ((2.0, 2.0, 2.0), (1.0,)):
            gang = state.pending_gang_resource_requests.add(details=details)
            for amount in amounts:
                request = gang.requests.add()
                request.resources_bundle["CPU"] = amount
                if spread:
                    request.placement_constraints.add().anti_affinity.label_name = "_PG_aa"
        found = demands(ray.demand(state), {"CPU": "cpu"})
        assert [(each.needs, each.count, each.placement) for each in found] == [
            *[({"cpu": 2.0}, 1, placement)] * 3, ({"cpu": 1.0}, 1, placement),
        ]  # fmt: skip
        assert len({each.gang for each in found[:3]}) == 1 and found[3].gang not in ("", found[0].gang)

    def test_requested_capacity_is_a_floor(self) -> None:
        state = self.state()
        requests = state.cluster_resource_constraints.add().resource_requests
        requests.add(count=4).request.resources_bundle["CPU"] = 1.0
        state.cluster_resource_constraints.add()  # what a withdrawn request leaves behind
        (found,) = demands(ray.demand(state), {"CPU": "cpu"})
        assert (found.needs, found.count, found.floor) == ({"cpu": 1.0}, 4, True)

    @pytest.mark.parametrize(
        ("member", "idle", "available", "activity", "needs"),
        [
            ("worker-0", 0, {"memory": 1e9}, [], {"CPU": 2.0}),  # what is used up is missing
            ("worker-0", 0, {"CPU": 1.5, "memory": 1e9}, [], {"CPU": 0.5}),
            ("worker-0", 0, {"CPU": 2.0, "memory": 1e9}, ["an actor without resources"], {}),
            ("worker-0", 0, {"CPU": 2.0, "memory": 1e9}, [], None),
            ("worker-0", 900, {"memory": 1e9}, [], None),  # the report of its resources is older
            ("head", 0, {}, ["busy"], None),
        ],
    )
    def test_what_a_worker_has_in_use_runs_in_its_group(
        self, member: str, idle: int, available: dict[str, float], activity: list[str], needs: dict[str, float] | None
    ) -> None:
        state = self.state()
        node = state.node_states.add(idle_duration_ms=idle, node_activity=activity)
        node.labels.update({"oars.dev/member": member, "oars.dev/group": "big"})
        extra = {"node:10.0.0.1": 1.0, "object_store_memory": 2e9, "CPU_group_0a1b": 1.0}
        node.total_resources.update({"CPU": 2.0, "memory": 1e9, **extra})
        node.available_resources.update(available)
        expected = [{"needs": needs, "count": 1, "running": 1, "labels": [("oars.dev/group", ["big"], False)]}]
        assert ray.demand(state) == (expected if needs is not None else [])


# Where the plugin of Mars' supervisor patches it: module, class, method.
PATCHED = (
    ("services.meta.supervisor.core", "MetaStoreActor", "__pre_destroy__"),
    ("services.scheduling.supervisor.assigner", "AssignerActor", "reassign_subtasks"),
    ("services.scheduling.supervisor.queueing", "SubtaskQueueingActor", "balance_queued_subtasks"),
    ("services.cluster.supervisor.node_info", "NodeInfoCollectorActor", "update_node_info"),
)
Band = tuple[str, str]


class TestMars:
    """Mars is not in this environment: bare classes stand in for its actors."""

    @pytest.fixture
    def plugin(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        for module, actor, method in PATCHED:
            monkeypatch.setitem(sys.modules, f"mars.{module}", SimpleNamespace(**{actor: type(actor, (), {method: 0})}))
        spec = find_spec("oars.engines.mars.head_plugin")
        assert spec is not None and spec.loader is not None
        plugin = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, plugin)
        spec.loader.exec_module(plugin)
        return plugin

    def demand(
        self, plugin: Any, monkeypatch: pytest.MonkeyPatch, queued: dict[str, dict[Band, int]], running: dict[Band, int]
    ) -> list[dict[str, Any]]:
        """With so many subtasks in the queues of each session, and running, by band."""
        queueing = plugin.mars("services.scheduling.supervisor.queueing").SubtaskQueueingActor

        async def session_ids(supervisor: str) -> list[str]:
            return list(queued)

        async def subtask_queue(supervisor: str, session: str) -> Any:
            actor = queueing()
            actor._band_queues = {band: [object()] * count for band, count in queued[session].items()}
            return actor

        async def older_tasks(supervisor: str, sessions: list[str], moment: float) -> int:
            return 1

        for function in (session_ids, subtask_queue, older_tasks):
            monkeypatch.setattr(plugin, function.__name__, function)
        # Mars counts at least one of each kind for a running subtask.
        used = {band: SimpleNamespace(num_cpus=count, num_gpus=1) for band, count in running.items()}
        found: list[dict[str, Any]] = asyncio.run(plugin.demand("127.0.0.1:0", used))
        return found

    def test_subtasks_of_all_sessions_are_counted_by_kind_of_slot(
        self, plugin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queued: dict[str, dict[Band, int]] = {
            "a": {("w0", "gpu-0"): 3, ("w0", "numa-0"): 4, ("w1", "numa-0"): 0},
            "b": {("w0", "gpu-1"): 2, ("w1", "numa-0"): 1},
        }
        running = {("w0", "gpu-0"): 1, ("w0", "gpu-1"): 1, ("w0", "numa-0"): 2, ("w1", "numa-0"): 1}
        found = self.demand(plugin, monkeypatch, queued, running)
        assert sorted(found, key=str) == [
            {"needs": {"cpu": 1}, "count": 8, "running": 3},
            {"needs": {"gpu": 1}, "count": 7, "running": 2},
        ]

    def test_gpu_subtasks_grow_the_group_with_gpus_only(self, plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        groups = [
            Group(name, Role.WORKER, 0, Process(()), min=0, max=9, offers={"cpu": 2, "gpu": gpu})
            for name, gpu in (("cpu", 0), ("gpu", 2))
        ]
        supply = {"gpu": Supply(ready=1)}
        memory, now = Memory(), 1000.0
        entries = self.demand(plugin, monkeypatch, {"a": {("w0", "gpu-0"): 5}}, {("w0", "gpu-0"): 1})
        for _ in range(6):
            result = targets(Situation(groups, supply, demands(entries, {})), Autoscale(True), memory, now)
            memory, now = result.memory, now + result.next_look
        assert {name: each.target for name, each in result.groups.items()} == {"cpu": 0, "gpu": 3}

    def test_task_without_subtasks_waits_for_any_first_worker(
        self, plugin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.demand(plugin, monkeypatch, {"a": {}}, {}) == [{"needs": {}, "count": 1}]
        assert self.demand(plugin, monkeypatch, {"a": {}}, {("w0", "gpu-0"): 1}) == [
            {"needs": {"gpu": 1}, "count": 1, "running": 1}
        ]
