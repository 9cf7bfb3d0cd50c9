"""Workers whose pods are evicted or deleted, without any notice to Oars, first hand over what they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from lab.kube import Kube

from oars.client.sync import Cluster
from oars.spec.load import build
from oars.testing.driver import DriverProgram
from tests.contract import test_engines as engines
from tests.e2e.contract import SMALL, TIMEOUT, staying, until

pytestmark = [pytest.mark.timeout(600)]

GRACE = 120.0  # of a worker's pod
# One task, which may not be repeated, on each worker.
RAY_TASKS = """
import time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1, max_retries=0)
def work(number):
    time.sleep(8)
    return number
nodes = []
while len(nodes) < 2:  # Ray lists a node a moment before its resources
    time.sleep(0.1)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
ray.get([ray.remote(lambda: 1).options(scheduling_strategy=At(node, soft=False)).remote() for node in nodes])
tasks = [work.options(scheduling_strategy=At(node, soft=False)).remote(n) for n, node in enumerate(nodes)]
ray.wait(tasks, timeout=1)
print("started", flush=True)
print("finished", ray.get(tasks, timeout=60), flush=True)
"""


@contextmanager
def started(kube: Kube, engine: Any, image: str) -> Iterator[Cluster]:
    """With two workers, both ready."""
    workers = [{"replicas": 2, "memory": "1Gi", **SMALL}]
    spec = {**engine.spec, "image": kube.image(image), "head": {**SMALL, "memory": "2Gi"}, "workers": workers}
    with Cluster(
        build(spec).spec, name="demo", timeout=TIMEOUT, namespace=kube.namespace, kubeconfig=str(kube.kubeconfig),
        mode="direct",
    ) as demo:  # fmt: skip
        assert demo.wait(timeout=TIMEOUT).ready == 2
        yield demo


def evict(kube: Kube, pod: str) -> float:
    """Evict it as `kubectl drain` does, and wait until it is gone. Returns the seconds that it took."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kube.namespace}}
    began = time.monotonic()
    kube.api.create(f"{kube.path('pods')}/{pod}/eviction", body)
    until(lambda: pod not in {each["metadata"]["name"] for each in kube.pods()}, GRACE + 30)
    return time.monotonic() - began


@pytest.mark.parametrize(("engine", "image"), [(engines.TestDask, "dask"), (engines.TestXorbits, "mars-xorbits")])
def test_results_of_an_evicted_worker_are_intact(kube: Kube, engine: Any, image: str) -> None:
    with started(kube, engine, image) as demo, DriverProgram(demo, engine.hold) as program:
        program.expect("held", 180)
        assert evict(kube, staying(kube, "worker")[0]["metadata"]["name"]) < GRACE / 2
        program.tell()
        program.expect("intact")
        program.tell("end")
        program.expect("(end)")
        assert demo.wait(timeout=TIMEOUT).ready == 2


@pytest.mark.long
def test_tasks_on_an_evicted_ray_worker_finish(kube: Kube) -> None:
    with started(kube, engines.TestRay, "ray") as demo, DriverProgram(demo, RAY_TASKS) as program:
        program.expect("started", 180)
        assert evict(kube, staying(kube, "worker")[0]["metadata"]["name"]) < GRACE / 2
        assert program.expect("finished") == "finished [0, 1]"
