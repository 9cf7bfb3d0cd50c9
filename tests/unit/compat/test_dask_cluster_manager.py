"""The life cycle of both KubeClusters: what they created is removed after Ctrl-C and at exit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from distributed import Scheduler
from distributed.core import rpc

from oars.base.errors import OarsError
from oars.compat.dask_kubernetes import cluster_manager

REMOVAL_SECONDS = 0.2  # requests to an API server


class InterruptedCluster(cluster_manager.ClusterManager):
    """Ctrl-C is pressed while it waits for its scheduler. `done` lists what happened."""

    def __init__(self, done: list[str]) -> None:
        self.done = done
        super().__init__("demo", quiet=True)

    async def _deploy(self) -> None:
        self._opened.push_async_callback(self._remove)
        self.done.append("created")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    async def _remove(self) -> None:
        await asyncio.sleep(REMOVAL_SECONDS)
        self.done.append("removed")


class RunningCluster(cluster_manager.ClusterManager):
    """A scheduler in this process. Its removal fails as often as `failures` says."""

    def __init__(self, name: str, removed: list[str], failures: int = 0) -> None:
        self.removed, self.failures = removed, failures
        super().__init__(name, quiet=True)

    async def _deploy(self) -> None:
        scheduler = await Scheduler(port=0, dashboard_address=":0")
        self._opened.push_async_callback(scheduler.close)
        self._opened.push_async_callback(self._remove)
        self.scheduler_comm = rpc(scheduler.address)

    async def _remove(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OarsError("The API server does not answer.")
        self.removed.append(self.name)


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_interrupted_start_removes_what_it_created() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        InterruptedCluster(done)
    assert done == ["created", "removed"]


def test_failed_deletion_at_exit_leaves_no_other_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    removed: list[str] = []
    clusters = [RunningCluster("broken", removed, failures=1), RunningCluster("a", removed)]
    monkeypatch.setattr(cluster_manager.ClusterManager, "_instances", clusters)
    cluster_manager.close_clusters()
    assert removed == ["a"]
    (warning,) = [each.getMessage() for each in caplog.records if each.name == cluster_manager.logger.name]
    assert "'broken'" in warning and "The API server does not answer." in warning
