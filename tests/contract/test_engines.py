"""Runs the engine contract against each engine, with real processes. The programs are what users of an engine write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from oars.client import pod_programs
from oars.client.sync import Cluster
from oars.model import DrainOutcome
from oars.testing import EngineContract

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]

FILE = "apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nspec:\n  engine: toy\n"
BUSY = 30.0  # seconds; three times the promise, because other tests run at the same time


def oars(state: Path, *args: str, code: int = 0, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("oars")), *args]
    env = {**os.environ, "OARS_STATE_DIR": str(state)}
    done = subprocess.run(command, input=text, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


class TestToy(EngineContract):
    """An engine of a third party, found by its entry point."""

    spec: ClassVar[dict[str, Any]] = {"engine": "toy"}
    work = """
import oars
print("result", sorted(oars.connect().workers()))
"""
    hold = """
import oars
client = oars.connect()
client.clear()
for name in client.workers():
    client.put(name, f"item of {name}")
print("held", flush=True)
input()
items = [item for worker in client.workers().values() for item in worker["items"]]
assert len(items) == 3, items
print("intact", flush=True)
input()
"""
    hang = """
import os, socket
host, port = os.environ["TOY_ADDRESS"].removeprefix("http://").split(":")
call = socket.create_connection((host, int(port)))
print("started", flush=True)
print("failed: the head said", call.recv(1), flush=True)
"""

    def test_shell_connects_the_engine_s_client(self, cluster: Cluster, state: Path) -> None:
        done = oars(state, "shell", "contract", text="print(type(client).__name__, len(client.workers()))")
        assert done.stdout == "Client 2\n"

    def test_shell_in_a_pod_connects_without_oars(self, cluster: Cluster) -> None:
        """The code runs as in a pod, where the engine is installed and Oars is not: its imports fail."""
        env = {"PATH": os.environ["PATH"], **cluster.driver().env, "PYTHONPATH": os.pathsep.join(sys.path)}
        _, *arguments = pod_programs.python(env, interactive=False)
        block = "import sys; sys.modules['oars'] = None\n"
        done = subprocess.run(
            [sys.executable, *arguments[:-1], block + arguments[-1]],
            input="print(type(client).__name__, len(client.workers()))", env=env,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == "Client 2\n", done.stderr

    def test_dashboard_is_the_engine_s(self, cluster: Cluster, state: Path) -> None:
        address = oars(state, "dashboard", "contract", "--no-open").stdout.strip()
        with urllib.request.urlopen(address, timeout=60) as reply:
            assert json.load(reply) == {"workers": 2}

    def test_options_are_checked_with_place_and_nearest_name(self, state: Path, tmp_path: Path) -> None:
        path = tmp_path / "toy.yaml"
        path.write_text(FILE + "  toy: {wireFormt: text}\n")
        error = oars(state, "up", "-f", str(path), code=2).stderr
        assert f"{path}:5:9: spec.toy.wireFormt is not a known field; did you mean 'wireFormat'?" in error

    def test_log_of_a_dead_worker_is_explained(self, state: Path, tmp_path: Path) -> None:
        """By the engine's own pattern."""
        error = oars(state, "up", "fails", "--engine", "toy", "--set", "toy.giveUp='0'", code=1).stderr
        assert "worker worker-0 gave up" in error and "Play with it less." in error
        path = tmp_path / "toy.yaml"
        path.write_text(FILE + "  toy: {giveUp: '1'}\n  minReady: 1\n  workers: 2\n")
        oars(state, "up", "half", "-f", str(path), "-q")
        try:
            (cause,) = json.loads(oars(state, "why", "half", "-o", "json").stdout)
            assert "worker worker-1 gave up" in cause["message"] and cause["hint"] == "Play with it less."
        finally:
            oars(state, "down", "half", "-q")

    def test_diff_shows_changed_options(self, cluster: Cluster, state: Path) -> None:
        command = ("diff", "contract", "--engine", "toy", "--workers", "2")
        assert oars(state, *command).stdout == "contract matches the spec.\n"
        changed = oars(state, *command, "--set", "toy.wireFormat=text", code=1).stdout
        assert "refused:" in changed and "toy: nothing → {'wireFormat': 'text'}" in changed

    def test_render_has_the_engine_s_image_options_and_dashboard(self, state: Path) -> None:
        chosen = ("--engine", "toy", "--set", "expose.host=demo.example", "--set", "toy.crash='7'")
        objects = {obj["kind"]: obj for obj in yaml.safe_load_all(oars(state, "render", "demo", *chosen).stdout)}
        (path,) = objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]
        assert path["backend"]["service"]["port"]["number"] == 7002
        (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "toy:1"
        assert {"name": "TOY_CRASH", "value": "7"} in container["env"]

    def test_installed_crd_has_the_engine_s_block(self, state: Path) -> None:
        (definition,) = (
            obj
            for obj in yaml.safe_load_all(oars(state, "operator", "manifests").stdout)
            if (obj["kind"], obj["metadata"]["name"]) == ("CustomResourceDefinition", "computeclusters.oars.dev")
        )
        (version,) = definition["spec"]["versions"]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert spec["properties"]["toy"]["properties"]["wireFormat"]["enum"] == ["json", "text"]
        assert any("toy.wireFormat" in rule["message"] for rule in spec["x-kubernetes-validations"])


class TestDask(EngineContract):
    spec: ClassVar[dict[str, Any]] = {"engine": "dask"}
    replace_seconds = BUSY
    work = """
from distributed import Client
if __name__ == "__main__":
    with Client() as client:
        print("result", client.submit(sum, range(10)).result(timeout=60))
"""
    hold = """
from distributed import Client
def make(number): return bytes([number % 256]) * 1_000_000
if __name__ == "__main__":
    with Client() as client:
        workers = list(client.scheduler_info()["workers"])
        held = [client.submit(make, n, workers=[workers[n % len(workers)]], pure=False) for n in range(12)]
        client.gather(client.map(len, held))
        assert len({w for ws in client.who_has(held).values() for w in ws}) == len(workers)
        print("held", flush=True)
        input()
        client.run_on_scheduler(lambda dask_scheduler: None)
        assert all(f.status == "finished" for f in held)
        assert client.gather(held) == [make(n) for n in range(12)]
        print("intact", flush=True)
        input()
"""
    hang = """
import time
from distributed import Client
if __name__ == "__main__":
    client = Client()
    future = client.submit(time.sleep, 600)
    print("started", flush=True)
    try:
        future.result()
    except BaseException as error:
        print("failed:", type(error).__name__, error, flush=True)
"""


class TestRay(EngineContract):
    spec: ClassVar[dict[str, Any]] = {"engine": "ray", "ray": {"dashboard": False}}
    replace_seconds = BUSY
    drained = DrainOutcome.FINISHED
    lost = "GCS may have been killed"  # Ray's message when it ends a driver that has lost its head
    work = """
import ray
ray.init(log_to_driver=False)
print("result", ray.get(ray.remote(lambda: sum(range(10))).remote(), timeout=60))
"""
    hold = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1, max_retries=0)
