"""DaskCluster resources as dask-kubernetes has them, and what Oars makes of them: a ClusterSpec. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from oars.base.errors import SpecError
from oars.compat.dask_kubernetes.common.model import plain
from oars.convert import dask, tables
from oars.convert.fields import Fields, Source
from oars.convert.pods import GPU
from oars.spec.cluster import ClusterSpec, WorkerGroup

IMAGE = "ghcr.io/dask/dask:latest"


def make_cluster_spec(  # noqa: PLR0913 (the signature of dask-kubernetes)
    name: str,
    image: str = IMAGE,
    n_workers: int | None = None,
    resources: Mapping[str, Any] | None = None,
    env: Any = None,
    worker_command: Any = "dask-worker",
    scheduler_service_type: str = "ClusterIP",
    idle_timeout: int = 0,
    jupyter: bool = False,
) -> dict[str, Any]:
    """Return a DaskCluster resource, to be changed and passed as custom_cluster_spec."""
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": name},
        "spec": {
            "idleTimeout": idle_timeout,
            "worker": make_worker_spec(image, n_workers, resources, env, worker_command),  # type: ignore[arg-type]
            "scheduler": make_scheduler_spec(name, env, resources, image, scheduler_service_type, jupyter),
        },
    }


def make_worker_spec(
    image: str | None = IMAGE,
    n_workers: int = 3,
    resources: Mapping[str, Any] | None = None,
    env: Any = None,
    worker_command: Any = "dask-worker",
) -> dict[str, Any]:
    """Return the `worker` part of a DaskCluster, which is also that of a worker group."""
    words = worker_command.split() if isinstance(worker_command, str) else worker_command
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        hint = "Use 'dask-worker', or a list of words."
        raise SpecError(f"worker_command: {worker_command!r} is not a command.", hint)
    args = [*words, "--name", "$(DASK_WORKER_NAME)", "--dashboard", "--dashboard-address", "8788"]
    port = {"name": "http-dashboard", "containerPort": 8788, "protocol": "TCP"}
    container = {"name": "worker", "image": image, "args": args, "env": _listed(env), "resources": resources,
                 "ports": [port]}  # fmt: skip
    return {"replicas": n_workers, "spec": {"containers": [container]}}


def make_scheduler_spec(
    cluster_name: str,
    env: Any = None,
    resources: Mapping[str, Any] | None = None,
    image: str = IMAGE,
    scheduler_service_type: str = "ClusterIP",
    jupyter: bool = False,
) -> dict[str, Any]:
    """Return the `scheduler` part of a DaskCluster."""
    ports = {"tcp-comm": 8786, "http-dashboard": 8787}
    health = {"httpGet": {"port": "http-dashboard", "path": "/health"}}
    container = {
        "name": "scheduler",
        "image": image,
        "args": ["dask-scheduler", "--host", "0.0.0.0", *(["--jupyter"] if jupyter else [])],
        "env": _listed(env),
        "resources": resources,
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "readinessProbe": {**health, "initialDelaySeconds": 0, "periodSeconds": 1, "timeoutSeconds": 300},
        "livenessProbe": {**health, "initialDelaySeconds": 15, "periodSeconds": 20},
    }
    service = {
        "type": scheduler_service_type,
        "selector": {"dask.org/cluster-name": cluster_name, "dask.org/component": "scheduler"},
        "ports": [{"name": name, "protocol": "TCP", "port": port, "targetPort": name} for name, port in ports.items()],
    }
    return {"spec": {"containers": [container]}, "service": service}


def _listed(env: Any) -> Any:
    if isinstance(env, Mapping):
        return [{"name": name, "value": str(value)} for name, value in env.items()]
    if not isinstance(env, list | tuple | None) or not all(isinstance(each, Mapping) for each in env or ()):
        raise SpecError(f"env: {env!r} is neither a dict nor a list of names with values.", "Use {'NAME': 'value'}.")
    return env


# to Oars


def cluster_spec(manifest: Any) -> dict[str, Any]:
    """The ClusterSpec, as data, of a DaskCluster. Raises SpecError for what Oars does not run, and warns of fields that
    it does not honour."""
    body = plain(manifest, "custom_cluster_spec")
    spec = body.get("spec") if isinstance(body, dict) else None
    if not isinstance(spec, dict) or not isinstance(spec.get("worker"), dict):
        raise SpecError("custom_cluster_spec: it has no spec.worker.", "Use make_cluster_spec for a complete one.")
    spec = {key: value for key, value in spec.items() if key != "idleTimeout"}  # KubeCluster keeps to it
    fields = Fields(spec, ("spec",), Source("custom_cluster_spec", tables.DASK_CLUSTER.rules))
    found = dask.dask_cluster(fields)
    _check(fields)
    return found.spec


def worker_group(name: str, worker: Any, cluster_image: str = "") -> dict[str, Any]:
    """A group of a ClusterSpec, from the worker part of a DaskCluster or of a DaskWorkerGroup."""
    part = plain(worker, f"worker group {name}")
    if not isinstance(part, dict):
        raise SpecError(f"worker group {name}: {worker!r} is not a worker group.", "Use make_worker_spec for one.")
    source = Source(f"worker group {name}", tables.DASK_WORKER_GROUP.rules)
    fields = Fields(part, ("spec", "worker"), source)
    group = dask.worker_group(name, fields, cluster_image)
    _check(fields)
    return group


def worker_arguments(spec: ClusterSpec) -> dict[str, Any]:
    """The arguments of make_worker_spec that make a group with the image, the sizes, the variables and the command of
    the default group."""
    group = spec.group("default") or spec.group(None) or WorkerGroup()
    containers = group.pod.get("spec", {}).get("containers", ())
    own: Mapping[str, Any] = next((each for each in containers if each.get("name") == "worker"), {})
    plain_values = [{"name": name, "value": value} for name, value in group.env.items()]
    amounts = " ".join(f"{name}={amount:g}" for name, amount in group.resources.items())
    return {
        "image": own.get("image", spec.image),
        "n_workers": group.replicas,
        "resources": _sizes(group, own.get("resources", {})),
        "env": [*plain_values, *own.get("env", ())],
        "worker_command": ["dask-worker", *(["--resources", amounts] if amounts else [])],
    }


def _sizes(group: WorkerGroup, own: Mapping[str, Any]) -> dict[str, Any]:
    """`own`: amounts that only the pod's template has."""
    limits: dict[str, Any] = {**own.get("limits", {})}
    requests: dict[str, Any] = {**own.get("requests", {})}
    if not group.burst:
        limits["cpu"] = f"{group.processors:g}"
    elif group.cpu is not None:
        requests["cpu"] = f"{group.cpu:g}"
    if group.memory is not None:
        limits["memory"] = str(group.memory)
    if group.gpu:
        limits[GPU] = group.gpu
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _check(fields: Fields) -> None:
    """Raise for a command that Oars cannot start; warn of everything else that is not honoured."""
    fields.finish()
    for each in fields.source.unmet:
        if each.reason.startswith(dask.NOT_STARTED):
            raise SpecError(str(each), "For other programs use oars.compat.dask_kubernetes.classic.")
    if fields.source.unmet:
        warnings.warn("Not honoured: " + " ".join(map(str, fields.source.unmet)), stacklevel=2)
