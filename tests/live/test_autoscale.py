"""Autoscaling on one machine with real processes of every engine: from zero, with the load, and back to zero."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from oars import Cluster
from oars.spec.load import build
from oars.testing.driver import DriverProgram

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ENGINES: dict[str, dict[str, Any]] = {
    "dask": {"engine": "dask"},
    "ray": {"engine": "ray"},
    "mars": {"engine": "mars"},
    "pymars": {"engine": "mars", "mars": {"distribution": "pymars"}},
}
SMALL = {"cpu": 0.5, "memory": "640Mi"}  # four of them fit on two processors
# Two bursts without a worker at first; the pause is shorter than the delay.
BURSTS = """
import time
import oars
def work(number):
    time.sleep(1.0)
    return number
with oars.executor() as pool:
    for burst in range(2):
        assert list(pool.map(work, range(6))) == list(range(6))
        print("burst", burst, flush=True)
        time.sleep(1.0)
print("done", flush=True)
"""
# A square wave. The first pause is shorter than the delay, the second lasts until the workers have left.
WAVE = """
import time
import oars
def work(number):
    time.sleep(1.0)
    return number
def burst():
    assert list(pool.map(work, range(6))) == list(range(6))
with oars.executor() as pool:
    burst()
    time.sleep(1.0)
    burst()
    print("pause", flush=True)
    input()
    burst()
print("done", flush=True)
"""
DASK_ACCELERATOR = """
from distributed import Client
with Client() as client:
    futures = client.map(lambda number: number + 1, range(3), resources={"accelerator": 1})
    print("sum", sum(client.gather(futures)), flush=True)
"""
RAY_ACCELERATOR = """
import ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0, resources={"accelerator": 1})
def task(number): return number + 1
print("sum", sum(ray.get([task.remote(number) for number in range(3)])), flush=True)
"""
RAY_FLOOR = """
import ray
from ray.autoscaler.sdk import request_resources
ray.init(log_to_driver=False)
request_resources(num_cpus=2)
print("requested", flush=True)
input()
request_resources(num_cpus=0)
print("withdrawn", flush=True)
input()
"""
RAY_IMPOSSIBLE = """
import ray
ray.init()
@ray.remote(resources={"moon": 1})
def task(): return 1
reference = task.remote()
print("submitted", flush=True)
try:
    ray.get(reference)
except ray.exceptions.RayError as error:
    print("failed", type(error).__name__, flush=True)
"""
DASK_IMPOSSIBLE = """
from distributed import Client
with Client() as client:
    future = client.submit(len, "abc", resources={"moon": 1})
    print("submitted", flush=True)
    input()
