"""python -m bench.kube_jobs [start|many] …: jobs on Kubernetes, against hand-written manifests and KubeRay's RayJob.

start    real pods: from the command until the driver prints its first line, which needs a result of the cluster.
         `oars submit`, `kubectl apply` of Deployments, a Service, a ConfigMap and a batch Job as in the engine's
         documentation, and `kubectl apply` of a RayJob; in turn
many     300 jobs at once with simulated pods: seconds until all have succeeded, the operator's CPU time and memory, and
         the writes of all clients per job; ComputeJobs, RayJobs, and hand-written objects

The first line is the driver's own clock, which is that of this machine. For Oars it is also measured when `oars submit`
prints the line. Results go to bench/results/kube_jobs.json. OARS_LAB_DIR selects the lab.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from lab.api import Api
from lab.cluster import Lab
from lab.kube import Kube, is_ready
from lab.loan import borrowed

import oars
from bench import kube_scale, kube_start
from bench.kube_scale import cpu_of, cpu_of_lab, peak_of, say
from bench.kube_start import CPU, HEAD_MEMORY, HOME, MEMORY, OARS
from bench.peers import dashboard, kuberay
from lab import kube as kubes
from lab import kwok, settings
from oars.base.errors import OarsError
from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import JOB, Kind, Object
from oars.operator import crd
from oars.places.kube.kinds import COMPUTE_CLUSTER, COMPUTE_JOB
from oars.spec.cluster import API_VERSION
from oars.spec.job import JOB_KIND

ROUNDS = int(os.environ.get("OARS_BENCH_ROUNDS", "3"))
RESULTS = Path(__file__).parent / "results" / "kube_jobs.json"
LIMIT = 1.15
WORKERS = 2  # of the jobs with real pods
JOBS, SIMULATED_WORKERS = int(os.environ.get("OARS_BENCH_JOBS", "300")), 1
SECONDS = 300.0
MARK = "first line at"

PROGRAMS = {
    "ray": "import ray\nray.init()\nray.get(ray.remote(lambda: 42).remote())\n",
    "dask": "from distributed import Client\nClient().submit(sum, (20, 22)).result()\n",
}
FIRST_LINE = f"import time\nprint({MARK!r}, time.time(), flush=True)\n"
# A hand-written driver starts together with the cluster, and waits for the head's Service.
WAIT = """
import socket, time
while True:
    try:
        socket.create_connection(("hand-head", {port}), 1).close()
        break
    except OSError:
        time.sleep(0.1)
