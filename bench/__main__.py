"""python -m bench [start|executor|cli|decide|pacing|autoscale|reaction|spill|scale_down] …: run all parts, or these.
Results go to bench/results/ as JSON, after each row.

On Kubernetes: python -m bench.kube_start, python -m bench.kube_scale, python -m bench.kube_jobs. Against another
revision of Oars: python -m bench.before_after REVISION. Manifests of other projects: python -m bench.samples.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import elastic, programs
from bench.autoscale import bench_autoscale, table
from bench.decide import bench_decide
from bench.pacing import bench_pacing
from bench.scale_down import bench_scale_down, text
from oars import Cluster, __version__

ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
MARS_TASKS = 200  # each takes tens of milliseconds with either client; ten thousand would take minutes


@dataclass(frozen=True)
class Pair:
    """One comparison: clusters of the same size, started by Oars and by the engine itself in turn."""

    name: str
    ours: tuple[str, ...]
    theirs: str
    limit: float
    engine: str


PAIRS = (
    Pair("dask: scheduler + 4 workers / LocalCluster(4)", ("dask", "4"), programs.START_DASK, 1.0, "dask"),
    Pair("ray: head + 3 / cluster_utils.Cluster of 4", ("ray", "3"), programs.START_RAY_NODES, 1.0, "ray"),
    Pair("ray: workers=0 / ray.init()", ("ray", "0"), programs.START_RAY_INIT, 1.15, "ray"),
    Pair("mars: supervisor + 2 / xorbits.init(n_worker=2)", ("mars", "2"), programs.START_MARS, 1.0, "mars"),
)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def engine_python(engine: str) -> str:
    """The Python that the cluster's members use, so that both sides have the same environment."""
    with Cluster(engine, workers=1, timeout="10m", progress=say) as cluster:
        return cluster.driver().python


def run(python: str, source: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([python, "-c", source, *arguments], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def bench_start() -> list[dict[str, Any]]:
    rows = []
    for pair in PAIRS:
        python = engine_python(pair.engine)
        ours, theirs = [], []
        for number in range(ROUNDS):
            theirs.append(run(python, pair.theirs)["start"])
            ours.append(run(sys.executable, programs.START_OARS, *pair.ours)["start"])
            say(f"{pair.name} {number + 1}/{ROUNDS}: ours {ours[-1]:.2f} s, theirs {theirs[-1]:.2f} s")
        rows.append(row(pair.name, ours, theirs, pair.limit))
    return rows


def bench_executor() -> list[dict[str, Any]]:
    rows = []
    for engine, tasks in (("dask", 10_000), ("ray", 10_000), ("mars", MARS_TASKS)):
        with Cluster(engine, workers=2, cpu=1, memory="1Gi", timeout="10m", progress=say) as cluster:
            driver = cluster.driver()
            command = [driver.python, "-c", programs.THROUGHPUT, str(tasks), str(ROUNDS)]
            done = subprocess.run(
                command, env=dict(driver.env), capture_output=True, text=True, timeout=1800, check=False
            )
        if done.returncode:
            raise SystemExit(done.stderr)
        times = json.loads(done.stdout.strip().splitlines()[-1])
        say(f"{engine}: {tasks} empty tasks: ours {times['oars']}, theirs {times['native']}")
        rows.append(
            row(
                f"{engine}: {tasks} empty tasks by the executor / the engine's own",
                times["oars"],
                times["native"],
                1 / 0.9,
            )
        )
    return rows


def bench_cli() -> list[dict[str, Any]]:
    rows = []
    for name, command, limit in (
        ("oars --help, CPU seconds", [str(Path(sys.executable).with_name("oars")), "--help"], 0.150),
        ("import oars, CPU seconds above bare Python", [sys.executable, "-c", "import oars"], 0.060),
    ):
        bare = cpu_seconds([sys.executable, "-c", "pass"]) if "above" in name else 0.0
        seconds = statistics.median(cpu_seconds(command) for _ in range(ROUNDS)) - bare
        rows.append({"name": name, "ours": seconds, "limit": limit, "ok": seconds <= limit})
    with Cluster("dask", workers=2, timeout="5m") as cluster:
        rows.append(keeper_memory(cluster))
    return rows


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def keeper_memory(cluster: Cluster) -> dict[str, Any]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if b"oars.keeper" in path.read_bytes() and f"/{cluster.name}\0".encode() in path.read_bytes():
            (line,) = (x for x in (path.parent / "status").read_text().splitlines() if x.startswith("VmRSS"))
            megabytes = int(line.split()[1]) / 1024
            return {"name": "the keeper's memory, MB", "ours": megabytes, "limit": 60, "ok": megabytes < 60}
    raise SystemExit("no keeper was found")


def row(name: str, ours: list[float], theirs: list[float], limit: float) -> dict[str, Any]:
    ratio = statistics.median(ours) / statistics.median(theirs)
    shown = {"name": name, "ours": statistics.median(ours), "theirs": statistics.median(theirs), "ratio": ratio}
    return {**shown, "limit": limit, "ok": ratio <= limit, "runs": {"ours": ours, "theirs": theirs}}


def line(each: dict[str, Any]) -> str:
    theirs = f"{each['theirs']:.3f}" if "theirs" in each else "–"
    ratio = f"{each['ratio']:.2f}" if "ratio" in each else "–"
    verdict = "ok" if each["ok"] else "MISSED"
    numbers = f"ours {each['ours']:.3f}  theirs {theirs}  ratio {ratio}  limit {each['limit']:.2f}"
    return f"{each['name']:60} {numbers}  {verdict}"


def main() -> int:
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "start": bench_start,
        "executor": bench_executor,
        "cli": bench_cli,
        "decide": bench_decide,
        "pacing": bench_pacing,
        "autoscale": bench_autoscale,
        "reaction": elastic.bench_reaction,
        "spill": elastic.bench_spill,
        "scale_down": bench_scale_down,
    }
    chosen = sys.argv[1:] or list(parts)
    if unknown := [part for part in chosen if part not in parts]:
        raise SystemExit(
            f"{unknown[0]} is unknown; the parts are {', '.join(parts)}, and bench.kube_start, .kube_scale, .kube_jobs."
        )
    for part in chosen:
        report(part, parts[part]())
    return 0


def report(part: str, rows: Iterable[dict[str, Any]], **more: Any) -> None:
    """Write the results of one part as JSON, after each row, and print them."""
    facts = {"oars": __version__, "python": platform.python_version(), "cores": os.cpu_count()}
    when = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    RESULTS.mkdir(exist_ok=True)
    done: list[dict[str, Any]] = []
    for each in rows:
        done.append(each)
        record = {"part": part, "when": when, **facts, "load": os.getloadavg(), **more, "rows": done}
        (RESULTS / f"{part}.json").write_text(json.dumps(record, indent=1) + "\n")
    tables = {"autoscale": table, "scale_down": text, "reaction": elastic.text, "spill": elastic.text}
    print(tables[part](done) if part in tables else "\n".join(map(line, done)))


if __name__ == "__main__":
    sys.exit(main())
