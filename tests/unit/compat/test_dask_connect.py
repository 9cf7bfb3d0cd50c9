"""The newer KubeCluster with a cluster that exists already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from distributed import Scheduler

from oars.base.errors import EngineUnreachable, NameInUse
from oars.compat.dask_kubernetes.operator import KubeCluster, kubecluster
from oars.engines.base import Access
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import MemberStatus, Phase, Status
from tests.unit.compat.memory_handle import MemoryHandle


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


def existing(monkeypatch: pytest.MonkeyPatch, engine: str = "dask", **more: Any) -> ExistingCluster:
    handle = ExistingCluster(ClusterSpec.model_validate({"engine": engine}), **more)
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
