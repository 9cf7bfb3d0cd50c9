"""The scripts next to a head, as processes that read requests from stdin: Dask's with a real scheduler, Ray's without a
GCS."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import dask.dataframe
import pandas
import pytest
from distributed import Client, Event, Scheduler, Worker
from ray.core.generated import autoscaler_pb2

from oars.engines.dask import head_helper as dask_helper
from oars.engines.dask.live import HEAD_HELPER as DASK
from oars.engines.ray import head_helper as ray
from oars.engines.ray.shape import HEAD_HELPER as RAY

SECONDS = 60.0
CLOSING = "closing_gracefully"


class Script:
    """A running script."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def reply(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())

    async def ask(self, **request: Any) -> Any:
        self.send(**request)
        return await self.reply()

    async def end(self) -> int:
        """Close its stdin, as a place does when the caller is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._process.wait()


@asynccontextmanager
async def script(source: str, **env: str) -> AsyncIterator[Script]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdin=pipe, stdout=pipe, env={**os.environ, **env}
    )
    try:
        yield Script(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def dask_cluster() -> AsyncIterator[tuple[Scheduler, Client]]:
    """A scheduler with two workers in this process."""
    page = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(host="127.0.0.1", port=0, **page) as scheduler:
        workers = [Worker(scheduler.address, name=f"worker-{n}", nthreads=1, **page) for n in range(2)]
        async with workers[0], workers[1], Client(scheduler.address, asynchronous=True) as client:
            yield scheduler, client


def run(story: Callable[[Scheduler, Client], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(2 * SECONDS), dask_cluster() as (scheduler, client):
            await story(scheduler, client)

    asyncio.run(within())


def statuses(scheduler: Scheduler) -> dict[str, str]:
    return {str(ws.name): ws.status.name for ws in scheduler.workers.values()}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 (a scheduler announces nothing)
            await asyncio.sleep(0.01)


def wait_for(name: str) -> str:
    Event(name).wait()
    return name


def drain(seconds: float, *names: str, force: bool = False) -> dict[str, Any]:
    return {"op": "drain", "names": list(names), "seconds": seconds, "force": force}


class TestDask:
    def test_drained_worker_hands_over_its_results(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            future = client.submit(lambda: "x" * 1000, workers=["worker-0"], allow_other_workers=True)
            await future
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                assert await helper.ask(**drain(10, "worker-0", "unknown")) == {
                    "ok": {"worker-0": {"outcome": "moved"}, "unknown": {"outcome": "finished"}}
                }
            assert statuses(scheduler) == {"worker-1": "running"}
            assert await future == "x" * 1000

        run(story)

    def test_worker_stays_until_its_shuffle_has_ended(self) -> None:
        """Dask would lose the data of the shuffle, and the computation could fail."""

        def partition(number: int) -> Any:
            if number == 1:
                Event("go").wait()
            return pandas.DataFrame({"x": [number]})

        async def story(scheduler: Scheduler, client: Client) -> None:
            frame = dask.dataframe.from_map(partition, range(3), meta={"x": int}).shuffle("x")
            total = client.compute(frame.x.sum())
            (shuffles,) = (
                plugin.active_shuffles for plugin in scheduler.plugins.values() if hasattr(plugin, "active_shuffles")
            )
            await until(lambda: shuffles and any(not ws.processing for ws in scheduler.workers.values()))
            (idle,) = (str(ws.name) for ws in scheduler.workers.values() if not ws.processing)
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                reply = await helper.ask(**drain(1, idle))
                assert reply["ok"][idle] == {"outcome": "refused", "reason": "a shuffle, whose data cannot be moved"}
                await Event("go").set()
                assert await total == 3
                del total
                assert (await helper.ask(**drain(SECONDS, idle)))["ok"][idle]["outcome"] != "refused"

        run(story)

    def test_worker_stays_until_a_scatter_to_it_has_ended(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            dask_helper.dask_setup(scheduler)
            begun, go = asyncio.Event(), asyncio.Event()
            (worker,) = (
                each for each in Worker._instances if each.name == "worker-0" and each.status.name == "running"
            )
            update = worker.handlers["update_data"]

            async def update_late(**data: Any) -> Any:
                begun.set()
                await go.wait()
                return update(**data)

            worker.handlers["update_data"] = update_late
            scatter = asyncio.create_task(client.scatter("x" * 1000, workers=[worker.address], direct=False))
            await begun.wait()
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                reply = await helper.ask(**drain(1, "worker-0"))
                assert reply["ok"]["worker-0"] == {"outcome": "refused", "reason": "1 scatter of a client"}
                helper.send(**drain(SECONDS, "worker-0"))
                await until(lambda: statuses(scheduler)["worker-0"] == CLOSING)
                go.set()
                future = await scatter
                assert (await helper.reply())["ok"]["worker-0"] == {"outcome": "moved"}
            assert statuses(scheduler) == {"worker-1": "running"}
            assert await future == "x" * 1000

        run(story)

    def test_worker_is_in_service_again_when_the_caller_is_gone(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            task = client.submit(wait_for, "go", workers=["worker-0"])
            await until(lambda: any(ws.processing for ws in scheduler.workers.values()))
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                helper.send(**drain(600, "worker-0"))
                await until(lambda: statuses(scheduler)["worker-0"] == CLOSING)
                assert await helper.end() == 0
                await until(lambda: statuses(scheduler)["worker-0"] == "running")
            await Event("go").set()
            assert await task == "go"

        run(story)

    def test_earlier_attempt_does_not_undo_a_later_one(self) -> None:
        """The control plane gave up the first, which goes on in the scheduler, and began again."""

        async def story(scheduler: Scheduler, client: Client) -> None:
            task = client.submit(wait_for, "go", workers=["worker-0"])
            await until(lambda: any(ws.processing for ws in scheduler.workers.values()))
            address = scheduler.address
            async with (
                script(DASK, DASK_SCHEDULER_ADDRESS=address) as first,
                script(DASK, DASK_SCHEDULER_ADDRESS=address) as second,
            ):
                first.send(**drain(600, "worker-0"))
                await until(lambda: statuses(scheduler)["worker-0"] == CLOSING)
                second.send(**drain(600, "worker-0"))
                assert await first.reply() == refused("another attempt to drain it has begun")
                assert await first.end() == 0
                assert statuses(scheduler)["worker-0"] == CLOSING, "the second one goes on"
                await Event("go").set()
                assert await second.reply() == {"ok": {"worker-0": {"outcome": "moved"}}}
            assert statuses(scheduler) == {"worker-1": "running"} and await task == "go"

        run(story)

    def test_worker_that_is_busy_at_the_deadline_is_in_service_again(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            task = client.submit(wait_for, "go", workers=["worker-0"])
            await until(lambda: any(ws.processing for ws in scheduler.workers.values()))
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                begin = time.monotonic()
                reply = await helper.ask(**drain(0.5, "worker-0"))
                assert time.monotonic() - begin < SECONDS
                assert reply == refused("1 running task (wait_for)")
                await until(lambda: statuses(scheduler)["worker-0"] == "running")
            await Event("go").set()
            await task

        run(story)

    def test_silent_scheduler_is_an_error_and_the_next_request_works(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                port = closed.getsockname()[1]
            source = DASK.replace("CONNECT_SECONDS = 5.0", "CONNECT_SECONDS = 0.2")
            async with script(source, DASK_SCHEDULER_ADDRESS=f"tcp://127.0.0.1:{port}") as helper:
                for _ in range(2):
                    reply = await helper.ask(**drain(1, "worker-0"))
                    assert "does not reply" in reply["error"]

        run(story)

    def test_warning_reaches_clients(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            events: list[Any] = []
            client.subscribe_topic("warn", events.append)
            await until(lambda: client.id in scheduler._broker._topics["warn"].subscribers)
            async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                assert await helper.ask(op="warn", messages=["no group fits"]) == {"ok": {}}
            await until(lambda: events)
            assert events[0][1] == "no group fits"

        run(story)


def refused(reason: str) -> dict[str, Any]:
    return {"ok": {"worker-0": {"outcome": "refused", "reason": reason}}}


class TestHandOver:
    """A worker process that gets SIGTERM without having been drained, as an evicted pod does."""

    def test_results_move_and_running_tasks_end_before_the_worker_does(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            dask_helper.dask_setup(scheduler)
            async with worker_process(scheduler, "evicted", OARS_HAND_OVER="1") as process:
                held = client.submit(lambda: "x" * 1000, workers=["evicted"], allow_other_workers=True, key="held")
                scattered = await client.scatter("y" * 1000, workers=[address_of(scheduler, "evicted")])
                await held
                running = client.submit(wait_for, "go", workers=["evicted"])
                await until(lambda: any(ws.processing for ws in scheduler.workers.values()))
                process.terminate()
                await until(lambda: statuses(scheduler)["evicted"] == CLOSING)
                await until(lambda: len(scheduler.tasks["held"].who_has) > 1)
                assert process.returncode is None, "a task runs"
                await Event("go").set()
                assert await process.wait() == 0
                assert await client.gather([held, scattered, running]) == ["x" * 1000, "y" * 1000, "go"]
            assert set(statuses(scheduler)) == {"worker-0", "worker-1"}

        run(story)

    def test_drained_worker_waits_for_its_signal(self) -> None:
        """If it ended by itself, the kubelet would start its container again before the pod is deleted."""

        async def story(scheduler: Scheduler, client: Client) -> None:
            dask_helper.dask_setup(scheduler)
            missed, heartbeat = asyncio.Event(), scheduler.heartbeat_worker

            def answer(**message: Any) -> Any:
                reply = heartbeat(**message)
                if reply["status"] == "missing":
                    missed.set()
                return reply

            scheduler.handlers["heartbeat_worker"] = answer
            async with worker_process(scheduler, "drained", OARS_HAND_OVER="1") as process:
                async with script(DASK, DASK_SCHEDULER_ADDRESS=scheduler.address) as helper:
                    assert await helper.ask(**drain(10, "drained")) == {"ok": {"drained": {"outcome": "finished"}}}
                async with asyncio.timeout(SECONDS):
                    await missed.wait()
                with pytest.raises(TimeoutError):  # it used to take a few milliseconds
                    await asyncio.wait_for(process.wait(), 1.0)
                process.terminate()
                async with asyncio.timeout(15):
                    assert await process.wait() == 0
            assert "drained" not in statuses(scheduler)

        run(story)

    def test_worker_without_a_scheduler_ends_at_once(self) -> None:
        async def story(scheduler: Scheduler, client: Client) -> None:
            dask_helper.dask_setup(scheduler)
            async with worker_process(scheduler, "evicted", OARS_HAND_OVER="1") as process:
                endless = client.submit(wait_for, "never", workers=["evicted"], key="endless")
                await until(lambda: any(ws.processing for ws in scheduler.workers.values()))
                assert not endless.done()
                await scheduler.close()
                process.terminate()
                async with asyncio.timeout(15):
                    await process.wait()

        run(story)


@asynccontextmanager
async def worker_process(scheduler: Scheduler, name: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    argv = ["-m", "distributed.cli.dask_worker", scheduler.address, "--no-nanny", "--no-dashboard", "--name", name]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, "--dashboard-address", "127.0.0.1:0", "--nthreads", "1", env={**os.environ, **env}
    )
    try:
        await until(lambda: name in statuses(scheduler))
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def address_of(scheduler: Scheduler, name: str) -> str:
    return next(str(ws.address) for ws in scheduler.workers.values() if str(ws.name) == name)


class TestRay:
    def test_missing_gcs_is_reported_at_once(self) -> None:
        """Ray's own client would block for 40 s."""

        async def story() -> None:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                address = f"127.0.0.1:{closed.getsockname()[1]}"
            async with asyncio.timeout(SECONDS), script(RAY) as helper:
                for _ in range(2):
                    reply = await helper.ask(op="nodes", address=address)
                    assert "ConnectionRefusedError" in reply["error"]
                assert await helper.end() == 0

        asyncio.run(story())

    @pytest.mark.parametrize(("accepts", "seconds", "accepted"), [(3, SECONDS, True), (10**9, 0.1, False)])
    def test_drain_is_repeated_until_it_is_accepted_or_time_is_up(
        self, accepts: int, seconds: float, accepted: bool
    ) -> None:
        """A busy raylet is idle for short moments only."""
        gcs = Gcs(idle_ms=500, accepts=accepts)
        begin = time.monotonic()
        assert ray.drain(gcs, ["aa"], seconds, force=False) == {"aa": accepted}
        assert time.monotonic() - begin < SECONDS
        assert {request[3] for request in gcs.requests} == {0}, "no deadline: it must not be drained while it is busy"

    def test_busy_raylet_is_not_asked(self) -> None:
        """Ray would mark its actors as preempted, and then refuse."""
        gcs = Gcs(idle_ms=0)
        assert ray.drain(gcs, ["aa"], 0.2, force=False) == {"aa": False}
        assert not gcs.requests
        assert ray.drain(gcs, ["aa"], 0.2, force=True) == {"aa": True}

    def test_raylet_that_refuses_is_asked_once_per_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With each request the GCS writes the row of every actor there. Its reports are read much more often."""
        gcs, clock = Gcs(idle_ms=500, accepts=10**9), [1000.0]

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        monkeypatch.setattr(ray, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
        assert ray.drain(gcs, ["aa"], 9.5, force=False) == {"aa": False}
        assert len(gcs.requests) == 10 and gcs.looks > 100

    def test_only_requests_of_the_given_shapes_are_reported_as_infeasible(self) -> None:
        """Those that differ in their labels could be served."""
        gcs = Gcs(idle_ms=0)
        state = ray.resource_state(gcs)
        for needs, labels in (({"moon": 1.0}, ()), ({"CPU": 1.0}, ("gpu",)), ({"CPU": 1.0}, ())):
            pending = state.pending_resource_requests.add(count=2)
            pending.request.resources_bundle.update(needs)
            for key in labels:
                selector = pending.request.label_selectors.add()
                selector.label_constraints.add(label_key=key, label_values=["a"])
        state.pending_gang_resource_requests.add().requests.add().resources_bundle.update({"moon": 1.0})
        state.pending_gang_resource_requests.add().requests.add().resources_bundle.update({"CPU": 9.0})
        shapes: list[Any] = [
            {"needs": {"moon": 1.0}, "labels": []},
            {"needs": {"CPU": 1.0}, "labels": [["gpu", ["a"], False]]},
        ]
        assert ray.report(gcs, state, shapes) == 3
        (reported,) = gcs.reports
        found = [dict(each.resources_bundle) for each in reported.infeasible_resource_requests]
        assert found == [{"moon": 1.0}, {"CPU": 1.0}]
        assert len(reported.infeasible_resource_requests[1].label_selectors) == 1
        (gang,) = reported.infeasible_gang_resource_requests
        assert dict(gang.requests[0].resources_bundle) == {"moon": 1.0}
        assert ray.report(gcs, state, []) == 0
        assert gcs.reports[1].autoscaler_state_version >= reported.autoscaler_state_version


class Gcs:
    """One raylet, idle for so long, which accepts the drain request of that number."""

    def __init__(self, idle_ms: int, accepts: int = 1) -> None:
        self.requests: list[Any] = []
        self.looks = 0
        self.reports: list[Any] = []
        self._accepts = accepts
        reply = autoscaler_pb2.GetClusterResourceStateReply()
        node = reply.cluster_resource_state.node_states.add()
        node.node_id, node.idle_duration_ms = b"\xaa", idle_ms
        self._state: bytes = reply.SerializeToString()

    def get_cluster_resource_state(self, timeout_s: float) -> bytes:
        self.looks += 1
        return self._state

    def report_autoscaling_state(self, state: bytes) -> None:
        self.reports.append(autoscaler_pb2.AutoscalingState.FromString(state))

    def drain_node(self, *request: Any, timeout: float) -> tuple[bool, str]:
        self.requests.append(request)
        return len(self.requests) >= self._accepts, ""