"""
ADDRESSES = {
    "dask": ({"name": "DASK_SCHEDULER_ADDRESS", "value": "tcp://hand-head:8786"}, 8786),
    "ray": ({"name": "RAY_ADDRESS", "value": "ray://hand-head:10001"}, 10001),
}
DRIVER = {"cpu": "1", "memory": MEMORY}  # the default of a driver of Oars, and a limit of its memory
CODE = {"name": "code", "configMap": {"name": "code"}}
CODE_MOUNT = {"name": "code", "mountPath": "/code"}


# Real pods: from the command to the first line


def by_oars(folder: Path, engine: str, image: str, min_ready: int | None = None) -> None:
    """Write job.yaml and job.py into a folder. min_ready: workers that the driver needs; None: all."""
    cluster = kube_start.resource(engine, image, WORKERS)["spec"]
    cluster |= {} if min_ready is None else {"minReady": min_ready}
    spec = {"cluster": cluster, "entrypoint": ["python", "job.py"], "driver": DRIVER}
    manifest = {"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": {"name": "first"}, "spec": spec}
    (folder / "job.yaml").write_text(json.dumps(manifest))
    (folder / "job.py").write_text(PROGRAMS[engine] + FIRST_LINE)


def by_hand(engine: str, image: str) -> list[Object]:
    """A cluster, and a batch/v1 Job with the program in a ConfigMap."""
    variable, port = ADDRESSES[engine]
    container = {
        "name": "main", "image": image, "command": ["python", "/code/job.py"], "env": [variable, HOME],
        "resources": {"requests": DRIVER, "limits": DRIVER}, "volumeMounts": [CODE_MOUNT],
    }  # fmt: skip
    pod = {"spec": {"containers": [container], "volumes": [CODE], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "first"},
        "spec": {"backoffLimit": 0, "template": pod},
    }  # fmt: skip
    code = _code(WAIT.format(port=port) + PROGRAMS[engine] + FIRST_LINE)
    return [code, *kube_start.hand_written(engine, image, WORKERS), job]


def by_kuberay(engine: str, image: str) -> list[Object]:
    """A RayJob with the program in a ConfigMap, as in KubeRay's sample. The submitter is KubeRay's own."""
    params = {"num-cpus": "0", "object-store-memory": "300000000", "disable-usage-stats": "true"}

    def template(memory: str, **more: Any) -> Object:
        resources = {"requests": {"cpu": CPU, "memory": memory}, "limits": {"memory": memory}}
        container = {"name": "ray", "image": image, "env": [HOME], "resources": resources, **more}
        return {"spec": {"containers": [container], "volumes": [CODE], "terminationGracePeriodSeconds": 1}}

    group = {
        "groupName": "default", "replicas": WORKERS, "minReplicas": WORKERS, "maxReplicas": WORKERS,
        "rayStartParams": {**params, "num-cpus": "1"}, "template": template(MEMORY),
    }  # fmt: skip
    head = {"rayStartParams": params, "template": template(HEAD_MEMORY, volumeMounts=[CODE_MOUNT])}
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [group]}
    return [_code(PROGRAMS[engine] + FIRST_LINE), kuberay.job("first", "python /code/job.py", cluster)]


def _code(program: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"job.py": program}}


Run = dict[str, Any]


def submitted(kube: Kube, engine: str, min_ready: int | None = None) -> Run:
    """Seconds until the driver of `oars submit` has printed its first line, and until the command has."""
    with tempfile.TemporaryDirectory() as folder:
        by_oars(Path(folder), engine, kube.image(engine), min_ready)
        words = [OARS, "submit", "-f", "job.yaml", "--place", "kubernetes", "-n", kube.namespace]
        env = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
        started = time.time()
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if MARK in line:
                    shown = time.time() - started
                    found = {"printed": _clock(line) - started, "shown": shown, "pods": _times(kube, started)}
                    process.wait(60)
                    return found
        finally:
            timer.cancel()
            process.kill()
            process.wait()
    raise SystemExit(f"{engine}: `oars submit` ended without the first line.")


def applied(kube: Kube, objects: list[Object]) -> Run:
    """The same from `kubectl apply`. The line is in the log of the pod of the Job `first`."""
    started = time.time()
    kube.apply(*objects)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for pod in kube.pods("job-name=first"):
            if line := _first_line(kube, pod["metadata"]["name"]):
                return {"printed": _clock(line) - started, "pods": _times(kube, started)}
        time.sleep(0.5)  # the driver's clock counts, not ours
    raise SystemExit(f"No first line within {SECONDS:.0f} s.\n{kube.story('')}")


def _first_line(kube: Kube, pod: str) -> str:
    status, text = kube.api.raw("GET", kube.path(f"pods/{pod}/log"))  # 400: the container does not run yet
    return next((line for line in text.splitlines() if MARK in line), "") if status == 200 else ""


def _times(kube: Kube, started: float) -> dict[str, list[int]]:
    """Seconds until each pod was created, its container ran, and it was ready. Kubernetes counts whole seconds."""
    found = {}
    for pod in kube.pods():
        (state,) = (next(iter(each["state"].values())) for each in pod["status"]["containerStatuses"][:1])
        conditions = pod["status"].get("conditions", [])
        ready = [each["lastTransitionTime"] for each in conditions if each["type"] == "Ready" and is_ready(pod)]
        times = [pod["metadata"]["creationTimestamp"], state.get("startedAt"), *ready]
        found[pod["metadata"]["name"]] = [
            round(datetime.fromisoformat(each).timestamp() - started) for each in times if each
        ]
    return found


def _clock(line: str) -> float:
    return float(line.partition(MARK)[2].split()[0])


def bench_start(lab: Lab) -> None:
    path = kuberay.program(lab.settings.cache, say)
    cluster = kubes.of_lab(lab)
    for definition in kuberay.crds():
        name = definition["metadata"]["name"]
        cluster.api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", definition)
    with (
        kube_start.operator(lab.settings.kubeconfig),
        kuberay.operator(path, lab.settings.kubeconfig, "", ["--use-kubernetes-proxy"]),
    ):
        for engine in PROGRAMS:
            for row in _rounds_of_start(cluster, engine):
                others = [each for each in stored("start").get("rows", ()) if each["engine"] != engine]
                store("start", {"rows": sorted([*others, row], key=itemgetter("engine")), "workers": WORKERS})


def _rounds_of_start(cluster: kubes.Cluster, engine: str) -> Iterator[dict[str, Any]]:
    """The row of an engine after each round."""
    ways: dict[str, Callable[[Kube], Run]] = {
        "by_hand": lambda kube: applied(kube, by_hand(engine, kube.image(engine))),
        "ours": lambda kube: submitted(kube, engine),
        "first_worker": lambda kube: submitted(kube, engine, 1),
    }
    if engine == "ray":
        ways["kuberay"] = lambda kube: applied(kube, by_kuberay(engine, kube.image(engine)))
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for number in range(ROUNDS):
        for way in (*ways, *ways)[number % len(ways) :][: len(ways)]:
            with kubes.fresh_namespace(cluster, has_node=True) as kube:
                found = ways[way](kube)
                owners = ["deployments,computejobs,computeclusters", *(["rayjobs"] if way == "kuberay" else [])]
                kube.kubectl("delete", ",".join(owners), "--all", seconds=120)
                kube.kubectl("delete", "pods", "--all", "--grace-period=1", seconds=120)
            runs[way].append({**found, **{key: round(found[key], 2) for key in ("printed", "shown") if key in found}})
            say(f"{engine} {number + 1}/{ROUNDS}: {way} {runs[way][-1]}")
        yield _compared_start(engine, runs)


def _compared_start(engine: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    medians = {way: _median(found, "printed") for way, found in runs.items()}
    ratio = medians["ours"] / medians["by_hand"]
    is_ahead = medians["ours"] < medians.get("kuberay", float("inf"))
    return {
        "engine": engine, **medians, "shown": _median(runs["ours"], "shown"), "ratio": round(ratio, 3),
        "limit": LIMIT, "ok": ratio <= LIMIT and is_ahead, "runs": runs,
    }  # fmt: skip


def _median(runs: list[Run], key: str) -> float:
    return round(float(statistics.median(run[key] for run in runs)), 3)


# Simulated pods: many jobs at once

_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_OWN = "computejobs|computeclusters|rayjobs|rayclusters"
_WRITTEN = f"{kube_scale.OURS}|{_OWN}|jobs|roles|rolebindings"


def writes(api: Api) -> Counter[str]:
    """Write requests of all clients so far, by verb, kind and status code, for kinds of objects that a job has; events,
    and what only Kubernetes writes, are left out."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(api.get("/metrics")["text"]):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        is_write = fields["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE")
        if is_write and re.fullmatch(_OWN if fields["subresource"] else _WRITTEN, fields["resource"]):
            what = f"{fields['resource']}/{fields['subresource']}".rstrip("/")
            found[f"{fields['verb']} {what} {fields.get('code', '')}".rstrip()] += int(float(count))
    return found


