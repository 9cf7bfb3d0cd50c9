"""python -m bench.kube_start: time until a cluster of real pods is ready, with Oars and with hand-written manifests.

kubectl applies both: a ComputeCluster, which a running operator reconciles, and Deployments and a Service as in the
engine's documentation, with the same image and resources. Time ends when every worker is ready: with Oars, when the
engine lists it; by hand, when its probe succeeds. Both are measured in turn on one lab. Results go to
bench/results/kube_start.json. OARS_LAB_DIR selects the lab.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from lab.kube import Kube, is_ready
from lab.loan import borrowed

import oars
from lab import kube as kubes
from lab import settings

ROUNDS = int(os.environ.get("OARS_BENCH_ROUNDS", "3"))
LIMIT = 1.15
RESULTS = Path(__file__).parent / "results" / "kube_start.json"
OARS = str(Path(sys.executable).with_name("oars"))
CPU, HEAD_MEMORY, MEMORY = "300m", "2Gi", "1Gi"
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
HOME = {"name": "HOME", "value": "/tmp"}

COMMANDS = {
    "dask": (
        ["dask", "scheduler", "--host", "0.0.0.0", "--port", "8786", "--dashboard-address", ":8787"],
        ["dask", "worker", "tcp://hand-head:8786", "--nthreads", "1", "--memory-limit", MEMORY + "B",
         "--dashboard-address", ":8788", "--local-directory", "/tmp"],
        {"client": 8786, "dashboard": 8787}, ("/health", 8787), ("/health", 8788),
    ),
    "ray": (
        ["ray", "start", "--head", "--port=6379", "--node-ip-address=$(POD_IP)", "--dashboard-host=0.0.0.0",
         "--num-cpus=0", "--object-store-memory=300000000", "--dashboard-agent-listen-port=52365",
         "--disable-usage-stats", "--block"],
        ["ray", "start", "--address=hand-head:6379", "--node-ip-address=$(POD_IP)", "--num-cpus=1",
         "--object-store-memory=300000000", "--dashboard-agent-listen-port=52365", "--disable-usage-stats", "--block"],
        {"gcs": 6379, "dashboard": 8265, "client": 10001}, ("/api/gcs_healthz", 8265),
        ("/api/local_raylet_healthz", 52365),
    ),
}  # fmt: skip
IMAGES = {"dask": "dask", "ray": "ray"}


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def hand_written(engine: str, image: str, workers: int) -> list[dict[str, Any]]:
    head, worker, ports, head_probe, worker_probe = COMMANDS[engine]
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hand-head"},
        "spec": {"selector": {"app": "hand", "role": "head"},
                 "ports": [{"name": name, "port": port} for name, port in ports.items()]},
    }  # fmt: skip
    return [
        service,
        _deployment("head", 1, _container(head, image, HEAD_MEMORY, head_probe)),
        _deployment("worker", workers, _container(worker, image, MEMORY, worker_probe)),
    ]


def _container(command: list[str], image: str, memory: str, probe: tuple[str, int]) -> dict[str, Any]:
    resources = {"requests": {"cpu": CPU, "memory": memory}, "limits": {"memory": memory}}
    get = {"httpGet": {"path": probe[0], "port": probe[1]}, "periodSeconds": 1, "timeoutSeconds": 3}
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    return {"name": "main", "image": image, "command": command, "env": [POD_IP, HOME], "resources": resources,
            "readinessProbe": get, "volumeMounts": mounts}  # fmt: skip


def _deployment(role: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "hand", "role": role}
    shm = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": shm,
           "terminationGracePeriodSeconds": 1}}  # fmt: skip
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"hand-{role}"}, "spec": spec}


def resource(engine: str, image: str, workers: int) -> dict[str, Any]:
    """The same cluster as a ComputeCluster."""
    spec = {
        "engine": engine, "image": image, "head": {"cpu": CPU, "memory": HEAD_MEMORY, "burst": True},
        "replicas": workers, "workers": [{"cpu": CPU, "memory": MEMORY, "burst": True}],
    }  # fmt: skip
    return {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeCluster", "metadata": {"name": "demo"}, "spec": spec}


def until(what: str, condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)  # the same polling for both


def theirs_ready(kube: Kube, workers: int) -> Callable[[], bool]:
    return lambda: sum(is_ready(pod) for pod in kube.pods("app=hand")) == 1 + workers


def ours_ready(kube: Kube, workers: int) -> Callable[[], bool]:
    path = kube.path("computeclusters/demo", "apis/oars.dev/v1alpha1")

    def ready() -> bool:
        status = kube.api.get(path).get("status", {})
        return bool(status.get("phase") == "Ready" and status.get("ready") == f"{workers}/{workers}")

    return ready


def measure(kube: Kube, engine: str, ours: bool) -> tuple[float, float]:
    """Seconds until 1 + 3 members are ready, then until 2 more workers are."""
    image = kube.image(IMAGES[engine])
    ready = ours_ready if ours else theirs_ready
    started = time.monotonic()
    kube.apply(*([resource(engine, image, 3)] if ours else hand_written(engine, image, 3)))
    until(f"{engine} 1+3", ready(kube, 3))
    first, started = time.monotonic() - started, time.monotonic()
    kube.apply(*([resource(engine, image, 5)] if ours else hand_written(engine, image, 5)))
    until(f"{engine} +2", ready(kube, 5))
    return first, time.monotonic() - started


@contextmanager
def operator(kubeconfig: Path) -> Iterator[None]:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    subprocess.run([OARS, "operator", "install", "--replicas", "0", "-q"], env=env, check=True, timeout=120)
    with tempfile.TemporaryFile("w+") as log:
        words = [OARS, "operator", "run", "--metrics-port", "0", "--health-port", "0"]
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log)
        try:
            time.sleep(2)  # until it leads; a late start would count against us
            yield
        finally:
            process.terminate()
            process.wait(20)


def rows(lab: Lab) -> Iterator[dict[str, Any]]:
    cluster = kubes.of_lab(lab)
    for engine in COMMANDS:
        runs: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        for number in range(ROUNDS):
            for side in ("theirs", "ours"):
                with kubes.fresh_namespace(cluster, has_node=True) as kube:
                    runs[side].append(measure(kube, engine, side == "ours"))
                    kube.kubectl("delete", "deployments,computeclusters", "--all", "--wait=false")
                    kube.kubectl("delete", "pods", "--all", "--grace-period=1", seconds=120)
            say(f"{engine} {number + 1}/{ROUNDS}: ours {runs['ours'][-1]}, theirs {runs['theirs'][-1]}")
        for index, what in enumerate(("start 1 + 3", "2 workers more")):
            mine, other = ([run[index] for run in runs[side]] for side in ("ours", "theirs"))
            ratio = statistics.median(mine) / statistics.median(other)
            yield {
                "name": f"{engine}: {what} / hand-written manifests", "ours": round(statistics.median(mine), 2),
                "theirs": round(statistics.median(other), 2), "ratio": ratio, "limit": LIMIT, "ok": ratio <= LIMIT,
                "runs": {"ours": [round(t, 2) for t in mine], "theirs": [round(t, 2) for t in other]},
            }  # fmt: skip


def main() -> None:
    with borrowed(Lab(settings.load(), say)) as lab, operator(lab.settings.kubeconfig):
        found = list(rows(lab))
    record = {
        "part": "kube_start", "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "oars": oars.__version__,
        "python": platform.python_version(), "cores": os.cpu_count(), "load": list(os.getloadavg()), "rows": found,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    for each in found:
        say(f"{each['name']}: {each['ours']} / {each['theirs']} s = {each['ratio']:.2f} (limit {each['limit']})")


if __name__ == "__main__":
    main()
