"""Dask-specific behaviour with real clusters. Drivers run in Dask's environment."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import distributed
import pytest

from oars import Cluster
from oars.base.settings import Settings
from oars.places.local.store import Store
from oars.spec.load import build
from oars.spec.resources import show_memory
from oars.testing.driver import DriverProgram, run_driver
from tests.passes import await_passes

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

CONNECT = """
import os, time
from distributed import Client, get_worker, wait
def workers(): return {w["name"]: a for a, w in client.scheduler_info(n_workers=-1)["workers"].items()}
if __name__ == "__main__":
    client = Client()
"""


def dask(workers: int | list[dict[str, Any]], **more: Any) -> Cluster:
    groups = [{"replicas": workers, "memory": "1Gi"}] if isinstance(workers, int) else workers
    return Cluster(build({"engine": "dask", "workers": groups, **more}).spec, timeout="120s")


def program(body: str, functions: str = "") -> str:
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return functions + CONNECT + indented


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.05)


def members(cluster: Cluster) -> set[str]:
    return {member.id for member in cluster.members()}


def why(cluster: Cluster) -> str:
    return " ".join(cause.message for cause in cluster.why())


def draining(cluster: Cluster) -> bool:
    return any(cause.reason == "Draining" for cause in cluster.why())


class TestDrain:
    def test_drain_lets_running_tasks_finish_and_moves_queued_ones(self) -> None:
        source = program(
            """
with tempfile.TemporaryDirectory() as directory:
    path, end = os.path.join(directory, "runs"), os.path.join(directory, "end")
    busy = [client.submit(log, path, n, end, workers=[a], pure=False) for n, a in enumerate(workers().values())]
    while not os.path.exists(path) or len(open(path).readlines()) < 3: time.sleep(0.05)
    queued = [client.submit(log, path, n, directory, workers=[a], allow_other_workers=True, pure=False)
              for n in range(100, 110) for a in workers().values()]
    print("busy", flush=True)
    input()
    open(end, "w").close()
    client.gather(busy + queued)
    print("runs:", len(open(path).readlines()), flush=True)
""",
            """
import tempfile
def log(path, number, end):
    with open(path, "a") as runs: runs.write(f"{number}\\n")
    while not os.path.exists(end): time.sleep(0.05)
""",
        )
        with dask(3) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("busy")
            cluster.scale(1)
            until(lambda: draining(cluster))
            await_passes(cluster, 1)
            assert len(members(cluster)) == 4, "workers were removed while their tasks ran"
            driver.tell()
            until(lambda: len(members(cluster)) == 2)
            assert driver.expect("runs:") == "runs: 33", "a task was run twice"

    def test_draining_two_workers_keeps_data_that_only_they_hold(self) -> None:
        """Both copies are on workers that are removed. The worker with the most data stays."""
        source = program("""
a, b, c = (address for _, address in sorted(workers().items()))
client.amm.stop()
stays = client.submit(bytes, 30_000_000, workers=[c], pure=False)
both = client.scatter(b"y" * 1000, workers=[a])
client.replicate([both], n=2, workers=[a, b])
wait(stays)
print("held", flush=True)
input()
print("there:", both.result() == b"y" * 1000, flush=True)
""")
        with dask(3) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            cluster.scale(1)
            until(lambda: len(members(cluster)) == 2)
            driver.tell()
            assert driver.expect("there:").endswith("True")

    def test_last_worker_is_kept_while_it_holds_results(self) -> None:
        source = program("""
held = client.submit(bytes, 1_000_000, pure=False)
wait(held)
print("held", flush=True)
input()
print("there:", len(held.result()) == 1_000_000, flush=True)
held.release()
input()
""")
        with dask(1) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            cluster.scale(0)
            until(lambda: "no other worker can take" in why(cluster))
            driver.tell()
            assert driver.expect("there:").endswith("True")
            until(lambda: members(cluster) == {"head"})

    def test_worker_with_an_actor_is_kept_unless_forced(self) -> None:
        source = program(
            """
counter = client.submit(Counter, actor=True).result()
counter.up().result()
print("acting", flush=True)
input()
print("count:", counter.up().result(), flush=True)
input()
try:
    counter.up().result()
except Exception as error:
    print("lost:", error, flush=True)
""",
            """
class Counter:
    n = 0
    def up(self):
        self.n += 1
        return self.n
""",
        )
        with dask(1) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("acting")
            cluster.scale(0)
            until(lambda: "1 actor (Counter)" in why(cluster))
            driver.tell()
            assert driver.expect("count:").endswith("2")
            cluster.scale(0, force=True)
            until(lambda: members(cluster) == {"head"})
            driver.tell()
            driver.expect("lost:")

    def test_scaling_up_during_a_drain_keeps_the_worker(self) -> None:
        source = program(
            """
