"""Direct mode on a real control plane, with simulated pods: the client creates and reconciles a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lab.faultproxy import FaultProxy
from lab.faults import Answer, Drop, EndWatch, Pass, Rule
from lab.wait import until
from tests.api.stage import Stage, group, quiet_for, requests, resource

from oars.base.errors import NameInUse, Replaced, SpecError
from oars.base.settings import Settings
from oars.client.backend import CreateOptions, Location
from oars.client.handles import scale
from oars.client.kubernetes import KubeBackend
from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import CONFIG_MAP, Object
from oars.model import LoopState
from oars.places.kube import names
from oars.places.kube.state import cache, owned_objects
from oars.places.kube.state.root import ConfigMapRoot
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build
from oars.spec.status import Phase, Status

Proxies = Callable[..., FaultProxy]
SECONDS = 60


class DemoClient:
    """The backend of one client, and its handle of the cluster demo."""

    def __init__(self, location: Location) -> None:
        self.backend = KubeBackend(Settings.from_environ(os.environ), os.environ, location)
        self.demo = self.backend.cluster("demo")

    async def create(self, spec: ClusterSpec, *, tied: bool = False) -> None:
        self.demo = await self.backend.create("demo", spec, CreateOptions(tied))

    async def names(self) -> list[str]:
        return [handle.name for handle in await self.backend.list()]


@asynccontextmanager
async def at_home(stage: Stage, kubeconfig: Path | None = None, mode: str = "direct") -> AsyncIterator[DemoClient]:
    """A client of its own."""
    path = str(kubeconfig or stage.kube.kubeconfig)
    home = DemoClient(Location("kubernetes", namespace=stage.kube.namespace, kubeconfig=path, mode=mode))
    try:
        yield home
    finally:
        await home.backend.close()


async def make(home: DemoClient, replicas: int = 3, *, tied: bool = False) -> None:
    spec = build({**resource("demo", group(replicas=replicas))["spec"], "place": "kubernetes"}).spec
    await home.create(spec, tied=tied)


async def ready(home: DemoClient, wanted: int, seconds: float = SECONDS) -> Status:
    """Until it has so many workers, and says so of the newest description."""
    generation = await home.demo.generation()
    async with asyncio.timeout(seconds):
        async for report in home.demo.watch():
            status = report.status
            if status.generation >= generation and status.phase is Phase.READY and status.ready == wanted:
                return status
    raise AssertionError("the cluster went away")


def run_scenario(scenario: Awaitable[None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(280):
            await scenario

    asyncio.run(run())


@pytest.mark.parametrize("tied", [False, True])
def test_life_cycle(tied: bool, stage: Stage, fault_proxy: Proxies, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (owned_objects, cache):  # where watches lag nothing is asked for twice, so that writes can be counted
        monkeypatch.setattr(module, "CATCH_UP", 60.0)
    proxy = fault_proxy()

    async def scenario() -> None:
        async with at_home(stage, proxy.kubeconfig) as home:
            await make(home, tied=tied)
            status = await ready(home, 3)
            assert (status.mode, status.namespace) == ("direct", stage.kube.namespace)
            made = [r.request for r in proxy.writes if r.request.resource not in ("leases", "events", "configmaps")]
            assert len(made) <= (9 if tied else 6), made  # with the helper's Secret and rights
            before = len(proxy.writes)
            await scale(home.demo, 6)
            await ready(home, 6)
            written = [f"{r.request.verb} {r.request.resource}" for r in proxy.writes[before:]]
            assert written.count("patch deployments") == 1
            await scale(home.demo, 2)
            await ready(home, 2)
            assert await home.demo.stop(90)
        stage_is_empty(stage)

    run_scenario(scenario())


def stage_is_empty(stage: Stage) -> None:
    until("nothing is left", lambda: not stage.left("demo"))


# What a client looks for now and then: it may not be allowed to watch them.
UNWATCHED = ("ServiceAccount", "Service", "NetworkPolicy")


def object_writes(proxy: FaultProxy) -> list[str]:
    return [f"{r.request.verb} {r.request.resource}" for r in proxy.writes if r.request.resource != "leases"]


def test_only_the_lease_is_written_at_rest(stage: Stage, fault_proxy: Proxies) -> None:
    proxy = fault_proxy()

    async def scenario() -> None:
        async with at_home(stage, proxy.kubeconfig) as home:
            await make(home)
            await ready(home, 3)
            await asyncio.to_thread(stage.await_guarded, "demo")
            await asyncio.to_thread(until, "it settles", lambda: quiet_for(2, lambda: requests(proxy)) == 0)
            written = len(object_writes(proxy))
            reads = await asyncio.to_thread(quiet_for, 8, lambda: requests(proxy))
            assert object_writes(proxy)[written:] == []
            assert reads <= len(UNWATCHED), "one look for what is not watched"

    run_scenario(scenario())


def test_name_is_taken_once(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home, at_home(stage) as other:
            await make(home)
            with pytest.raises(NameInUse, match="Cluster 'demo' exists already"):
                await make(other)

    run_scenario(scenario())


def test_recorded_state_is_not_used_for_another_cluster_of_the_same_name(stage: Stage) -> None:
    metadata: Object = {"name": "demo-oars", "namespace": stage.kube.namespace, "labels": {names.CLUSTER: "demo"}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    async def scenario() -> None:
        async with Client(config.load({}, kubeconfig=stage.kube.kubeconfig)) as client:
            root = ConfigMapRoot(client, await client.create(config_map))
            await root.save(LoopState(head="a:0"), None)
            first = await client.get(CONFIG_MAP, metadata["name"], metadata["namespace"])
            assert "a:0" in first["data"]["state.json"]
            await client.delete(CONFIG_MAP, metadata["name"], metadata["namespace"])
            await client.create(config_map)
            with pytest.raises(Replaced):
                await root.save(LoopState(head="b:0"), None)
            assert "data" not in await client.get(CONFIG_MAP, metadata["name"], metadata["namespace"])

    run_scenario(scenario())


def test_spec_that_cannot_be_rendered_creates_nothing(stage: Stage) -> None:
    async def scenario() -> None:
        wrong = {"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}
        spec = build({**resource("demo", group(pod=wrong))["spec"], "place": "kubernetes"}).spec
        async with at_home(stage) as home:
            with pytest.raises(SpecError, match="cannot be set"):
                await home.create(spec)
        assert stage.left("demo") == []

    run_scenario(scenario())


def test_another_client_attaches_and_takes_over(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as second:
            async with at_home(stage) as first:
                await make(first)
                await ready(first, 3)
                assert await second.names() == ["demo"]
                assert (await second.demo.report()).status.ready == 3
            # The first has gone in good order and left the cluster.
            await scale(second.demo, 4)
            await ready(second, 4)
            assert await second.demo.stop(90)

    run_scenario(scenario())


WEATHER = {
    "conflicts": [Rule(Answer(409), verb="patch", chance=0.4, times=6)],
    "errors of the server": [Rule(Answer(500), verb="patch", chance=0.4, times=8)],
    "answers that get lost": [Rule(Drop(applied=True), verb="patch", chance=0.4, times=6)],
    "watches that are cut": [Rule(EndWatch(2, "cut"), verb="watch", times=6)],
    "watches that expire": [Rule(EndWatch(2, "expired"), verb="watch", times=6)],
}


@pytest.mark.parametrize("weather", WEATHER)
def test_api_errors_only_delay_the_life_cycle(weather: str, stage: Stage, fault_proxy: Proxies) -> None:
    proxy = fault_proxy(seed=3)

    async def scenario() -> None:
        async with at_home(stage, proxy.kubeconfig) as home:
            await make(home)
            proxy.script.rules = [Rule(Pass(), resource="leases"), *WEATHER[weather]]
            await ready(home, 3, 90)
            proxy.script.rules = []  # what the user himself asks for would be told, not tried again
            await scale(home.demo, 1)
            await ready(home, 1, 60)
            assert await home.demo.stop(90)

    run_scenario(scenario())
