"""The sections of docs/benchmarks.md on elastic clusters, from the files in bench/results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.elastic import REACTION_ENGINES
from bench.scale_down import WAYS

REACTION_COLUMNS = ("engine", "workers are wanted", "latest of five", "work is done", "zero again")
SPILL_COLUMNS = (
    "engine", "memory, MiB", "results, MiB", "on disk when made, MiB", "s to make", "s to read", "right result",
)  # fmt: skip
SCALE_DOWN_COLUMNS = (
    "engine", "way", "steps", "workers that left", "calls", "failed calls", "lost results", "ran again", "s", "load",
)  # fmt: skip
SCALE_DOWN_HEAD = """## Scale-down under load

A driver computes chains of three tasks whose intermediate results live on the workers, holds, checks and releases them,
and calls an actor where the engine has actors (Dask, Ray). Meanwhile six of eight workers leave in one step, again and
again. With Oars a step is one scale-down, which drains the six; one that holds something that cannot move, such as an
actor, stays, and the scale-down is withdrawn after 40 s. KubeRay's way is to delete pods without a drain;
dask-kubernetes' way is Dask's own retirement, after which the pods are deleted at once. Workers are local processes
that stand for pods: "a pod is deleted" means SIGTERM, up to 30 s, then SIGKILL. `python -m bench scale_down` measures
until 200 workers have left with Oars, and 48 in each other way.
"""
REACTION_HEAD = """## From zero to zero with real engines

