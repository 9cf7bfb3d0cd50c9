"""The newer KubeCluster with a cluster that exists already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from distributed import Scheduler

from oars.base.errors import EngineUnreachable, NameInUse
from oars.compat.dask_kubernetes.operator import KubeCluster, kubecluster, make_cluster_spec
from oars.engines.base import Access
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import MemberStatus, Phase, Status
from tests.unit.compat.memory_handle import MemoryHandle, newer_cluster


@dataclass
class ExistingCluster(MemoryHandle):
    """A cluster of another program, and the backend that lists it."""

    address: str = ""
    problem: Exception | None = None
    namespace: str = "lab"
    is_stopped: bool = False

    async def login(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def list(self) -> list[ExistingCluster]:
        return [self]

    async def generation(self) -> int:
        return 0

    async def watch(self) -> AsyncIterator[Report]:
        head = MemberStatus("head", "head", "", Phase.READY)
        yield Report(Status(self.name, self.kept.engine, "kubernetes", Phase.READY, members=(head,)))

    async def open(self) -> None:
        if self.problem is not None:
            raise self.problem

    def access(self) -> Access:
        return Access(self.name, "dask", self.address, "http://127.0.0.1:8787/status", {})

    async def stop(self) -> bool:
        self.is_stopped = True
        return True


def existing(
    monkeypatch: pytest.MonkeyPatch, engine: str = "dask", spec: Mapping[str, Any] | None = None, **more: Any
) -> ExistingCluster:
    handle = ExistingCluster(ClusterSpec.model_validate({"engine": engine, **(spec or {})}), **more)
    monkeypatch.setattr(kubecluster, "backend_for", lambda *_: handle)
    return handle


async def connect(**options: Any) -> None:
    async with KubeCluster(name="demo", image="i:1", quiet=True, asynchronous=True, **options):
        pass


def test_cluster_of_another_engine_is_refused_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = existing(monkeypatch, "ray")
    with pytest.raises(NameInUse, match="'demo' runs ray") as caught:
        asyncio.run(connect(shutdown_on_close=True))
    assert caught.value.hint and not handle.is_stopped


def test_failed_connection_deletes_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = existing(monkeypatch, problem=EngineUnreachable("The head does not answer."))
    with pytest.raises(EngineUnreachable):
        asyncio.run(connect(shutdown_on_close=True))
    assert not handle.is_stopped


@pytest.mark.parametrize("shutdown_on_close", [True, False, None])
def test_closing_deletes_a_connected_cluster_only_by_argument(
    monkeypatch: pytest.MonkeyPatch, shutdown_on_close: bool | None
) -> None:
    async def body() -> None:
        async with Scheduler(port=0, dashboard_address=":0") as scheduler:
            handle = existing(monkeypatch, address=scheduler.address)
            await connect(shutdown_on_close=shutdown_on_close)
            assert handle.is_stopped is bool(shutdown_on_close)

    asyncio.run(body())


SECRET = {"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
OTHERS = {
    "image": "mine:7",
    "workers": [
        {"name": "default", "replicas": 2, "cpu": "0.5", "memory": "2Gi", "burst": True, "gpu": 1, "env": {"A": "1"},
         "resources": {"FAST": 2}, "pod": {"spec": {"containers": [{"name": "worker", "env": [SECRET]}]}}},
        {"name": "other"},
    ],
    "expose": {"type": "NodePort"},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["CONNECT_ONLY", "CREATE_OR_CONNECT"])
def test_added_group_is_like_the_default_group_of_a_connected_cluster(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async def body() -> None:
        async with Scheduler(port=0, dashboard_address=":0") as scheduler:
            handle = existing(monkeypatch, spec=OTHERS, address=scheduler.address)
            default = handle.kept.workers[0]
            # Its Service is no ClusterIP, so the port at 127.0.0.1 is no port-forward.
            async with KubeCluster(
                name="demo", create_mode=mode, image="other:1", resources={"requests": {"cpu": 3}}, quiet=True,
                port_forward_cluster_ip=False, asynchronous=True,
            ) as cluster:  # fmt: skip
                assert (cluster.image, cluster.n_workers, cluster.scheduler_service_type) == ("mine:7", 2, "NodePort")
                await cluster.add_worker_group("more", 2)
                await cluster.add_worker_group("hers", 1, image="hers:1", env={"B": "2"})
            more, hers = handle.kept.workers[2:]
            assert more.model_copy(update={"name": "default"}) == default
            assert (hers.env, hers.cpu, hers.memory, hers.gpu) == ({"B": "2"}, 0.5, 2 << 30, 1)
            assert hers.pod == {"spec": {"containers": [{"name": "worker", "image": "hers:1"}]}}

    asyncio.run(body())


def test_added_group_is_like_that_of_a_custom_cluster_spec() -> None:
    spec = make_cluster_spec("demo", image="i:1", env={"A": "1"}, resources={"limits": {"cpu": "2", "memory": "1Gi"}})

    async def body() -> None:
        cluster, handle = newer_cluster(custom_cluster_spec=spec)
        await cluster.add_worker_group("more", cluster.n_workers)
        default, more = handle.kept.workers
        assert more.model_copy(update={"name": "default"}) == default and more.env == {"A": "1"} and more.cpu == 2
        await cluster.close()

    asyncio.run(body())
