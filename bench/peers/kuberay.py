"""KubeRay's operator beside ours: built once from the Go registry, run as a process against the lab."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from lab.build import Program, built

from lab import kwok
from oars.kube.kinds import Kind, Object

MODULE = "github.com/ray-project/kuberay/ray-operator"
FOLDER = Path(__file__).parent
PROGRAM = Program("kuberay", 200, package=MODULE, folder=FOLDER)
RAY_CLUSTER = Kind("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOB = Kind("ray.io", "v1", "rayjobs", "RayJob")
KINDS = {each.kind: each for each in (RAY_CLUSTER, RAY_JOB)}  # those that our client does not know by itself


def program(store: Path, say: Callable[[str], None]) -> Path:
    return built(store, PROGRAM, say) / PROGRAM.name


def crds() -> list[Object]:
    """All three: its operator waits for each of them."""
    words = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", MODULE]
    found = subprocess.run(words, cwd=PROGRAM.source, check=True, capture_output=True, text=True, timeout=120)
    files = sorted(Path(found.stdout.strip(), "config", "crd", "bases").glob("*.yaml"))
    return [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]


def cluster(name: str, namespace: str, workers: int, resources: Object) -> Object:
    """The same pods as a RayCluster."""
    container = {"name": "ray", "image": "oars.lab/simulated:1", "resources": resources}
    template = {"spec": {**kwok.POD, "containers": [container]}}
    group = {
        "groupName": "default", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
        "rayStartParams": {}, "template": template,
    }  # fmt: skip
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}, "workerGroupSpecs": [group]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": RAY_CLUSTER.api_version, "kind": RAY_CLUSTER.kind, "metadata": metadata, "spec": spec}


def is_ready(obj: Object) -> bool:
    return bool((obj.get("status") or {}).get("state") == "ready")


def simulated_job(name: str, namespace: str, workers: int, resources: Object) -> Object:
    """A RayJob of simulated pods. It removes its cluster when it has ended."""
    made = cluster(name, namespace, workers, resources)["spec"]
    container = {"name": "submitter", "image": "oars.lab/simulated:1", "resources": resources}
    submitter = {"spec": {**kwok.POD, "containers": [container], "restartPolicy": "Never"}}
    return job(name, "python train.py", made, namespace=namespace, submitterPodTemplate=submitter)


def job(name: str, entrypoint: str, ray_cluster: Object, *, namespace: str = "", **spec: Object) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"entrypoint": entrypoint, "shutdownAfterJobFinishes": True, "rayClusterSpec": ray_cluster, **spec}
    return {"apiVersion": RAY_JOB.api_version, "kind": RAY_JOB.kind, "metadata": metadata, "spec": body}


def is_complete(obj: Object) -> bool:
    return bool((obj.get("status") or {}).get("jobDeploymentStatus") == "Complete")


@contextlib.contextmanager
def operator(
    path: Path, kubeconfig: Path, namespace: str, more: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """As it comes, but without an election that would only add waiting. namespace: empty for all. more: options."""
    words = [str(path), "--watch-namespace", namespace, "--enable-leader-election=false", *more]
    words += ["--metrics-addr", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"]
    with tempfile.TemporaryFile() as log:
        env = {**os.environ, **(environ or {}), "KUBECONFIG": str(kubeconfig)}
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)