Local processes; a group of at most two workers, `scaleDownDelay` 5 s (`python -m bench reaction`). Seconds from the
first call of a connected program until workers are wanted, until six tasks of 1 s are done, and from then until no
worker is left. The rounds follow at once, so after the first one the group [keeps its workers for 12 s instead of
5](autoscaling.md#down).
"""
SPILL_HEAD = """## A workload of three times the memory

One worker, a local process; random results of 10 MiB, which are made, kept and then read (`python -m bench spill`).
"""
BURST_HEAD = """## On Kubernetes: a burst of work

One cluster from 0 to 300 workers and back, on a real control plane with simulated pods (`python -m
bench.kube_autoscale`). `scaleDownDelay` is 5 s. When the work ends, Oars drains the workers and lowers the number of
the Deployment; Kubernetes then deletes the pods.
"""
BURST_COLUMNS = {
    "workers": "workers",
    "seconds_to_write": "demand → write, s",
    "writes": "writes",
    "seconds_to_ready": "demand → all ready, s",
    "seconds_to_lower": "end of the work → Deployment at 0, s",
    "seconds_to_zero": "end of the work → no pod left, s",
}
AUTOSCALE_HEAD = """## Autoscaling, simulated

Nine loads with a fake clock ([the rules](autoscaling.md)). Workers have four slots and take 12 s to start; a group has
at most 100. Ray's autoscaler v2 is modelled as under KubeRay, with ten launches per update, and without that limit.
Oars decides with the signals that it gets from Dask (durations are known) and from Ray (they are not).

Each cell: idle worker-seconds / mean seconds that a task waits / writes / workers started / reversals within a minute;
medians of 21 runs with different random numbers.
"""
READINGS_HEAD = """Oars' idle time and waiting time as a share of those of Ray v2 without its launch limit, and of
those of the reference function of the research, which gets Dask's signals (`python -m bench.autoscale_reference`). The
score is the geometric mean of the last two. [What needs words](autoscaling.md#what-it-costs-and-gains).
"""
FIGURES = ("idle", "wait")
LIMIT = 1.05  # a figure above it is clearly worse
WITH_DASK, WITH_RAY, RAY = "Oars, Dask's signals", "Oars, Ray's signals", "Ray v2, no launch limit"


def sections(results: Path) -> Iterator[str]:
    """The lines of all sections for which there are results."""
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    if "scale_down" in found:
        yield from scale_down(found["scale_down"])
    if "reaction" in found:
        rows = found["reaction"]["rows"]
        yield from engines(REACTION_HEAD, REACTION_COLUMNS, found["reaction"], map(reaction, rows))
        if missing := [name for name in REACTION_ENGINES if not any(row["engine"] == name for row in rows)]:
            yield f"Not measured in this run: {', '.join(missing)}.\n"
    if "spill" in found:
        yield from engines(SPILL_HEAD, SPILL_COLUMNS, found["spill"], map(spill, found["spill"]["rows"]))
    if "kube_autoscale" in found:
        yield from kubernetes(found["kube_autoscale"])
    if "autoscale" in found:
        rows = found["autoscale"]["rows"]
        yield from autoscale(rows)
        yield from readings(rows, found["autoscale_reference"]["rows"])


def table(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    columns = list(columns)
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield ""


def scale_down(record: Mapping[str, Any]) -> Iterator[str]:
    rows = record["rows"]
    names = list(dict.fromkeys(row["engine"] for row in rows))
    ordered = sorted(rows, key=lambda row: names.index(row["engine"]))
    yield SCALE_DOWN_HEAD
    first, last = min(row["when"] for row in rows), max(row["when"] for row in rows)
    yield f"Measured {first} to {last}, {record['cores']} cores; last columns: seconds, and the load at the end.\n"
    keys = ("engine", "way", "steps", "left", "calls", "failed", "lost")
    again = (f"{row['recomputed']} of {row['tasks']}" for row in ordered)
    figures = ([row[key] for key in keys] for row in ordered)
    ends = ([f"{row['seconds']:.0f}", f"{row['load']:.0f}"] for row in ordered)
    yield from table(
        SCALE_DOWN_COLUMNS, ([*own, ran, *end] for own, ran, end in zip(figures, again, ends, strict=True))
    )
    ours = [
        f"{row['left']} workers in {row['steps']} scale-downs ({row['engine']})"
        for row in ordered
        if row["way"] == "Oars"
    ]
    yield f"So the rows of Oars count {', '.join(ours)}.\n"
    done = {(row["engine"], row["way"]) for row in rows}
    if missing := [f"{way} ({engine})" for engine, ways in WAYS.items() for way in ways if (engine, way) not in done]:
        yield f"Not measured in this run: {', '.join(missing)}.\n"


def engines(
    head: str, columns: Sequence[str], record: Mapping[str, Any], rows: Iterable[Sequence[Any]]
) -> Iterator[str]:
    yield head
    yield f"Measured {record['when']}, {record['cores']} cores, load {record['load'][0]:.0f}.\n"
    yield from table(columns, rows)


def reaction(row: Mapping[str, Any]) -> Sequence[Any]:
    return row["engine"], f"{row['wanted']:.2f}", f"{row['latest']:.2f}", f"{row['done']:.1f}", f"{row['to_zero']:.1f}"


def spill(row: Mapping[str, Any]) -> Sequence[Any]:
    sizes = (f"{row[key] / 2**20:.0f}" for key in ("memory", "results", "spilled"))
    return row["engine"], *sizes, row["seconds_to_make"], row["seconds_to_read"], "yes" if row["ok"] else "NO"


def kubernetes(kept: Mapping[str, Any]) -> Iterator[str]:
    if "burst" in kept:
        yield BURST_HEAD
        yield f"Measured {kept['burst']['when']}, {kept['burst']['cores']} cores.\n"
        rows = ([row.get(key, "–") for key in BURST_COLUMNS] for row in kept["burst"]["result"])
        yield from table(BURST_COLUMNS.values(), rows)
    if "many" in kept:
        row = kept["many"]["result"]
        share = f"{row['cpu_per_second_at_rest']:.0%} of a processor and {row['writes_at_rest']:.0f} writes"
        yield f"{row['clusters']} autoscaled clusters at rest cost the operator {share}. When all of them get work"
        yield f"at the same moment, the first write follows after {row['first']:.1f} s, half of them after"
        yield f"{row['median']:.1f} s, the last after {row['last']:.1f} s.\n"


def autoscale(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    loads = list(dict.fromkeys(row["load"] for row in rows))
    yield AUTOSCALE_HEAD
    yield from table(["load", *policies], ([load, *(cell(r) for r in rows if r["load"] == load)] for load in loads))


def cell(row: Mapping[str, Any]) -> str:
    left = f", {row['left']} never ran" if row["left"] else ""
    return f"{row['idle']:.0f} / {row['wait']:.1f} / {row['writes']} / {row['starts']} / {row['reversals']}{left}"


def readings(rows: Sequence[Mapping[str, Any]], reference: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    by_policy = {(row["load"], row["policy"]): row for row in rows}
    found, scores, compared = [], [], []
    for other in reference:
        load = other["load"]
        ours, signals, ray = (by_policy[load, policy] for policy in (WITH_DASK, WITH_RAY, RAY))
        pairs = [[a[key] / b[key] for key in FIGURES] for a, b in ((ours, ray), (signals, ray), (ours, other))]
        scores.append(math.sqrt(math.prod(pairs[2])))
        found.append([load, *(f"{ratio:.2f}" for pair in pairs for ratio in pair), f"{scores[-1]:.3f}"])
        compared += [(ratio, f"{key} on {load} ({ratio:.2f})") for key, ratio in zip(FIGURES, pairs[2], strict=True)]
    yield READINGS_HEAD
    headings = [f"{what}, {of}" for of in ("Dask's signals / Ray", "Ray's signals / Ray") for what in FIGURES]
    yield from table(["load", *headings, *(f"{what} / reference" for what in FIGURES), "score"], found)
    better = sum(score < 1.0 for score in scores)
    yield f"By the score, Oars is better than the reference on {better} of {len(scores)} loads; at worst it has"
    yield f"{max(scores):.3f}.\n"
    far = [text for ratio, text in compared if ratio > LIMIT]
    close = [text for ratio, text in compared if 1 < float(f"{ratio:.2f}") <= LIMIT]
    yield f"Single figures in which Oars loses to the reference by more than 5 %: {', '.join(far) or 'none'};"
    yield f"by 5 % or less: {', '.join(close) or 'none'}.\n"
