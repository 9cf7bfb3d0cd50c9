"""A cluster that the tests of a class share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from oars.client.sync import Cluster
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.leaks import assert_nothing_left, files


class OneCluster:
    """Set `spec`. The cluster has two workers and is started once per class."""

    spec: ClassVar[Mapping[str, Any]]
    timeout: ClassVar[str] = "120s"

    @pytest.fixture(scope="class")
    @classmethod
    def state(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A state directory for the class; checks afterwards that nothing is left behind."""
        state, before = tmp_path_factory.mktemp("contract") / "state", files()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(state))
            yield state
        assert_nothing_left(state, before)

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, state: Path) -> Iterator[Cluster]:
        data = {"workers": [{"replicas": 2, "cpu": 1, "memory": "1Gi"}], **cls.spec}
        with Cluster(build(data).spec, name="contract", timeout=cls.timeout) as cluster:
            yield cluster


def settled(cluster: Cluster) -> bool:
    status = cluster.status()
    return status.phase is Phase.READY and len(status.members) == 1 + status.wanted


def pids(cluster: Cluster) -> dict[str, int | None]:
    return {member.id: member.pid for member in cluster.members()}


def kill_and_wait(cluster: Cluster, victim: str, before: dict[str, int | None]) -> float:
    pid = before[victim]
    assert pid is not None
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: pids(cluster).get(victim) not in (None, pid), 90)
    until(lambda: settled(cluster), 90)  # Cluster.wait gives up on a member that has died often, as here it has
    return time.monotonic() - start


def replace_workers(cluster: Cluster) -> None:
    """Get workers that have not died before: those that died often start again only after a pause."""
    workers = cluster.status().wanted
    cluster.scale(0)
    until(lambda: len(cluster.members()) == 1, 90)
    cluster.scale(workers)
    until(lambda: settled(cluster), 90)


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds} s"
        time.sleep(0.05)
