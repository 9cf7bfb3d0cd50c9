"""Autoscaling in a simulation with a fake clock: nine loads, against the policies of Dask and Ray.

Figures of each load and policy, as medians of 21 runs with different random numbers: idle worker-seconds, mean
seconds that a task waited, writes, workers started, reversals within a minute, and tasks that never ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.autoscale_peers import DaskAdaptive, DaskKubernetes, RayV2
from bench.autoscale_policy import Oars
from bench.autoscale_world import Load, World, loads, simulate

WITH_DASK, WITH_RAY = "Oars, Dask's signals", "Oars, Ray's signals"
SEEDS = range(21)
LOADS: Mapping[tuple[int, str], Load] = {(seed, load.name): load for seed in SEEDS for load in loads(seed)}
RESULTS = Path(__file__).parent / "results"

POLICIES: Mapping[str, Callable[[], Callable[[World], None]]] = {
    "Dask Adaptive": DaskAdaptive,
    "dask-kubernetes": DaskKubernetes,
    "Ray v2": RayV2,
    "Ray v2, no launch limit": lambda: RayV2(launches=1e9),
    WITH_DASK: lambda: Oars(durations=True),
    WITH_RAY: lambda: Oars(durations=False),
}


def run(load: str, make: Callable[[], Callable[[World], None]], seed: int) -> dict[str, Any]:
    return asdict(simulate(LOADS[seed, load], make(), seed))


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def bench_autoscale() -> Iterator[dict[str, Any]]:
    """`first`: the figures of the first run, from which a test sees that the file is of the present code."""
    for load in dict.fromkeys(name for _, name in LOADS):
        for name, make in POLICIES.items():
            runs = [run(load, make, seed) for seed in SEEDS]
            yield {"load": load, "policy": name, **figures(runs), "first": runs[0]}


def table(rows: list[dict[str, Any]]) -> str:
    """One line per load; each cell: idle / wait / writes / starts / reversals, and what was left over."""
    lines = []
    for load in dict.fromkeys(row["load"] for row in rows):
        lines.append(load)
        for row in rows:
            if row["load"] == load:
                left = f", {row['left']} never ran" if row["left"] else ""
                numbers = f"{row['idle']:8.0f} {row['wait']:6.1f} {row['writes']:5d} {row['starts']:5d}"
                lines.append(f"  {row['policy']:26}{numbers} {row['reversals']:4d}{left}")
    return "\n".join(lines)