"""
RAY_GANG = """
import ray
from ray.util.placement_group import placement_group
ray.init(log_to_driver=False)
group = placement_group([{"CPU": 0.5}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready())
print("placed", flush=True)
ray.util.remove_placement_group(group)
@ray.remote(num_cpus=0.5, label_selector={"oars.dev/group": "second"})
def where(): return ray.get_runtime_context().get_node_labels()["oars.dev/group"]
print("ran in", ray.get(where.remote()), flush=True)
"""
# Calls of the engines' own interfaces while there is no worker.
DASK_SCATTER = """
from distributed import Client
with Client() as client:
    print("sum", sum(client.gather(client.scatter([1, 2, 3]))), flush=True)
"""
MARS_NATIVE = """
import os
import xorbits._mars as mars
import xorbits._mars.tensor as mt
mars.new_session(os.environ["OARS_ADDRESS"])
print("sum", int(mt.ones((2, 3), chunk_size=2).sum().execute().fetch()), flush=True)
"""

MUCH = """
import os, time
import oars
def work(number):
    time.sleep(5.0)
pool = oars.executor()
results = [pool.submit(work, number) for number in range(40)]
print("submitted", flush=True)
input()
os._exit(0)
"""

T = TypeVar("T")


def start(engine: str, *groups: dict[str, Any], delay: str = "5s", **more: Any) -> Cluster:
    data = {**ENGINES[engine], "workers": list(groups), "autoscale": {"scaleDownDelay": delay}, **more}
    return Cluster(build(data).spec, timeout="180s")


def wanted(cluster: Cluster) -> dict[str, int]:
    return {group.name: group.wanted for group in cluster.status().groups}


def until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, (cluster.status(), cluster.why())
        time.sleep(0.1)


def until_wanted(cluster: Cluster, **expected: int) -> None:
    """That many are wanted and ready in each group."""
    complete = {name: (number, number) for name, number in expected.items()}
    until(cluster, lambda: {each.name: (each.wanted, each.ready) for each in cluster.status().groups} == complete)


@contextmanager
def recorded(cluster: Cluster, read: Callable[[Cluster], T]) -> Iterator[list[T]]:
    """What `read` returns, each time that it changes."""
    seen, ended = [read(cluster)], threading.Event()

    def record() -> None:
        while not ended.wait(0.1):
            if (now := read(cluster)) != seen[-1]:
                seen.append(now)

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_follow_a_square_wave_from_zero_and_to_zero(engine: str) -> None:
    """Up, not down in the short pause, down to zero in the long one, up and down again."""
    with start(engine, {"replicas": 0, "max": 2, **SMALL}) as cluster:
        assert wanted(cluster) == {"default": 0}
        with recorded(cluster, wanted) as seen, DriverProgram(cluster, WAVE) as driver:
            driver.expect("pause")
            numbers = [each["default"] for each in seen]
            assert numbers == sorted(numbers), "workers left between the bursts"
            assert numbers[0] == 0 and numbers[-1] >= 1
            until_wanted(cluster, default=0)
            driver.tell()
            until(cluster, lambda: wanted(cluster)["default"] >= 1)
            driver.expect("done")
            until_wanted(cluster, default=0)
        assert cluster.status().groups[0].reason


@pytest.mark.parametrize(("engine", "program"), [("dask", DASK_ACCELERATOR), ("ray", RAY_ACCELERATOR)])
def test_work_for_a_resource_grows_only_the_group_that_has_it(engine: str, program: str) -> None:
    groups = [
        {"replicas": 0, "max": 2, **SMALL},
        {"name": "special", "replicas": 0, "max": 1, "resources": {"accelerator": 1}, **SMALL},
    ]
    with (
        start(engine, *groups) as cluster,
        recorded(cluster, wanted) as seen,
        DriverProgram(cluster, program) as driver,
    ):
        driver.expect("sum 6")
        until(cluster, lambda: any(each["special"] for each in seen))  # the status may come after the result
        until_wanted(cluster, default=0, special=0)
        assert max(each["special"] for each in seen) == 1
        assert all(each["default"] == 0 for each in seen), seen


@pytest.mark.parametrize(("engine", "program"), [("dask", DASK_SCATTER), ("mars", MARS_NATIVE)])
def test_native_call_without_a_worker_starts_the_first_one(engine: str, program: str) -> None:
    with start(engine, {"replicas": 0, **SMALL}) as cluster:
        cluster.adapt(0, 1)
        cluster.adapt(0, 1, patience="1m")  # as when a cell of a notebook runs again
        with DriverProgram(cluster, program) as driver:
            driver.expect("sum 6")
            assert wanted(cluster) == {"default": 1}
            assert cluster.status().groups[0].reason != "SetByHand"


def test_placement_group_of_ray_is_spread_and_a_label_selects_its_group() -> None:
    groups = [{"name": name, "replicas": 0, "max": most, **SMALL} for name, most in (("first", 2), ("second", 1))]
    with (
        start("ray", *groups) as cluster,
        recorded(cluster, wanted) as seen,
        DriverProgram(cluster, RAY_GANG) as driver,
    ):
        driver.expect("placed")
        assert max(sum(each.values()) for each in seen) >= 2
        driver.expect("ran in second")


def test_capacity_that_a_ray_program_requests_is_kept_until_it_is_withdrawn() -> None:
    with start("ray", {"replicas": 0, "max": 3, **SMALL}) as cluster, DriverProgram(cluster, RAY_FLOOR) as driver:
        driver.expect("requested")
        until_wanted(cluster, default=2)
        driver.tell()
        driver.expect("withdrawn")
        until_wanted(cluster, default=0)
        driver.tell()


@pytest.mark.parametrize(
    ("engine", "program", "warning"),
    [
        ("dask", DASK_IMPOSSIBLE, "but no group of workers offers moon"),
        ("ray", RAY_IMPOSSIBLE, "There are tasks with infeasible resource requests"),
    ],
)
def test_demand_that_no_group_can_serve_is_reported(engine: str, program: str, warning: str) -> None:
    """In the cluster's status, and by the program's own client."""
    with start(engine, {"replicas": 0, "max": 2, **SMALL}) as cluster, DriverProgram(cluster, program) as driver:
        driver.expect("submitted")
        until(cluster, lambda: any(each.reason == "Unservable" and "moon" in each.message for each in cluster.why()))
        driver.expect(warning)
        assert wanted(cluster) == {"default": 0}


def test_ray_task_that_no_group_can_run_fails_if_that_is_wanted() -> None:
    group = {"replicas": 0, "max": 2, **SMALL}
    with start("ray", group, ray={"failInfeasible": True}) as cluster, DriverProgram(cluster, RAY_IMPOSSIBLE) as driver:
        driver.expect("submitted")
        driver.expect("failed")


def test_top_shows_demand_workers_and_use() -> None:
    with start("dask", {"replicas": 0, "min": 1, "max": 2, **SMALL}) as cluster:
        until_wanted(cluster, default=1)
        oars = [str(Path(sys.executable).with_name("oars")), "top", cluster.name]
        sample = json.loads(subprocess.check_output([*oars, "-o", "json"], timeout=60))
        (group,) = sample["groups"]
        assert (group["min"], group["max"], group["needed"], group["wanted"], group["ready"]) == (1, 2, 1, 1, 1)
        assert group["tasks"] == 0 and group["memory"] > 2**20 and 0 <= group["cpu"] <= os.cpu_count()
        header, row = subprocess.check_output(oars, text=True, timeout=60).splitlines()
        assert header.split()[:7] == ["TIME", "GROUP", "MIN", "MAX", "NEEDED", "WANTED", "READY"]
        assert row.split()[1:7] == ["default", "1", "2", "1", "1", "1"]
        watch = subprocess.Popen([*oars, "-w", "--interval", "0.2s", "-o", "json"], stdout=subprocess.PIPE, text=True)
        with watch:
            assert watch.stdout is not None
            times = [json.loads(watch.stdout.readline())["time"] for _ in range(3)]
            watch.send_signal(signal.SIGINT)
        assert times == sorted(set(times)) and watch.returncode == 128 + signal.SIGINT
        asleep = cluster.client().submit(time.sleep, 600)
        until(cluster, lambda: [each.tasks for each in cluster.members() if each.role == "worker"] == [1])
        asleep.cancel()


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_machine_limits_the_number_and_says_so(engine: str) -> None:
    processors = len(os.sched_getaffinity(0))
    group = {"replicas": 0, "max": 9, "cpu": processors / 2, "memory": "640Mi"}
    with start(engine, group) as cluster, recorded(cluster, wanted) as seen, DriverProgram(cluster, MUCH) as driver:
        driver.expect("submitted")
        until(cluster, lambda: any(cause.reason == "ScaleUpLimited" for cause in cluster.why()))
        (cause,) = (cause for cause in cluster.why() if cause.reason == "ScaleUpLimited")
        assert f"this machine has {processors} processor" in cause.message
        driver.tell()
        assert max(each["default"] for each in seen) == 2