def simulated_by_oars(name: str, namespace: str) -> list[Object]:
    """A ComputeJob of simulated pods."""
    (cluster,) = kube_scale.by_oars(name, namespace, SIMULATED_WORKERS)
    driver = {"cpu": "0.01", "memory": "16Mi", "pod": {"spec": kwok.POD}}
    spec = {"cluster": cluster["spec"], "entrypoint": ["python", "train.py"], "driver": driver}
    metadata = {"name": name, "namespace": namespace}
    return [{"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": metadata, "spec": spec}]


def simulated_by_hand(name: str, namespace: str) -> list[Object]:
    """Two Deployments, a Service and a batch/v1 Job. Nobody removes the cluster."""
    container = {
        "name": "main",
        "image": "oars.lab/simulated:1",
        "command": ["simulated"],
        "resources": kube_scale.SMALL,
    }
    pod = {"spec": {**kwok.POD, "containers": [container], "restartPolicy": "Never"}}
    metadata = {"name": name, "namespace": namespace}
    spec = {"backoffLimit": 0, "template": pod}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return [*kube_scale.by_hand(name, namespace), job]


def simulated_by_kuberay(name: str, namespace: str) -> list[Object]:
    return [kuberay.simulated_job(name, namespace, SIMULATED_WORKERS, kube_scale.SMALL)]


def is_succeeded(obj: Object) -> bool:
    return bool((obj.get("status") or {}).get("state") == "Succeeded")


def is_job_complete(obj: Object) -> bool:
    return bool((obj.get("status") or {}).get("succeeded"))


@asynccontextmanager
async def namespace(client: Client, jobs: Kind) -> AsyncIterator[str]:
    async with kube_scale.namespace(client) as where:
        try:
            yield where
        finally:
            await kube_scale.delete_all(client, jobs, where)


@dataclass(frozen=True)
class Way:
    """One way to run the jobs. clusters: kind of what is removed after a job; None: nothing is."""

    jobs: Kind
    clusters: Kind | None
    write: Callable[[str, str], list[Object]]
    is_over: Callable[[Object], bool]


HAND = Way(JOB, None, simulated_by_hand, is_job_complete)
OURS = Way(COMPUTE_JOB, COMPUTE_CLUSTER, simulated_by_oars, is_succeeded)
KUBERAY = Way(kuberay.RAY_JOB, kuberay.RAY_CLUSTER, simulated_by_kuberay, kuberay.is_complete)


