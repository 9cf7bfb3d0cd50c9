"""Plain Deployments and the Service of a Ray cluster, as in Ray's document on Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.convert import commands, pods, ray
from oars.convert.clusters import cluster, filled
from oars.convert.fields import Fields, Foreign, Source

FLAGS = ("block", "head", "no-monitor", "disable-usage-stats")
_START = ("ray", "start")


def role_of(data: Mapping[str, Any]) -> str:
    """The role in a Ray cluster, head or worker; empty for another Deployment."""
    containers = _at(data, "spec", "template", "spec", "containers")
    first = containers[0] if isinstance(containers, list) and containers else None
    lines = [_at(first, name) for name in ("command", "args")]
    words = [word for line in lines if isinstance(line, list) for word in line if isinstance(word, str)]
    found = commands.find(commands.words(Fields({"args": words}, (), Source("", {}))), _START)
    return "" if found is None else "head" if "--head" in found[1] else "worker"


def selects(service: Mapping[str, Any], deployment: Mapping[str, Any]) -> bool:
    """Whether a Service selects the pods of a Deployment."""
    selector, labels = _at(service, "spec", "selector"), _at(deployment, "spec", "template", "metadata", "labels")
    if not isinstance(selector, dict) or not isinstance(labels, dict):
        return False
    return bool(selector) and all(key in labels and labels[key] == value for key, value in selector.items())


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def cluster_name(head: Foreign) -> str:
    """The name with which Oars' Service and Deployments have the names of theirs: ray-head → ray."""
    return head.name.removesuffix("-head") or head.name


def ray_deployments(head: Foreign, workers: Sequence[Foreign], services: Sequence[Foreign]) -> dict[str, Any]:
    """The ClusterSpec of the Deployments of a head and of workers, and of the Services of the head."""
    pod, params = _read(head, "head", ray.HEAD)
    head.spec.take("replicas")
    options = ray.head_options(params, has_workers=bool(workers))
    fields = {**pods.read_sizes(pod), "env": pod.env, "pod": pod.overlay(pod.image)}
    groups = [_group(each, cluster_name(head), pod.image) for each in workers]
    for each in services:
        pods.read_service_ports(each.spec, ray.HEAD)
    types = [each.spec.text("type") for each in services]
    annotations = {key: value for each in services for key, value in each.metadata.pairs("annotations").items()}
    expose = filled({"type": next(filter(None, types), None), "annotations": annotations})
    return cluster("ray", pod.image, fields, groups, expose=expose, ray=options)


def _group(worker: Foreign, name: str, image: str | None) -> dict[str, Any]:
    pod, params = _read(worker, "worker", ray.WORKER)
    replicas = worker.spec.whole("replicas")
    group = {"name": worker.name.removeprefix(f"{name}-"), **pods.read_sizes(pod), "env": pod.env}
    ray.read_worker_options(params, group)
    return {**filled({**group, "pod": pod.overlay(image)}), "replicas": 1 if replicas is None else replicas}


def _read(deployment: Foreign, name: str, engine: pods.Engine) -> tuple[pods.Pod, Fields]:
    """The pod, and the options of its `ray start`."""
    pod = pods.read_pod(deployment.spec.block("template"), name, engine)
    before, arguments, after = commands.find(commands.words(pod.container), _START) or ([], [], [])
    if before or after:
        reason = f"Oars starts Ray itself, without {' '.join([*before, *after])!r}"
        pod.container.unmet("command", reason)
    return pod, pod.container.child(commands.options(arguments, FLAGS), "args")