with tempfile.TemporaryDirectory() as directory:
    busy = [client.submit(nap, directory, n, workers=[a], pure=False) for n, a in enumerate(workers().values())]
    while len(os.listdir(directory)) < 2: time.sleep(0.05)
    print("busy", flush=True)
    input()
    open(os.path.join(directory, "end"), "w").close()
    wait(busy)
input()
used = client.gather([client.submit(lambda: get_worker().name, workers=[a], pure=False) for a in workers().values()])
print("used:", len(set(used)), flush=True)
""",
            """
import tempfile
def nap(directory, number):
    open(os.path.join(directory, str(number)), "w").close()
    while not os.path.exists(os.path.join(directory, "end")): time.sleep(0.05)
""",
        )
        with dask(2) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("busy")
            cluster.scale(1)
            until(lambda: draining(cluster))
            cluster.scale(2)
            until(lambda: not draining(cluster))
            driver.tell()
            cluster.wait(timeout="90s")
            await_passes(cluster, 2)  # they drain no worker that is reported as ready
            driver.tell()
            assert driver.expect("used:").endswith("2")

    def test_scaling_down_during_a_rechunk_gives_the_right_result(self) -> None:
        source = program("""
import numpy
import dask.array as da
x = da.random.default_rng(7).random((2000, 2000), chunks=(2000, 50))
print("computing", flush=True)
total = (x.rechunk((50, 2000), method="p2p") + 1).sum(axis=1).compute()
y = da.random.default_rng(7).random((2000, 2000), chunks=(2000, 50)).compute()
print("right:", numpy.allclose(total, (y + 1).sum(axis=1)), flush=True)
""")
        with dask(4) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("computing")
            time.sleep(0.5)
            cluster.scale(2)
            assert driver.expect("right:").endswith("True")
            until(lambda: len(members(cluster)) == 3)


class TestWorkers:
    def test_forked_workers_draw_different_random_numbers(self) -> None:
        source = program("""
def draw():
    import random, uuid, numpy
    return random.random(), numpy.random.rand(), numpy.random.default_rng().random(), uuid.uuid1().hex, uuid.uuid4().hex
drawn = list(client.run(draw).values())
print("different:", all(len(set(column)) == 3 for column in zip(*drawn)), flush=True)
""")
        with dask(3) as cluster:
            assert "different: True" in run_driver(cluster, source)

    def test_workers_have_the_given_sizes_resources_and_configuration(self) -> None:
        groups = [
            {"name": "default", "replicas": 1, "cpu": 2, "memory": "600Mi", "resources": {"disk": 2}},
            {"name": "big", "replicas": 1, "cpu": 1, "memory": "1Gi", "gpu": 1},
        ]
        config = {"distributed": {"comm": {"offload": "3MiB"}, "logging": {"distributed.worker": "warning"}}}
        source = program("""
import distributed.comm.utils
w = {i["name"]: (i["nthreads"], i["memory_limit"] >> 20, i["resources"])
     for i in client.scheduler_info(n_workers=-1)["workers"].values()}
print(w == {"worker-0": (2, 600, {"disk": 2}), "big-0": (1, 1024, {"GPU": 1})}, w)
name = lambda: get_worker().name
print([client.submit(name, resources={what: 1}, pure=False).result() for what in ("GPU", "disk")])
offload = lambda: __import__("distributed.comm.utils").comm.utils.OFFLOAD_THRESHOLD >> 20
print({offload(), client.run_on_scheduler(offload), *client.run(offload).values()})
""")
        with dask(groups, dask={"config": config}) as cluster:
            lines = run_driver(cluster, source)
            told = [line for line in lines if line.startswith(("True", "False", "[", "{"))]  # not what libraries say
            assert told[0].startswith("True"), lines
            assert told[1:] == ["['big-0', 'worker-0']", "{3}"]
            assert "distributed.worker - INFO" not in cluster.logs("worker-0")

    def test_worker_that_exceeds_its_memory_is_replaced_and_reported(self) -> None:
        source = program(
            """
try:
    client.submit(eat).result(90)
except Exception as error:
    print("failed:", type(error).__name__, flush=True)
