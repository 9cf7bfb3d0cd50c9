"""python -m bench.kube_autoscale: autoscaling by the operator, on the lab with simulated pods.

burst    one cluster from 0 to 300 workers and back to 0, several times: seconds from the demand to the write, number of
         writes, seconds until all workers are ready; from the end of the demand, seconds until the Deployment has 0,
         which is up to Oars, and until no pod is left, which is up to Kubernetes
many     100 autoscaled clusters at rest: the operator's CPU; then all of them get work at the same moment

Only the pods and the demand are simulated. Results go to bench/results/kube_autoscale.json. OARS_LAB_DIR selects the
lab.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.cluster import Lab

from bench.kube_scale import (
    ROUNDS,
    Parts,
    by_oars,
    cpu_of,
    have_budgets,
    is_ready,
    leads,
    main,
    namespace,
    operator,
    say,
    seconds_until,
    until,
    writes_at_rest,
)
from oars.kube.client import Client
from oars.kube.kinds import DEPLOYMENT, POD, Object
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER

BURST, CLUSTERS = 300, 100
REST = 25.0  # seconds of writes_at_rest
RESULTS = Path(__file__).parent / "results" / "kube_autoscale.json"


class Work:
    """The demand of every cluster: so many pieces of work, one for each worker."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self(0)

    def __call__(self, count: int) -> float:
        """Returns when it was set."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps([{"needs": {"cpu": 0.01}, "count": count}] if count else []))
        fresh.replace(self._file)
        return time.monotonic()


@contextmanager
def work() -> Iterator[Work]:
    """Operators that start meanwhile read their demand from it."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "demand.json"
        os.environ["SIMULATED_DEMAND"] = str(file)
        yield Work(file)


def elastic(name: str, where: str, most: int) -> Object:
    (resource,) = by_oars(name, where, workers=0)
    (group,) = resource["spec"]["workers"]
    resource["spec"] |= {"workers": [{**group, "max": most}], "autoscale": {"scaleDownDelay": "5s"}}
    return resource


async def seconds_to_write(client: Client, where: str, wanted: dict[str, int], since: float) -> list[float]:
    """Until the worker Deployment of each cluster has that number, in order."""
    missing, found = dict(wanted), []
    async with asyncio.timeout(120):
        while missing:
            for each in (await client.list(DEPLOYMENT, where)).items:
                name = each["metadata"]["name"]
                if name in missing and each["spec"]["replicas"] == missing[name]:
                    del missing[name]
                    found.append(round(time.monotonic() - since, 2))
            await asyncio.sleep(0.02)
    return found


async def bench_burst(client: Client, lab: Lab) -> list[dict[str, Any]]:
    rows = []
    async with namespace(client) as where:
        with work() as give, operator(lab.settings.kubeconfig, where):
            await until(lambda: leads(client, where), "the operator leads", 0.2)
            await seconds_until(client, COMPUTE_CLUSTER, where, [elastic("demo", where, BURST)], 1, is_ready)
            for _ in range(ROUNDS):
                rows.append(await one_burst(client, where, give))
                say(str(rows[-1]))
    return rows


async def one_burst(client: Client, where: str, give: Work) -> dict[str, Any]:
    name = names.workers("demo", "default")

    async def generation() -> int:
        return int((await client.get(DEPLOYMENT, name, where))["metadata"]["generation"])

    async def is_complete() -> bool:
        groups = (await client.get(COMPUTE_CLUSTER, "demo", where))["status"]["groups"]
        return bool(groups[0]["ready"] == BURST)

    async def is_empty() -> bool:
        labels = names.selector(names.pod_labels("demo", "default"))
        return not (await client.list(POD, where, labels=labels)).items

    before, began = await generation(), give(BURST)
    (written,) = await seconds_to_write(client, where, {name: BURST}, began)
    await until(is_complete, "all workers are ready", 0.2)
    ready, writes, ended = time.monotonic() - began, await generation() - before, give(0)
    (lowered,) = await seconds_to_write(client, where, {name: 0}, ended)
    await until(is_empty, "no worker is left", 0.2)
    return {
        "workers": BURST, "seconds_to_write": written, "writes": writes, "seconds_to_ready": round(ready, 2),
        "seconds_to_lower": lowered, "seconds_to_zero": round(time.monotonic() - ended, 2),
    }  # fmt: skip


async def bench_many(client: Client, lab: Lab) -> dict[str, Any]:
    async with namespace(client) as where:
        with work() as give, operator(lab.settings.kubeconfig, where) as process:
            await until(lambda: leads(client, where), "the operator leads", 0.2)
            clusters = [elastic(f"c{number}", where, 5) for number in range(CLUSTERS)]
            await seconds_until(client, COMPUTE_CLUSTER, where, clusters, CLUSTERS, is_ready)
            await until(lambda: have_budgets(client, where, CLUSTERS), "the heads have disruption budgets", 2.0)
            busy = cpu_of(process.pid)
            rest = await writes_at_rest(lab.api)
            cpu = (cpu_of(process.pid) - busy) / REST
            wanted = {names.workers(f"c{number}", "default"): 2 for number in range(CLUSTERS)}
            written = await seconds_to_write(client, where, wanted, give(2))
    row = {
        "clusters": CLUSTERS, "cpu_per_second_at_rest": round(cpu, 3), "writes_at_rest": rest,
        "first": written[0], "median": statistics.median(written), "last": written[-1],
    }  # fmt: skip
    say(str(row))
    return row


PARTS: Parts = {"burst": bench_burst, "many": bench_many}
MOST_PODS = {"burst": 1 + BURST, "many": 3 * CLUSTERS}


if __name__ == "__main__":
    sys.exit(main(PARTS, MOST_PODS, RESULTS))
