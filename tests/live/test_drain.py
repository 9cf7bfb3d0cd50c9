"""Draining on request, with real processes of the toy engine, and of Dask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars.base.errors import NotFound, TimedOut, UsageError
from oars.client.sync import Cluster
from oars.spec.load import build
from oars.testing.cluster import until
from oars.testing.driver import DriverProgram

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# A result that one worker holds, and that is made only once.
DASK = """
import sys
from distributed import Client, wait
def make(path):
    with open(path, "a") as stream:
        stream.write("made\\n")
    return "kept"
if __name__ == "__main__":
    with Client() as client:
        held = client.submit(make, sys.argv[1], workers=["worker-0"], allow_other_workers=True)
        wait(held)
        print("held", flush=True)
        input()
        print(held.result(), flush=True)
        input()
        held.release()
        print("released", flush=True)
"""


def oars(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("oars")), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    spec = build({"engine": "toy", "workers": 2, "drain": {"timeout": "5s"}}).spec
    with Cluster(spec, name="drains", timeout="60s") as cluster:
        yield cluster


def ids(cluster: Cluster) -> set[str]:
    return {member.id for member in cluster.members() if member.role == "worker"}


def items(cluster: Cluster) -> list[str]:
    return [item for worker in cluster.client().workers().values() for item in worker["items"]]


def test_drained_worker_is_replaced_and_its_data_survives(cluster: Cluster) -> None:
    cluster.client().put("worker-0", "kept")
    done = oars("drain", "drains", "worker-0", "-o", "json")
    assert json.loads(done.stdout)["phase"] == "Ready"
    assert ids(cluster) == {"worker-1", "worker-2"} and items(cluster) == ["kept"]
    cluster.scale(3)
    cluster.wait(timeout="60s")
    assert ids(cluster) == {"worker-0", "worker-1", "worker-2"}, "a new worker-0 is not the one that was drained"


def test_worker_that_cannot_be_emptied_stays_until_it_is_forced(cluster: Cluster) -> None:
    cluster.client().put("worker-0", "pinned")
    error = oars("drain", "drains", "worker-0", "--timeout", "3s", code=4).stderr
    assert "worker-0 waits for a pinned item" in error and "`oars drain drains worker-0 --force`" in error
    causes = {cause.reason: cause for cause in cluster.why()}
    assert "because its drain was requested" in causes["Draining"].message
    assert "pinned" in items(cluster)
    until(lambda: cluster.status().ready == 2, 60)  # its successor is there already
    oars("drain", "drains", "worker-0", "--force")
    assert ids(cluster) == {"worker-1", "worker-2"}


def test_unknown_members_and_the_head_are_rejected(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="worker-9"):
        cluster.drain("worker-9")
    with pytest.raises(UsageError, match="head"):
        cluster.drain(["head"])
    with pytest.raises(UsageError, match="No worker"):
        cluster.drain([])
    assert "worker-9" in oars("drain", "drains", "worker-9", code=3).stderr


def test_down_waits_until_results_are_released(cluster: Cluster) -> None:
    """The toy engine does not report its work; an item that cannot move keeps its worker."""
    client = cluster.client()
    client.put("worker-1", "held")
    with pytest.raises(TimedOut, match="another worker to take its items"):
        cluster.stop(drain=True, timeout="4s")
    until(lambda: cluster.status().ready == 2, 60)
    assert items(cluster) == ["held"]
    release = threading.Timer(3.0, lambda: client.clear())
    release.start()
    done = oars("down", "drains", "--drain", "--drain-timeout", "60s")
    assert done.stdout == "drains is stopped.\n"
    assert "waits for" in done.stderr
    release.join()


def test_result_of_dask_outlives_its_drained_worker_and_keeps_the_cluster_until_it_is_released(tmp_path: Path) -> None:
    spec, journal = build({"engine": "dask", "workers": [{"replicas": 2, "memory": "512Mi"}]}).spec, tmp_path / "made"
    with (
        Cluster(spec, name="drains-dask", timeout="120s") as cluster,
        DriverProgram(cluster, DASK, str(journal)) as driver,
    ):
        driver.expect("held")
        done = oars("drain", "drains-dask", "worker-0", "-o", "json")
        assert json.loads(done.stdout)["phase"] == "Ready" and ids(cluster) == {"worker-1", "worker-2"}
        driver.tell()
        driver.expect("kept")
        error = oars("down", "drains-dask", "--drain", "--drain-timeout", "2s", code=4).stderr
        assert "result" in error
        until(lambda: cluster.status().ready == 2, 60)
        driver.tell()
        driver.expect("released")
        assert oars("down", "drains-dask", "--drain").stdout == "drains-dask is stopped.\n"
    assert journal.read_text() == "made\n", "the task ran again"
