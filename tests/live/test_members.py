"""A program that a task starts finds the cluster without an address, in the head and in every worker."""

from __future__ import annotations

from typing import Any

import pytest

from oars import Cluster
from oars.spec.load import build
from oars.testing.driver import run_driver
from tests.plain_clients import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

RUN = """
def run():
    import subprocess, sys
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90)
    return done.stdout.strip() or done.stderr[-2000:]
"""
# Each prints, for every member in which a task can run, the member and what the program prints there.
DASK = """
import asyncio
from distributed import Client
async def run_beside():
    return await asyncio.to_thread(run)  # the scheduler must answer meanwhile
if __name__ == "__main__":
    with Client() as client:
        names = {address: worker["name"] for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()}
        for address, text in client.run(run).items():
            print(names[address], text)
        print("head", client.run_on_scheduler(run_beside))
"""
RAY = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At
ray.init(log_to_driver=False)
task = ray.remote(num_cpus=0)(run)
for node in ray.nodes():
    text = ray.get(task.options(scheduling_strategy=At(node["NodeID"], soft=False)).remote(), timeout=120)
    print(node["NodeName"], text)
"""
MARS = """
import oars
session = oars.connect()
from PACKAGE.remote import spawn
print("worker-0", spawn(run).execute(show_progress=False).fetch())
"""
TWO_SLOTS = {"workers": [{"replicas": 1, "cpu": 2}]}  # one for the task, one for the program that it starts
CASES: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    "dask": ({"engine": "dask", "workers": 2}, DASK, {"head", "worker-0", "worker-1"}),
    "ray": ({"engine": "ray", "workers": 2}, RAY, {"head", "worker-0", "worker-1"}),
    "mars-xorbits": ({"engine": "mars", **TWO_SLOTS}, MARS.replace("PACKAGE", "xorbits._mars"), {"worker-0"}),
    "mars-pymars": (
        {"engine": "mars", **TWO_SLOTS, "mars": {"distribution": "pymars"}},
        MARS.replace("PACKAGE", "mars"),
        {"worker-0"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_program_in_a_member_finds_the_cluster(case: str) -> None:
    spec, program, members = CASES[case]
    with Cluster(build(spec).spec, timeout="180s") as cluster:
        status = cluster.status()
        lines = run_driver(cluster, f"PROGRAM = {PROGRAMS[case]!r}\n{RUN}\n{program}", 300)
    assert {f"{member} workers {status.ready}" for member in members} <= set(lines), "\n".join(lines)
