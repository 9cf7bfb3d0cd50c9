"""The sections of docs/benchmarks.md on elastic clusters say what was measured, and where Oars loses."""

from __future__ import annotations

from typing import Any

from bench import elastic_page


def scale_down_row(engine: str, way: str, steps: int, left: int) -> dict[str, Any]:
    counts = dict.fromkeys(("calls", "failed", "lost", "recomputed", "tasks", "seconds", "load"), 0)
    return {"engine": engine, "way": way, "steps": steps, "left": left, "when": "2026-11-19T01:27Z", **counts}


def test_scale_downs_are_not_mistaken_for_workers_that_left() -> None:
    rows = [scale_down_row("dask", "Oars", 34, 204), scale_down_row("dask", "KubeRay's way", 8, 48)]
    page = "\n".join(elastic_page.scale_down({"rows": rows, "cores": 2}))
    assert "the rows of Oars count 204 workers in 34 scale-downs (dask)." in page
    missing = page.partition("Not measured in this run: ")[2]
    assert "dask-kubernetes' way (dask)" in missing and "Oars (pymars)" in missing
    assert "KubeRay's way (dask)" not in missing


def test_figures_that_lose_to_the_reference_are_named() -> None:
    def row(policy: str, load: str, idle: float, wait: float) -> dict[str, Any]:
        return {"policy": policy, "load": load, "idle": idle, "wait": wait}

    figures = {"square": (90.0, 1.0), "notebook": (200.0, 0.5), "burst": (100.0, 1.02), "equal": (100.4, 1.0)}
    policies = (elastic_page.WITH_DASK, elastic_page.WITH_RAY, elastic_page.RAY)
    rows = [row(policy, load, *both) for load, both in figures.items() for policy in policies]
    reference = [{"load": load, "idle": 100.0, "wait": 1.0} for load in figures]
    page = "\n".join(elastic_page.readings(rows, reference))
    assert "by more than 5 %: idle on notebook (2.00);\nby 5 % or less: wait on burst (1.02).\n" in page
    assert "better than the reference on 1 of 4 loads; at worst it has\n1.010" in page
