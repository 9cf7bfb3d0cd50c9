"""Autoscaling in a simulation with a fake clock: nine loads, against the policies of Dask and Ray.

Figures of each load and policy, as medians of five runs with different random numbers: idle worker-seconds, mean
seconds that a task waited, writes, workers started, reversals within a minute, and tasks that never ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.autoscale_peers import DaskAdaptive, DaskKubernetes, RayV2
from bench.autoscale_policy import Oars
from bench.autoscale_world import Figures, Load, World, loads, simulate

WITH_DASK, WITH_RAY = "Oars, Dask's signals", "Oars, Ray's signals"
SEEDS = range(5)
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


def figures(load: str, make: Callable[[], Callable[[World], None]]) -> Figures:
    """The median of each figure."""
    runs = [asdict(simulate(LOADS[seed, load], make(), seed)) for seed in SEEDS]
    return Figures(**{key: statistics.median(run[key] for run in runs) for key in runs[0]})


def bench_autoscale() -> list[dict[str, Any]]:
    return [
        {"load": load, "policy": name, **asdict(figures(load, make))}
        for load in dict.fromkeys(name for _, name in LOADS)
        for name, make in POLICIES.items()
    ]


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
