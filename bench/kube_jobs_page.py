"""The section of docs/benchmarks.md about jobs, from bench/results/kube_jobs.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START = """## On Kubernetes: from submit to the first line

A job with a cluster of its own, real pods: from the command until the driver prints its first line, for which it needs
a result of the cluster. `oars submit` with the operator; `kubectl apply` of hand-written Deployments, a Service, a
ConfigMap and a batch Job, whose program starts at once and waits for the head's port; `kubectl apply` of KubeRay's
RayJob. All have the same image and the same requests (`python -m bench.kube_jobs start`). Oars and KubeRay start the
driver when all workers are ready; the hand-written driver's pod starts beside the head's and needs one worker. With
`minReady: 1` Oars needs one, too. The last column is when `oars submit` has printed the line.

The difference to the hand-written job is the start of the driver: its pod is created in the second in which the last
worker is ready (`bench/results/kube_jobs.json` has the times of all pods), and then imports the engine and connects,
which the hand-written driver does while the workers start.
"""
MANY = """## On Kubernetes: many jobs at once

{jobs} jobs, each with a head, a worker and a driver, on a real control plane with simulated pods (`python -m
bench.kube_jobs many`): seconds until all have succeeded; processor time and writes until their clusters are removed,
too. Writes are those of all clients, for all kinds of objects that a job has; events, and status that only Kubernetes
writes, do not count.

KubeRay's operator learns from the dashboard of each cluster how its job ends, and simulated pods have none. Here a
simulated one answers, at the first request, that the job has succeeded. Oars also tries to read and keep each driver's
output, which a simulated node does not return; KubeRay keeps none. The hand-written clusters are not removed.
"""
ROWS = {
    "by_hand": "by hand: two Deployments, a Service and a batch Job each",
    "ours": "Oars' operator, from ComputeJobs",
    "kuberay": "KubeRay's operator, from RayJobs",
}


def section(path: Path) -> Iterator[str]:
    """The results, if there are any."""
    record = json.loads(path.read_text()) if path.exists() else {}
    if "start" in record:
        yield START
        yield from _start(record["start"])
    if "many" in record:
        yield MANY.format(jobs=record["many"]["result"]["by_hand"][0]["jobs"])
        yield from _many(record["many"])


def _measured(part: Mapping[str, Any]) -> str:
    return f"Measured {part['when']}, {part['cores']} cores, load at the end {part['load'][0]:.1f}; medians.\n"


def _start(part: Mapping[str, Any]) -> Iterator[str]:
    rows = part["result"]["rows"]
    yield _measured(part)
    yield "| cluster | rounds | ours | by hand | ratio | limit | RayJob | | ours, `minReady: 1` | ours, as printed |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        peer, first = (f"{row[key]:.2f}" if key in row else "–" for key in ("kuberay", "first_worker"))
        numbers = f"{row['ours']:.2f} | {row['by_hand']:.2f} | {row['ratio']:.3f} | {row['limit']:.2f} | {peer}"
        verdict = "ok" if row["ok"] else "missed"
        cluster = f"{row['engine']}, 1 + {part['result']['workers']} | {len(row['runs']['ours'])}"
        yield f"| {cluster} | {numbers} | {verdict} | {first} | {row['shown']:.2f} |"
    yield ""


def _many(part: Mapping[str, Any]) -> Iterator[str]:
    result = part["result"]
    yield _measured(part)
    yield "| what | rounds | seconds | operator's CPU s | operator's MB | writes per job | CPU s of Kubernetes |"
    yield "|---|---|---|---|---|---|---|"
    for name, words in ROWS.items():
        keys = ("seconds", "cpu", "megabytes", "writes_per_job", "cpu_kubernetes")
        if result[name]:
            yield f"| {words} | {len(result[name])} | {' | '.join(_median(result[name], key) for key in keys)} |"
    if result["ours"] and result["kuberay"]:
        time, cpu, memory, writes = (
            _times_of_peer(result, key) for key in ("seconds", "cpu", "megabytes", "writes_per_job")
        )
        yield f"\nOars needs {time} of the time that KubeRay needs, {cpu} of the operator's processor time, {memory}"
        yield f"of its memory, and {writes} of the writes."
    yield ""


def _times_of_peer(result: Mapping[str, Any], key: str) -> str:
    ours, theirs = (statistics.median(run[key] for run in result[name]) for name in ("ours", "kuberay"))
    return f"{ours / theirs:.2f}"


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    return f"{statistics.median(run[key] for run in runs):.2f}" if key in runs[0] else "–"
