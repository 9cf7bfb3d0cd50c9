"""Engines in real pods of the lab's images, deployed with plain manifests and kubectl."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from lab.kube import Kube
from lab.wait import until

MANIFESTS = Path(__file__).parent / "manifests"

pytestmark = pytest.mark.timeout(400)


def start(kube: Kube, manifest: str, **words: str) -> None:
    text = (MANIFESTS / manifest).read_text()
    for name, word in words.items():
        text = text.replace(name, word)
    kube.kubectl("apply", "-f", "-", text=text)


def fetch(url: str) -> Any:
    """Return the JSON at a URL, or nothing if there is no answer yet."""
    try:
        with urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (OSError, http.client.HTTPException):
        return {}


@contextmanager
def forwarded(kube: Kube, target: str, port: int) -> Iterator[int]:
    """Forward a local port to `port` of the target, through API server and kubelet."""
    process = kube.popen("port-forward", target, f":{port}")
    try:
        assert process.stdout
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "kubectl port-forward did not start"
        yield int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.long
def test_ray_runs_with_a_head_and_three_workers(kube: Kube) -> None:
    start(kube, "ray.yaml", IMAGE=kube.image("ray"))
    kube.await_ready("component=ray-head", 1, 180)
    kube.await_ready("component=ray-worker", 3, 240)
    program = (
        "import ray, time; ray.init(address='auto', log_to_driver=False)\n"
        "@ray.remote(num_cpus=1)\n"
        "def where(): time.sleep(.2); return ray.util.get_node_ip_address()\n"
        "print('nodes', sum(n['Alive'] for n in ray.nodes()), 'sum', sum(ray.get([ray.put(i) for i in range(4)])))\n"
        "print('ran', bool(ray.get(where.remote(), timeout=90)))\n"
    )
    said = kube.kubectl("exec", "deploy/ray-head", "--", "python", "-c", program, seconds=150)
    assert "nodes 4 sum 6" in said
    assert "ran True" in said


def test_dask_runs_with_a_scheduler_and_two_workers(kube: Kube) -> None:
    """Also covers exec, logs and port-forward through the real kubelet."""
    start(kube, "dask.yaml", IMAGE=kube.image("dask"))
    kube.await_ready("app=dask-scheduler", 1)
    kube.await_ready("app=dask-worker", 2)
    program = (
        "from dask.distributed import Client; client = Client('tcp://dask-head:8786')\n"
        "print(sum(client.gather(client.map(lambda x: x * 2, range(10)))))"
    )
    assert kube.kubectl("exec", "deploy/dask-worker", "--", "python", "-c", program).strip() == "90"
    assert "Scheduler at" in kube.kubectl("logs", "deploy/dask-scheduler")
    with forwarded(kube, "service/dask-head", 8787) as port:
        counts = f"http://127.0.0.1:{port}/json/counts.json"
        # A worker's pod is ready before the worker has joined the scheduler.
        until("both workers have joined", lambda: fetch(counts).get("workers") == 2)


def test_mars_runs_with_a_supervisor_and_a_worker(kube: Kube) -> None:
    """With pymars; the end-to-end tests cover xorbits."""
    words = {"SUPERVISOR": "mars-supervisor", "WORKER": "mars-worker"}
    start(kube, "mars.yaml", IMAGE=kube.image("mars-pymars"), **words)
    (supervisor,) = kube.await_ready("app=mars-supervisor", 1)

    # The machine has a route to every pod of the lab; port-forward is not needed.
    def joined() -> bool:
        found = fetch(f"http://{supervisor['status']['podIP']}:7104/api/cluster/nodes?role=1")
        return len(found.get("nodes", ())) == 1

    until("the worker has joined", joined, 120, 0.5)


def test_images_contain_the_tools_of_the_official_ones(kube: Kube) -> None:
    script = "set -e; whoami; which bash wget tini python; test -w $HOME; bash -lc 'which ray'; python -c 'import ray'"
    check = "import ray, pathlib; assert list(pathlib.Path(ray.__file__).parent.glob('__pycache__/*.pyc'))"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look", "labels": {"app": "look"}}}
    main = {"name": "main", "image": kube.image("ray"), "args": ["sleep", "600"]}
    kube.apply({**pod, "spec": {"containers": [main], "terminationGracePeriodSeconds": 0}})
    kube.await_ready("app=look", 1)
    assert kube.kubectl("exec", "look", "--", "bash", "-c", script).splitlines()[0] == "oars"
    kube.kubectl("exec", "look", "--", "python", "-c", check)
