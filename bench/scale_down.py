"""Scale-downs under load: what is lost with Oars, with KubeRay's way (pods are deleted), and with dask-kubernetes' way
(the scheduler retires workers, then their pods are deleted). Workers are local processes. As the container of a pod
that is deleted, such a process gets SIGTERM, up to 30 s, then SIGKILL.

A driver computes chains of three tasks whose intermediate results live on the workers, holds them, checks them and
releases them; and it calls an actor, where the engine has actors. Meanwhile six of eight workers leave at a time and
come back. Counted are lost results, failed calls of the user, and tasks that ran more than once.

BENCH_ONLY="ray: Oars" measures the rows that this regular expression matches, and keeps the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.scale_down_loads import LOADS
from oars import Cluster
from oars.base.errors import OarsError
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.driver import DriverProgram

WORKERS, STAYING = 8, 2
GRACE = 30.0  # seconds between SIGTERM and SIGKILL: Kubernetes' terminationGracePeriodSeconds if a pod sets none
SCALE_DOWNS = int(os.environ.get("BENCH_SCALE_DOWNS", "200"))  # workers that leave, per engine, with Oars
SAMPLE = int(os.environ.get("BENCH_SAMPLE", "48"))  # the same for the other ways
SECONDS = float(os.environ.get("BENCH_SECONDS", "1200"))  # per engine and way
ONLY = os.environ.get("BENCH_ONLY", "")
RESULTS = Path(__file__).parent / "results/scale_down.json"
SPECS: dict[str, dict[str, Any]] = {
    "dask": {"engine": "dask"},
    "ray": {"engine": "ray", "ray": {"dashboard": False}},
    "mars": {"engine": "mars"},
    "pymars": {"engine": "mars", "mars": {"distribution": "pymars"}},
}
DRAIN_SECONDS = 40.0  # after which a scale-down is withdrawn, and the workers that stayed are counted as such
ERRORS_SHOWN = 5
Leave = Callable[[Cluster, DriverProgram], int]


def settle(cluster: Cluster, workers: int, seconds: float = 120.0) -> None:
    """Wait until exactly that many workers are ready, and no other exists."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = cluster.status()
        if status.phase is Phase.READY and status.ready == workers and len(status.members) == 1 + workers:
            return
        time.sleep(0.1)
    raise TimeoutError(f"not settled after {seconds:.0f} s: {[cause.message for cause in cluster.why()]}")


def leave_drained(cluster: Cluster, program: DriverProgram) -> int:
    """As Oars does it. A worker that holds something that cannot move, such as an actor, stays."""
    cluster.scale(STAYING)
    with contextlib.suppress(TimeoutError):
        settle(cluster, STAYING, DRAIN_SECONDS)
    left = WORKERS - sum(member.id != "head" for member in cluster.members())
    cluster.scale(WORKERS)
    settle(cluster, WORKERS)
    return left


def _victims(cluster: Cluster) -> dict[str, int]:
    running = {member.id: member.pid for member in cluster.members() if member.id != "head" and member.pid}
    return dict(random.sample(sorted(running.items()), WORKERS - STAYING))


def end(pids: Iterable[int], grace: float = GRACE) -> int:
    """End processes as the kubelet ends the containers of a deleted pod. Returns how many got SIGKILL."""
    with contextlib.ExitStack() as stack:
        living = set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # Dask has closed it
                living.add(descriptor := os.pidfd_open(pid))
                stack.callback(os.close, descriptor)
        _signal(living, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while living and (left := deadline - time.monotonic()) > 0:
            living -= set(select.select(living, [], [], left)[0])
        _signal(living, signal.SIGKILL)
        return len(living)


def _signal(descriptors: Iterable[int], number: signal.Signals) -> None:
    for each in descriptors:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(each, number)


def leave_deleted(cluster: Cluster, program: DriverProgram) -> int:
    """Without a drain, as where a controller deletes pods."""
    victims = _victims(cluster)
    end(victims.values())
    _await_successors(cluster, victims)
    return len(victims)


def leave_retired(cluster: Cluster, program: DriverProgram) -> int:
    """Dask's own retirement, after which a controller deletes the pods at once, whether they were retired or not."""
    victims = _victims(cluster)
    program.tell("retire " + " ".join(victims))
    program.expect("retired")
    end(victims.values())
    _await_successors(cluster, victims)
    return len(victims)


def _await_successors(cluster: Cluster, victims: dict[str, int]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pids = {member.id: member.pid for member in cluster.members()}
        if all(pids.get(name) not in (None, pid) for name, pid in victims.items()):
            return settle(cluster, WORKERS)
        time.sleep(0.1)
    raise TimeoutError("the workers were not replaced")


WAYS: dict[str, dict[str, Leave]] = {
    "dask": {"Oars": leave_drained, "dask-kubernetes' way": leave_retired, "KubeRay's way": leave_deleted},
    "ray": {"Oars": leave_drained, "KubeRay's way": leave_deleted},
    "mars": {"Oars": leave_drained, "KubeRay's way": leave_deleted},
    "pymars": {"Oars": leave_drained, "KubeRay's way": leave_deleted},
}


def measure(engine: str, way: str, leave: Leave, enough: int) -> dict[str, Any]:
    """Until `enough` workers have left. `steps`: scale-downs, or deletions; `left`: workers that left in them."""
    spec = build({**SPECS[engine], "workers": [{"replicas": WORKERS, "memory": "512Mi"}]}).spec
    steps, left, problem, started = 0, 0, "", time.monotonic()
    with tempfile.TemporaryDirectory() as directory, Cluster(spec, name=f"bench-{engine}", timeout="5m") as cluster:
        journal = Path(directory) / "ran"
        with DriverProgram(cluster, LOADS[engine], str(journal)) as program:
            program.expect("running")
            try:
                while left < enough and time.monotonic() - started < SECONDS:
                    left += leave(cluster, program)
                    steps += 1
            except (TimeoutError, OarsError) as error:
                problem = f"{type(error).__name__}: {error}"
            program.tell("stop")
            counted = json.loads(program.expect("{", 300))
            errors = [line for line in program.seen if line.startswith(("failed", "lost"))]
        runs = Counter(journal.read_text().split())
    recomputed = sum(number - 1 for number in runs.values())
    seconds = time.monotonic() - started
    return {
        "engine": engine, "way": way, "steps": steps, "left": left, **counted, "tasks": len(runs),
        "recomputed": recomputed, "seconds": round(seconds, 1), "problem": problem,
        "errors": Counter(errors).most_common(ERRORS_SHOWN),
        "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def is_chosen(engine: str, way: str) -> bool:
    return re.search(ONLY, f"{engine}: {way}") is not None


def bench_scale_down() -> Iterator[dict[str, Any]]:
    """The rows that are not measured now, then those that are: Oars' first."""
    if RESULTS.exists():
        yield from (r for r in json.loads(RESULTS.read_text())["rows"] if not is_chosen(r["engine"], r["way"]))
    ways = [(way, engine, leave) for engine, ways in WAYS.items() for way, leave in ways.items()]
    for way, engine, leave in sorted(ways, key=lambda each: each[0] != "Oars"):
        if is_chosen(engine, way):
            row = measure(engine, way, leave, SCALE_DOWNS if way == "Oars" else SAMPLE)
            sys.stderr.write(f"{row}\n")
            yield row


def text(rows: list[dict[str, Any]]) -> str:
    """One line for each engine and way."""
    shown = ("engine", "way", "steps", "left", "calls", "failed", "lost", "tasks", "recomputed", "seconds")
    return "\n".join("  ".join(f"{key} {row[key]}" for key in shown) for row in rows)
