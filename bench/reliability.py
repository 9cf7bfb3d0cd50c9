"""Figures for docs/reliability.md. Each command writes its part of bench/results/reliability.json; `make docs` writes
the page.

python -m bench.reliability simulation [SEEDS] [FIRST]
                                                 histories (1,000); from FIRST on, if those before were measured
python -m bench.reliability fuzz [INPUTS] [KIND …]
                                                 bad inputs (100,000)
python -m bench.reliability fairness             reactions while another tenant has trouble
python -m bench.reliability kills                kills after writes, on the lab's control plane (as root)
python -m bench.reliability jobs                 jobs while operators are killed, on the lab's control plane (as root)
python -m bench.reliability drains [DRAINS] [ENGINE …]
                                                 drains with data under load, on the lab's real pods (50; as root)
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oars

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results/reliability.json"
ENGINES = ("dask", "ray", "mars")
IMAGES = {"mars": "mars-xorbits"}


def facts() -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    return {"when": when, "oars": oars.__version__, "cores": os.cpu_count()}


def known() -> dict[str, Any]:
    """The parts that were measured."""
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return found


def save(name: str, found: dict[str, Any]) -> None:
    """Replace one part."""
    RESULT.write_text(json.dumps({**known(), name: {**facts(), **found}}, indent=1) + "\n")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def simulation(seeds: int = 1000, first: int = 1) -> dict[str, Any]:
    """Histories `first` to `seeds`, added to those before `first`."""
    import tests.conftest  # noqa: F401 (puts the toy engine on the path)
    from tests.simulation.engine import LATE_SECONDS
    from tests.simulation.test_histories import AT_ONCE, STEP, replay

    before: dict[str, Any] = known()["simulation"] if first > 1 else {"histories": 0}
    if before["histories"] != first - 1:
        raise SystemExit(f"{before['histories']} histories were measured: continue at {before['histories'] + 1}")
    totals, started = ("histories", "violations", "kills", "seconds"), time.monotonic()
    counts = Counter({name: before.get(name, 0) for name in totals} | before.get("acts", {}))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _, text in pool.map(lambda one: replay(one, min(one + STEP - 1, seeds)), range(first, seeds + 1, STEP)):
            for line in text.splitlines():
                if line.startswith("seed "):
                    say(line)
            counts.update(json.loads(text.splitlines()[-1]))
    counts["seconds"] += round(time.monotonic() - started)
    acts = {name: count for name, count in sorted(counts.items()) if name not in totals}
    return {**{name: counts[name] for name in totals}, "late_seconds": LATE_SECONDS, "acts": acts}


def fuzz(inputs: int = 100_000, *chosen: str) -> dict[str, Any]:
    """Per kind how many were tried and how many of them refused. Anything but a refusal ends the run. What was found
    with kinds that were not chosen is kept."""
    import tests.conftest  # noqa: F401 (puts the toy engine on the path)
    from tests.unit.test_fuzz import KINDS, accepts

    counts = known()["fuzz"]["kinds"] if chosen else {}
    with tempfile.TemporaryDirectory() as directory:
        for kind in KINDS:
            name = kind.__name__.removeprefix("try_")
            if not chosen or name in chosen:
                tried = math.ceil(inputs / len(KINDS))
                refused = sum(not accepts(kind, seed, Path(directory) / "file") for seed in range(tried))
                counts[name] = {"tried": tried, "refused": refused}
                say(f"{name}: {counts[name]}")
    return {"inputs": sum(each["tried"] for each in counts.values()), "kinds": counts}


def fairness() -> dict[str, Any]:
    import tests.conftest  # noqa: F401 (puts the toy engine on the path)
    from tests.simulation.test_fairness import TROUBLES, measure

    rows = []
    for name, trouble in {"none": lambda _: None, **TROUBLES}.items():
        found = measure(trouble)
        rows.append({"trouble": name, "reaction": round(max(found.reactions), 2), "start": round(max(found.starts), 2)})
    return {"rows": rows}


def kills() -> dict[str, Any]:
    """Phase of the life cycle → write → how often the process was killed right after it, per mode."""
    with tempfile.TemporaryDirectory() as directory:
        words = ["-m", "pytest", "-q", "-p", "lab.fixtures", "tests/api/test_killed_after_writes.py"]
        subprocess.run([sys.executable, *words], cwd=ROOT, env={**os.environ, "OARS_FIGURES": directory}, check=True)
        files = {path.stem.removeprefix("kills-"): path for path in sorted(Path(directory).glob("kills-*.json"))}
        return {"modes": {mode: json.loads(path.read_text()) for mode, path in files.items()}}


def jobs() -> dict[str, Any]:
    """What became of 200 jobs while operators were killed. A third of them is retried."""
    with tempfile.TemporaryDirectory() as directory:
        test = "tests/api/test_jobs.py::test_killed_operators_run_each_job_once[200]"
        words = ["-m", "pytest", "-q", "-p", "lab.fixtures", "-m", "long", test]
        subprocess.run([sys.executable, *words], cwd=ROOT, env={**os.environ, "OARS_FIGURES": directory}, check=True)
        found: dict[str, Any] = json.loads((Path(directory) / "jobs.json").read_text())
        return found


def drains(wanted: int = 50, *chosen: str) -> dict[str, Any]:
    """Workers leave while a driver computes on them and holds results. Each engine in direct mode. Each row is saved
    when it is there; the rows of engines that were not chosen are kept."""
    from lab.cluster import Lab
    from lab.loan import borrowed

    from lab import kube as kubes
    from lab import settings

    with borrowed(Lab(settings.load(), say)) as lab:
        rows = {row["engine"]: row for row in known().get("drains", {}).get("rows", ())}
        for engine in chosen or ENGINES:
            with kubes.fresh_namespace(kubes.of_lab(lab), has_node=True) as kube:
                rows[engine] = {**_drain_pods(engine, kube, wanted), "when": facts()["when"]}
                say(str(rows[engine]))
            save("drains", found := {"rows": [rows[engine] for engine in ENGINES if engine in rows]})
    return found


def _drain_pods(engine: str, kube: Any, wanted: int) -> dict[str, Any]:
    from bench.scale_down import SECONDS, WORKERS, leave_drained
    from bench.scale_down_loads import LOADS
    from oars import Cluster
    from oars.base.errors import OarsError
    from oars.spec.load import build
    from oars.testing.driver import DriverProgram

    small = {"cpu": 0.2, "burst": True}
    workers = [{"replicas": WORKERS, "memory": "512Mi", **small}]
    spec = build(
        {
            "engine": engine,
            "image": kube.image(IMAGES.get(engine, engine)),
            "head": {"memory": "1Gi", **small},
            "workers": workers,
        }
    )
    left, problem, started = 0, "", time.monotonic()
    where: dict[str, Any] = {"namespace": kube.namespace, "kubeconfig": str(kube.kubeconfig), "mode": "direct"}
    with (
        Cluster(spec.spec, name="drains", timeout="5m", **where) as cluster,
        DriverProgram(cluster, LOADS[engine], "/tmp/ran") as program,  # tasks write there, in their pod
    ):
        program.expect("running")
        try:
            while left < wanted and time.monotonic() - started < SECONDS:
                left += leave_drained(cluster, program)
        except (TimeoutError, OarsError) as error:
            problem = f"{type(error).__name__}: {error}"
        program.tell("stop")
        counted = json.loads(program.expect("{", 300))
    seconds = round(time.monotonic() - started, 1)
    return {"engine": engine, "left": left, **counted, "seconds": seconds, "problem": problem}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (simulation, fuzz, fairness, kills, jobs, drains)
}


def main(words: list[str]) -> int:
    if not words or words[0] not in PARTS:
        sys.stderr.write(__doc__ or "")
        return 2
    save(words[0], PARTS[words[0]](*(int(word) if word.isdigit() else word for word in words[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
