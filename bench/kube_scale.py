"""python -m bench.kube_scale [pair|growth|large] …: the operator and many clusters, on the lab with simulated pods.

pair     300 × (head + 3 workers) created at once: hand-written Deployments and Services, the same with all other
         objects of a ComputeCluster (account, policy, budget), ComputeClusters, and KubeRay's RayClusters
growth   100, 300, 600 and 1000 ComputeClusters: time, CPU time and memory of the operator
large    one cluster of 1 + 1000

Each measurement of Oars ends with the number of writes at rest. Only the pods are simulated. Results go to
bench/results/kube_scale.json. OARS_LAB_DIR selects the lab.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.api import Api
from lab.cluster import Lab
from lab.loan import borrowed

from bench.peers import kuberay
from lab import kwok, settings
from oars.kube import config
from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import NAMESPACE, POD, POD_DISRUPTION_BUDGET, Kind, Object
from oars.operator import crd
from oars.operator.resources import compute_cluster
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.spec.cluster import API_VERSION, KIND

ROUNDS = int(os.environ.get("OARS_BENCH_ROUNDS", "3"))
CLUSTERS, WORKERS = 300, 3
SIZES = (100, 300, 600, 1000)
LARGE = 1000
PODS_PER_NODE = 100  # of 110; more nodes than needed would only add their heartbeats
REST_SECONDS = 20
DEADLINE = 900.0
AT_ONCE = 8  # concurrent requests, as in other projects' measurements
RESULTS = Path(__file__).parent / "results" / "kube_scale.json"
TOY = Path(__file__).parents[1] / "tests" / "toy"
RATIO, CPU, MEGABYTES = 1.15, 15.0, 130.0  # the limits, for 300 clusters
OURS = (
    "computeclusters|deployments|services|poddisruptionbudgets|networkpolicies|serviceaccounts|secrets|configmaps|pods"
)
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
Parts = Mapping[str, Callable[[Client, Lab], Awaitable[Any]]]
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}}


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


# Objects


def by_hand(name: str, namespace: str) -> list[Object]:
    """What users write without Oars: two Deployments and a Service."""
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{name}-head", "namespace": namespace},
        "spec": {"selector": {"app": f"{name}-head"}, "ports": [{"port": 8786}]},
    }  # fmt: skip
    return [service, _deployment(f"{name}-head", namespace, 1), _deployment(f"{name}-worker", namespace, WORKERS)]


def _deployment(name: str, namespace: str, replicas: int) -> Object:
    container = {"name": "main", "image": "oars.lab/simulated:1", "command": ["simulated"], "resources": SMALL}
    template = {"metadata": {"labels": {"app": name}}, "spec": {**kwok.POD, "containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def whole_by_hand(name: str, namespace: str) -> list[Object]:
    """All objects of a ComputeCluster, created without an operator."""
    (resource,) = by_oars(name, namespace)
    resource["metadata"] |= {"uid": "", "generation": 1}
    return objects.manifests(compute_cluster(resource))


def by_oars(name: str, namespace: str, workers: int = WORKERS) -> list[Object]:
    """The same cluster as a ComputeCluster."""
    size = {"cpu": "0.01", "memory": "16Mi", "pod": {"spec": kwok.POD}}
    spec = {"engine": "simulated", "head": size, "replicas": workers, "workers": [size]}
    metadata = {"name": name, "namespace": namespace}
    return [{"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}]


# Environment


@contextlib.asynccontextmanager
async def namespace(client: Client) -> AsyncIterator[str]:
    """A new namespace, deleted at the end of the block with all objects in it."""
    name = f"bench-{time.time_ns()}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        for kind in (COMPUTE_CLUSTER, Kind("apps", "v1", "deployments", "Deployment")):
            await delete_all(client, kind, name)
        await client.delete(NAMESPACE, name)
        await until(lambda: _is_gone(client, name), "the namespace is deleted", 2.0)


async def delete_all(client: Client, kind: Kind, namespace: str) -> None:
    """Start deleting all objects of a kind."""
    listing = await client.list(kind, namespace)
    await asyncio.gather(*[client.delete(kind, item["metadata"]["name"], namespace) for item in listing.items])


async def _is_gone(client: Client, name: str) -> bool:
    found = await client.list(NAMESPACE, fields=f"metadata.name={name}")
    return not found.items


async def until(check: Callable[[], Awaitable[bool]], what: str, every: float) -> None:
    deadline = time.monotonic() + DEADLINE
    while not await check():
        if time.monotonic() > deadline:
            raise SystemExit(f"Not within {DEADLINE:.0f} s: {what}.")
        await asyncio.sleep(every)


@contextlib.contextmanager
def operator(kubeconfig: Path, watched: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator in its own process, as in a cluster."""
    program = str(Path(sys.executable).with_name("oars"))
    words = ["operator", "run", "--kubeconfig", str(kubeconfig), "-n", watched, "--lease-namespace", watched]
    words += ["--metrics-port", "0", "--health-port", "0", "--trust-authors"]  # overlays for simulated nodes
    path = os.pathsep.join(filter(None, [str(TOY), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([program, *words], env=env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)
            log.seek(0)
            trouble = [line for line in log.read().decode().splitlines() if "WARNING" in line or "Traceback" in line]
            if trouble:
                say("\n".join(["log of the operator:", *trouble[:5]]))


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> float:
    """Peak memory of a process, in MB."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(peak[1]) / 1024 if peak else 0.0


def cpu_of_lab(lab: Lab) -> float:
    """CPU seconds of Kubernetes itself. Unlike elapsed time, they hardly depend on the load of the machine."""
    return sum(cpu_of(int(path.read_text().split()[0])) for path in (lab.dir / "pids").iterdir())


def writes(api: Api) -> float:
    """Write requests of all clients so far, for kinds of objects that a cluster has. Of the status subresources, only
    that of ComputeClusters counts: the others are written by Kubernetes."""
    total = 0.0
    for labels, count in _REQUESTS.findall(api.get("/metrics")["text"]):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        mine = re.fullmatch(OURS, fields["resource"]) and fields["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE")
        if mine and (not fields["subresource"] or fields["resource"] == "computeclusters"):
            total += float(count)
    return total


async def writes_at_rest(api: Api) -> float:
    await asyncio.sleep(5)  # the last writes before rest
    before = writes(api)
    await asyncio.sleep(REST_SECONDS)
    return writes(api) - before


# Measurements


async def create(client: Client, objects: list[Object]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(obj: Object) -> None:
        async with gate:
            await client.create(obj, kuberay.KINDS.get(obj["kind"]))

    await asyncio.gather(*map(one, objects))


async def seconds_until(
    client: Client, kind: Kind, where: str, objects: list[Object], wanted: int, is_ready: Callable[[Object], bool]
) -> float:
    """Seconds from the first request until `wanted` objects of a kind are ready."""
    ready: set[tuple[str, str]] = set()
    complete = asyncio.Event()

    def changed(key: tuple[str, str], _: Object | None, new: Object | None) -> None:
        (ready.add if new is not None and is_ready(new) else ready.discard)(key)
        if len(ready) >= wanted:
            complete.set()

    informer = Informer(client, kind, where, transform=_status, on_change=changed)
    watching = asyncio.create_task(informer.run())
    await informer.synced.wait()
    started = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE):
            await create(client, objects)
            await complete.wait()
        return time.monotonic() - started
    except TimeoutError:
        raise SystemExit(f"{len(ready)} of {wanted} {kind.plural} after {DEADLINE:.0f} s.") from None
    finally:
        watching.cancel()


def _status(obj: Object) -> Object:
    return {"metadata": {}, "status": obj.get("status", {})}


def is_ready(obj: Object) -> bool:
    conditions = obj["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def measure_hand(
    client: Client, lab: Lab, count: int, write: Callable[[str, str], list[Object]] = by_hand
) -> dict[str, Any]:
    async with namespace(client) as where:
        objects = [obj for number in range(count) for obj in write(f"c{number}", where)]
        before = cpu_of_lab(lab)
        seconds = await seconds_until(client, POD, where, objects, count * (1 + WORKERS), is_ready)
        return {"seconds": round(seconds, 2), "cpu_kubernetes": round(cpu_of_lab(lab) - before, 2)}


async def measure_ours(client: Client, lab: Lab, count: int, workers: int = WORKERS) -> dict[str, Any]:
    async with namespace(client) as where:
        with operator(lab.settings.kubeconfig, where) as process:
            await until(lambda: leads(client, where), "the operator leads", 0.2)
            begun, idle, kubernetes = writes(lab.api), cpu_of(process.pid), cpu_of_lab(lab)
            objects = [obj for number in range(count) for obj in by_oars(f"c{number}", where, workers)]
            seconds = await seconds_until(client, COMPUTE_CLUSTER, where, objects, count, is_ready)
            kubernetes = cpu_of_lab(lab) - kubernetes
            await until(lambda: have_budgets(client, where, count), "the heads have disruption budgets", 2.0)
            busy, made = cpu_of(process.pid), writes(lab.api) - begun
            rest = await writes_at_rest(lab.api)
            resting, peak = cpu_of(process.pid), peak_of(process.pid)
    return {
        "clusters": count, "workers": workers, "seconds": round(seconds, 2),
        "cpu": round(busy, 2), "cpu_until_leading": round(idle, 2), "cpu_kubernetes": round(kubernetes, 2),
        "megabytes": round(peak, 1), "writes_by_all": made, "writes_at_rest": rest,
        "cpu_per_second_at_rest": round((resting - busy) / (REST_SECONDS + 5), 4),
    }  # fmt: skip


async def measure_kuberay(client: Client, lab: Lab, path: Path, count: int) -> dict[str, Any]:
    async with namespace(client) as where:
        with kuberay.operator(path, lab.settings.kubeconfig, where) as process:
            objects = [kuberay.cluster(f"c{number}", where, WORKERS, SMALL) for number in range(count)]
            before = cpu_of_lab(lab)
            seconds = await seconds_until(client, kuberay.RAY_CLUSTER, where, objects, count, kuberay.is_ready)
            return {
                "seconds": round(seconds, 2), "cpu": round(cpu_of(process.pid), 2),
                "cpu_kubernetes": round(cpu_of_lab(lab) - before, 2), "megabytes": round(peak_of(process.pid), 1),
            }  # fmt: skip


async def leads(client: Client, where: str) -> bool:
    leases = await client.list(Kind("coordination.k8s.io", "v1", "leases", "Lease"), where)
    return bool(leases.items)


async def have_budgets(client: Client, where: str, count: int) -> bool:
    """True if all clusters have their PodDisruptionBudgets, which are created last."""
    return len((await client.list(POD_DISRUPTION_BUDGET, where)).items) == count


# Parts


async def bench_pair(client: Client, lab: Lab) -> dict[str, Any]:
    path = kuberay.program(lab.settings.cache, say)
    for crd_of_peer in kuberay.crds():
        await client.apply(crd_of_peer)
    measures: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "by_hand": lambda: measure_hand(client, lab, CLUSTERS),
        "whole_by_hand": lambda: measure_hand(client, lab, CLUSTERS, whole_by_hand),
        "ours": lambda: measure_ours(client, lab, CLUSTERS),
        "kuberay": lambda: measure_kuberay(client, lab, path, CLUSTERS),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    for number in range(ROUNDS):
        # Each of them is measured first once: a control plane becomes slower with use.
        for name in (*measures, *measures)[number % len(measures) :][: len(measures)]:
            runs[name].append(await measures[name]())
            say(f"{number + 1}/{ROUNDS}: {name} {runs[name][-1]}")
    return {**_compared(runs), **runs}


def _compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    names = ("ours", "whole_by_hand", "kuberay")
    ratio, same, peer = (_median(runs[name], "seconds") / _median(runs["by_hand"], "seconds") for name in names)
    cpu, megabytes = _median(runs["ours"], "cpu"), _median(runs["ours"], "megabytes")
    ok = (
        ratio <= RATIO
        and ratio < peer
        and cpu < CPU
        and megabytes < MEGABYTES
        and not any(run["writes_at_rest"] for run in runs["ours"])
    )
    limits = {"ratio": RATIO, "cpu": CPU, "megabytes": MEGABYTES, "writes_at_rest": 0}
    ratios = {"ratio": round(ratio, 3), "ratio_whole_by_hand": round(same, 3), "ratio_kuberay": round(peer, 3)}
    return {**ratios, "cpu": cpu, "megabytes": megabytes, "ok": ok, "limits": limits}


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


async def bench_growth(client: Client, lab: Lab) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        rows.append(await measure_ours(client, lab, size))
        say(str(rows[-1]))
    return rows


async def bench_large(client: Client, lab: Lab) -> dict[str, Any]:
    row = await measure_ours(client, lab, 1, LARGE)
    say(str(row))
    return row


async def measured(lab: Lab, parts: Parts) -> dict[str, Any]:
    target = config.load({}, kubeconfig=lab.settings.kubeconfig)
    async with Client(target, user_agent="bench", timeout=120) as client:
        await client.apply(crd.compute_cluster())
        await until(lambda: is_served(client), "the CRD is established", 0.2)
        return {name: await measure(client, lab) for name, measure in parts.items()}


async def is_served(client: Client) -> bool:
    found = await client.list(crd_kind())
    conditions = [c for item in found.items for c in item.get("status", {}).get("conditions") or ()]
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def crd_kind() -> Kind:
    return Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)


PARTS: Parts = {"pair": bench_pair, "growth": bench_growth, "large": bench_large}
MOST_PODS = {"pair": CLUSTERS * (1 + WORKERS), "growth": SIZES[-1] * (1 + WORKERS), "large": 1 + LARGE}


def main(parts: Parts = PARTS, most_pods: Mapping[str, int] = MOST_PODS, results: Path = RESULTS) -> int:
    """Measure the parts that the command line names, and write them to a file."""
    chosen = sys.argv[1:] or list(parts)
    if unknown := [part for part in chosen if part not in parts]:
        raise SystemExit(f"{unknown[0]} is unknown; the parts are {', '.join(parts)}.")
    sys.path.append(str(TOY))
    with borrowed(Lab(settings.load(), say), with_node=False) as lab:
        kwok.up(lab, 1 + max(most_pods[part] for part in chosen) // PODS_PER_NODE)
        before = os.getloadavg()
        try:
            rows = asyncio.run(measured(lab, {part: parts[part] for part in chosen}))
        finally:
            kwok.down(lab)
    kept = json.loads(results.read_text()) if results.exists() else {}
    facts = {"when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "cores": os.cpu_count(), "load_before": before}
    results.write_text(
        json.dumps({**kept, **{part: {**facts, "result": row} for part, row in rows.items()}}, indent=1) + "\n"
    )
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
