"""Workers whose pods are evicted or deleted, without any notice to Oars, first hand over what they hold. Clients that
connect while the head's pod is evicted get its successor."""

from __future__ import annotations

import json
import subprocess
import threading
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
from tests.e2e import attacker
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


# New clients, one after the other, as pods connect: by the name of the Service. Each prints who answered.
NEW_CLIENTS = """
import json
from distributed import Client
while True:
    try:
        with Client("tcp://demo-head:8786", timeout=5) as client:
            answer = [client.scheduler_info()["id"], client.submit(sum, (1, 2)).result(timeout=20)]
    except Exception as error:
        answer = [type(error).__name__, None]
    print(json.dumps(answer), flush=True)
"""


@contextmanager
def started(kube: Kube, engine: Any, image: str, **more: Any) -> Iterator[Cluster]:
    """With two workers, both ready."""
    workers = [{"replicas": 2, "memory": "1Gi", **SMALL}]
    head = {**SMALL, "memory": "2Gi"}
    spec = {**engine.spec, "image": kube.image(image), "head": head, "workers": workers, **more}
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


@contextmanager
def new_clients(kube: Kube) -> Iterator[list[tuple[str, int | None]]]:
    """What the clients of NEW_CLIENTS print, while they run in a pod of their own."""
    attacker.start_pod(kube, "client", {"app": "client"}, kube.image("dask"))
    kube.await_ready("visitor", 1)
    words = [*kube.command(), "exec", "client", "--", "python3", "-c", NEW_CLIENTS]
    answers: list[tuple[str, int | None]] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: answers.extend(tuple(json.loads(line)) for line in lines))
        reader.start()
        try:
            yield answers
        finally:
            process.kill()
            reader.join()


def test_clients_that_connect_while_the_head_is_evicted_get_its_successor(kube: Kube) -> None:
    """The head that ends is published no more, so no client that comes later gets it."""
    head = {**SMALL, "memory": "2Gi", "eviction": "allow"}
    with (
        started(kube, engines.TestDask, "dask", head=head, dask={"protocol": "tcp"}) as demo,
        new_clients(kube) as answers,
    ):
        until(lambda: any(value == 3 for _, value in answers), 120)
        (before,) = {name for name, value in answers if value == 3}
        (pod,) = staying(kube, "head")
        evict(kube, pod["metadata"]["name"])
        until(lambda: any(value == 3 for name, value in answers if name != before), 120)
        first = next(n for n, (name, value) in enumerate(answers) if value == 3 and name != before)
        count = len(answers)
        until(lambda: sum(value == 3 for _, value in answers[count:]) >= 3, 120)
        assert before not in {name for name, _ in answers[first:]}
        assert demo.wait(timeout=TIMEOUT).ready == 2
        assert [each["metadata"]["uid"] for each in staying(kube, "head")] != [pod["metadata"]["uid"]]