""",
            "def eat(): return len([bytes(range(256)) * 40_000 for _ in range(10_000)])\n",
        )
        groups = [{"replicas": 1, "memory": "500Mi"}]
        with (
            dask(groups, dask={"config": {"distributed": {"scheduler": {"allowed-failures": 0}}}}) as cluster,
            DriverProgram(cluster, source) as driver,
        ):
            assert driver.expect("failed:").endswith("KilledWorker")
            assert "Out of memory" in cluster.logs("worker-0")
            cluster.wait(timeout="60s")


class TestSecurity:
    def test_clients_without_the_certificate_are_refused(self) -> None:
        """Neither without the cluster's certificate nor without encryption."""
        source = """
import asyncio, os
address = os.environ.pop("DASK_SCHEDULER_ADDRESS")
for name in [name for name in os.environ if name.startswith("DASK_DISTRIBUTED__COMM")]:
    del os.environ[name]
from distributed.core import rpc
async def knock(protocol):
    try:
        await asyncio.wait_for(rpc(address.replace("tls", protocol)).identity(), 5)
        return "admitted"
    except (OSError, TypeError, asyncio.TimeoutError):
        return "refused"
print("strangers:", asyncio.run(knock("tls")), asyncio.run(knock("tcp")))
"""
        with dask(1) as cluster:
            assert "strangers: refused refused" in run_driver(cluster, source)

    def test_tls_can_be_disabled(self) -> None:
        source = program('print("sum", client.submit(sum, [1, 2]).result(60), client.scheduler.address[:6])')
        with dask(1, dask={"protocol": "tcp"}) as cluster:
            assert "sum 3 tcp://" in run_driver(cluster, source)
            assert cluster.address.startswith("tcp://127.0.0.1:")


def test_logs_of_a_successful_start_contain_no_warnings() -> None:
    with dask(3) as cluster:
        text = cluster.logs()
        assert "Registered to" in text
        assert not [line for line in text.splitlines() if "WARNING" in line or "ERROR" in line or "Traceback" in line]


class TestVersions:
    def test_patch_release_of_python_prints_no_table(self) -> None:
        """A client of another patch release: no warning. Of another minor one: Dask's table, as ever."""
        source = """
import warnings
from distributed import Client, versions
info = versions.get_package_info
def connect(python):
    versions.get_package_info = lambda packages: {**info(packages), "python": python}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Client() as client:
            assert client.submit(sum, [1, 2]).result(timeout=60) == 3
    return [each for each in caught if issubclass(each.category, versions.VersionMismatchWarning)]
if __name__ == "__main__":
    print("patch", len(connect("3.11.99.final.0")), flush=True)
    print("minor", len(connect("3.9.1.final.0")), flush=True)
"""
        with dask(1) as cluster:
            assert [line for line in run_driver(cluster, source) if line.startswith(("patch", "minor"))] == [
                "patch 0",
                "minor 1",
            ]

    def test_dask_dataframe_works_with_what_the_extra_installs(self) -> None:
        source = """
from distributed import Client
import pandas as pd
import dask.dataframe as dd
if __name__ == "__main__":
    with Client():
        frame = dd.from_pandas(pd.DataFrame({"key": list("aab"), "value": [1, 2, 3]}), npartitions=2)
        print("sums", frame.groupby("key").value.sum().compute().to_dict())
"""
        with dask(1) as cluster:
            assert "sums {'a': 3, 'b': 3}" in run_driver(cluster, source)


class TestHabits:
    """What users of Dask's own clusters type."""

    def test_dask_s_client_takes_the_cluster(self) -> None:
        with dask(1) as cluster:
            with distributed.Client(cluster, timeout=60) as client:
                assert client.submit(sum, [1, 2]).result(timeout=60) == 3
                assert client.dashboard_link == cluster.dashboard_link
                assert cluster.name in client._repr_html_()
            assert cluster.scheduler_address == cluster.address
            assert cluster.get_client().submit(sum, [3, 4]).result(timeout=60) == 7
            assert cluster.status().ready == 1, "closing a client does not stop the cluster"

    def test_repr_and_card_are_true_after_scale(self) -> None:
        with Cluster("dask", workers=2, timeout="120s") as cluster:
            share = cluster._cluster._spec.workers[0].memory
            assert share is not None
            assert f"Ready, workers 2/2, memory {show_memory(2 * share)}>" in repr(cluster)
            cluster.scale(3)
            assert "workers 2/3" in repr(cluster) or "workers 3/3" in repr(cluster)
            cluster.wait(3)
            assert f"Ready, workers 3/3, memory {show_memory(3 * share)}>" in repr(cluster)
            assert cluster.dashboard_link in cluster._repr_html_()
            other = Cluster.attach(cluster.name)
            assert repr(other) == repr(cluster)
            other.close()
        assert "Stopped, workers 0/3, memory 0" in repr(cluster)

    def test_client_warns_and_closes_when_its_cluster_object_is_collected(self) -> None:
        with pytest.warns(RuntimeWarning, match="nothing refers to the Cluster object any more"):
            client = Cluster("dask", workers=1, timeout="120s").client()
            gc.collect()
        until(lambda: client.status == "closed")
        with pytest.raises(distributed.client.ClosedClientError, match="closed"):
            client.submit(sum, [1, 2])
        until(lambda: not Store(Settings.from_environ(os.environ).state_dir).names())