def make(number): return bytes([number]) * 2_000_000
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
held = [make.options(scheduling_strategy=At(nodes[n % len(nodes)], soft=False)).remote(n) for n in range(9)]
ray.wait(held, num_returns=9, timeout=60, fetch_local=False)
print("held", flush=True)
input()
assert [len(x) for x in ray.get(held, timeout=60)] == [2_000_000] * 9
print("intact", flush=True)
del held
input()
"""
    hang = """
import time
import ray
ray.init(log_to_driver=False)
waiting = ray.remote(lambda: time.sleep(600)).remote()
print("started", flush=True)
try:
    ray.get(waiting)
except BaseException as error:
    print("failed:", type(error).__name__, error, flush=True)
"""


class Mars(EngineContract):
    replace_seconds = BUSY
    timeout = "180s"
    tensor: ClassVar[str]
    remote: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.work = f"""
import oars
import {cls.tensor} as mt
session = oars.connect()
a = mt.ones((4, 3))
print("result", mt.inner(a, a).sum().execute().fetch())
"""
        cls.hold = f"""
import oars
import {cls.tensor} as mt
session = oars.connect()
held = mt.random.rand(1200, 1200, chunk_size=300).execute()
total = held.fetch().sum()
print("held", flush=True)
input()
assert held.fetch().sum() == total
print("intact", flush=True)
del held
input()
"""
        cls.hang = f"""
import time
import oars
import {cls.remote} as mr
session = oars.connect()
print("started", flush=True)
try:
    mr.spawn(time.sleep, args=(600,)).execute()
except BaseException as error:
    print("failed:", type(error).__name__, error, flush=True)
"""


class TestXorbits(Mars):
    spec: ClassVar[dict[str, Any]] = {"engine": "mars"}
    tensor, remote = "xorbits._mars.tensor", "xorbits._mars.remote"


class TestPymars(Mars):
    spec: ClassVar[dict[str, Any]] = {"engine": "mars", "mars": {"distribution": "pymars"}}
    tensor, remote = "mars.tensor", "mars.remote"
