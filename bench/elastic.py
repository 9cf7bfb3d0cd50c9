"""Elastic clusters with real engines on this machine.

reaction  seconds from a program's first call until workers are wanted, and until its work is done; from zero to zero
spill     a workload of three times a worker's memory: bytes on disk and seconds
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oars import Cluster
from oars.spec.load import build
from oars.testing.driver import DriverProgram

REACTION_ENGINES = ("dask", "ray", "mars")
ROUNDS = 5
LOOK = 0.02  # seconds between two looks at the number of workers
GROUP = {"replicas": 0, "max": 2, "cpu": 0.5, "memory": "640Mi"}
PROGRAM = """
import sys, time
import oars
def work(number):
    time.sleep(1.0)
    return number
with oars.executor() as pool:
    print("connected", flush=True)
    for line in sys.stdin:
        print("submits", time.time(), flush=True)
        assert list(pool.map(work, range(6))) == list(range(6))
        print("done", flush=True)
"""


def bench_reaction() -> Iterator[dict[str, Any]]:
    for engine in REACTION_ENGINES:
        data = {"engine": engine, "workers": [GROUP], "autoscale": {"scaleDownDelay": "5s"}}
        with Cluster(build(data).spec, timeout="180s") as cluster, DriverProgram(cluster, PROGRAM) as program:
            program.expect("connected")
            runs = [one_round(cluster, program) for _ in range(ROUNDS)]
        medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        yield {"engine": engine, **medians, "latest": max(run["wanted"] for run in runs), "runs": runs}


def one_round(cluster: Cluster, program: DriverProgram) -> dict[str, float]:
    """Seconds from the first call until workers are wanted, and until all work is done; and until none is left then."""
    program.tell()
    began = float(program.expect("submits").split()[1])
    wanted = seconds_until(cluster, 1, began)
    program.expect("done", 120)
    done = time.time()
    return {"wanted": wanted, "done": round(done - began, 2), "to_zero": seconds_until(cluster, 0, done)}


def seconds_until(cluster: Cluster, number: int, since: float) -> float:
    """Until so many workers are wanted: at least one, or none at all, and none is left."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        (group,) = cluster.status().groups
        if group.wanted >= 1 if number else group.wanted == len(cluster.members()) - 1 == 0:
            return round(time.time() - since, 2)
        time.sleep(LOOK)
    raise TimeoutError(f"{number} workers were not reached")


def bench_spill() -> Iterator[dict[str, Any]]:
    from tests.live.test_spill import ENGINES, MIB, SIZES, bytes_in, start

    for kind, (_, source) in ENGINES.items():
        with tempfile.TemporaryDirectory() as directory:
            spill = Path(directory) / "spill"
            spill.mkdir()
            count = 3 * SIZES[kind] // (10 * MIB)
            with start(kind, spill={"paths": [str(spill)]}) as cluster:
                began = time.monotonic()
                with DriverProgram(cluster, source, str(count)) as program:
                    program.expect("made", 300.0)
                    made, written = time.monotonic() - began, bytes_in(spill)
                    is_right = program.expect("sum ", 300.0) == f"sum {float(sum(range(count)))}"
                    read = time.monotonic() - began - made
        yield {
            "engine": kind, "memory": SIZES[kind], "results": count * 10 * MIB, "spilled": written,
            "seconds_to_make": round(made, 1), "seconds_to_read": round(read, 1), "ok": is_right,
        }  # fmt: skip


def text(rows: list[dict[str, Any]]) -> str:
    """One line for each engine, without the single runs."""
    return "\n".join("  ".join(f"{key} {value}" for key, value in row.items() if key != "runs") for row in rows)