async def measure(client: Client, lab: Lab, way: Way, where: str, pid: int | None = None) -> dict[str, Any]:
    """Create the jobs, and wait until all have succeeded and their clusters are gone. pid: of the operator."""
    objects = [obj for number in range(JOBS) for obj in way.write(f"j{number}", where)]
    begun, kubernetes, before = writes(lab.api), cpu_of_lab(lab), cpu_of(pid) if pid else 0.0
    seconds = await kube_scale.seconds_until(client, way.jobs, where, objects, JOBS, way.is_over)
    found: dict[str, Any] = {"jobs": JOBS, "seconds": round(seconds, 2)}
    clusters = way.clusters
    if clusters is not None:
        await kube_scale.until(lambda: is_empty(client, clusters, where), "the clusters are removed", 1.0)
        written = writes(lab.api) - begun
        found["writes_per_job"] = round(written.total() / JOBS, 2)
        found["writes"] = {what: round(count / JOBS, 2) for what, count in written.most_common()}
    found["cpu_kubernetes"] = round(cpu_of_lab(lab) - kubernetes, 2)
    if pid:
        found |= {"cpu": round(cpu_of(pid) - before, 2), "megabytes": round(peak_of(pid), 1)}
    return found


async def is_empty(client: Client, kind: Kind, where: str) -> bool:
    return not (await client.list(kind, where, limit=1)).items


async def measure_hand(client: Client, lab: Lab) -> dict[str, Any]:
    async with namespace(client, JOB) as where:
        return await measure(client, lab, HAND, where)


async def measure_ours(client: Client, lab: Lab) -> dict[str, Any]:
    async with namespace(client, COMPUTE_JOB) as where:
        with kube_scale.operator(lab.settings.kubeconfig, where) as process:
            await kube_scale.until(lambda: kube_scale.leads(client, where), "the operator leads", 0.2)
            return await measure(client, lab, OURS, where, process.pid)


async def measure_kuberay(client: Client, lab: Lab, path: Path) -> dict[str, Any]:
    async with kube_scale.namespace(client) as where:
        with (
            dashboard.simulated() as environ,
            kuberay.operator(path, lab.settings.kubeconfig, where, environ=environ) as process,
        ):
            try:
                return await measure(client, lab, KUBERAY, where, process.pid)
            finally:  # while its operator runs, which removes its finalizer
                await kube_scale.delete_all(client, kuberay.RAY_JOB, where)
                await kube_scale.until(lambda: is_empty(client, kuberay.RAY_JOB, where), "the RayJobs are removed", 1.0)


async def bench_many(client: Client, lab: Lab) -> None:
    path = kuberay.program(lab.settings.cache, say)
    for definition in (*kuberay.crds(), crd.compute_cluster(), crd.compute_job()):
        await client.apply(definition)
    for kind in (kuberay.RAY_JOB, kuberay.RAY_CLUSTER, COMPUTE_JOB, COMPUTE_CLUSTER):
        await kube_scale.until(lambda kind=kind: _is_served(client, kind), f"{kind.plural} are served", 0.2)  # type: ignore[misc]
    measures: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "by_hand": lambda: measure_hand(client, lab),
        "ours": lambda: measure_ours(client, lab),
        "kuberay": lambda: measure_kuberay(client, lab, path),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    for number in range(ROUNDS):
        for name in (*measures, *measures)[number % len(measures) :][: len(measures)]:
            runs[name].append(await measures[name]())
            say(f"{number + 1}/{ROUNDS}: {name} {runs[name][-1]}")
            store("many", runs)


async def _is_served(client: Client, kind: Kind) -> bool:
    try:
        await client.list(kind, "default", limit=1)
    except OarsError:
        return False
    return True


async def _with_client(lab: Lab) -> None:
    target = config.load({}, kubeconfig=lab.settings.kubeconfig)
    async with Client(target, user_agent="bench", timeout=120) as client:
        await bench_many(client, lab)


def run_start() -> None:
    with borrowed(Lab(settings.load(), say)) as lab:
        bench_start(lab)


def run_many() -> None:
    sys.path.append(str(kube_scale.TOY))
    with borrowed(Lab(settings.load(), say), with_node=False) as lab:
        kwok.up(lab, 1 + JOBS * (2 + SIMULATED_WORKERS) // kube_scale.PODS_PER_NODE)
        try:
            asyncio.run(_with_client(lab))
        finally:
            kwok.down(lab)


PARTS: Mapping[str, Callable[[], None]] = {"start": run_start, "many": run_many}


def main() -> int:
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        raise SystemExit(f"{unknown[0]} is unknown; the parts are {', '.join(PARTS)}.")
    for part in chosen:
        PARTS[part]()
        print(json.dumps(stored(part), indent=1))
    return 0


def stored(part: str) -> dict[str, Any]:
    """The results of a part, from this run or an earlier one."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found: dict[str, Any] = kept.get(part, {}).get("result", {})
    return found


def store(part: str, result: dict[str, Any]) -> None:
    facts = {"oars": oars.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    when = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[part] = {"when": when, **facts, "load": os.getloadavg(), "result": result}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
