"""Kueue's Workload for an attempt of a job: what it requests, and where its pods may run once it is admitted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from oars.base.errors import SpecError
from oars.model import HEAD, Desired, Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import overlay
from oars.places.kube.render.driver import CONTAINER, job_labels
from oars.places.kube.render.objects import manifests
from oars.plan.desired import digest

if TYPE_CHECKING:
    from oars.spec.job import JobSpec

MAX_POD_SETS = 8  # of a Workload
REQUESTED = "oars.dev/requested"  # annotation of a Workload: hash of its podSets
# What Kueue reads of a pod: its requests, and where it may run.
_POD = ("affinity", "nodeSelector", "overhead", "priorityClassName", "runtimeClassName", "schedulerName", "tolerations")
_CONTAINER = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True)
class Placement:
    """What a queue adds to the pods of a set."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""


def pod_sets(spec: JobSpec, cluster: Desired | None) -> list[Object]:
    """The pods of an attempt: the driver and, if it has its own cluster, the head and each worker group. An autoscaled
    group requests its maximum, so that it never grows beyond what was admitted. Raises SpecError."""
    found = [_pod_set(CONTAINER, 1, driver_pod(spec))]
    if cluster is not None:
        found += cluster_sets(cluster)
    if len(found) > MAX_POD_SETS:
        raise SpecError(
            f"Kueue admits at most {MAX_POD_SETS} sets of pods, but the job has {len(found)}: the driver, the head and "
            f"{len(found) - 2} worker groups.",
            f"Use at most {MAX_POD_SETS - 2} worker groups.",
        )
    return found


def cluster_sets(cluster: Desired) -> list[Object]:
    return [_pod_set(set_name(group.name), group.max or group.replicas, pod) for group, pod in members(cluster)]


def members(cluster: Desired) -> Iterator[tuple[Group, Object]]:
    """Each group of the cluster, the head among them, and the spec of its pods."""
    groups = {group.name: group for group in cluster.shape.workers} | {HEAD: replace(cluster.shape.head, name=HEAD)}
    for obj in manifests(cluster):
        if obj["kind"] == "Deployment":
            template = obj["spec"]["template"]
            yield groups[template["metadata"]["labels"][names.GROUP]], template["spec"]


def set_name(group: str) -> str:
    return group if group == HEAD else f"workers-{group}"


def workload(job: str, owner: Object, n: int, namespace: str, queue: str, sets: list[Object]) -> Object:
    """Without apiVersion: that is the one which is served."""
    return {
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job, n),
            "namespace": namespace,
            "labels": job_labels(job, n),
            "annotations": {REQUESTED: requested(sets)},
            "ownerReferences": [owner],
        },
        "spec": {"queueName": queue, "podSets": sets},
    }


def workload_name(job: str, n: int) -> str:
    return f"{job}-{n}"


def requested(sets: list[Object]) -> str:
    return digest({"podSets": sets})


def driver_pod(spec: JobSpec) -> Object:
    amounts = {"cpu": spec.driver.cpu, "memory": spec.driver.memory}
    container = {"name": CONTAINER, "resources": {"requests": {k: str(v) for k, v in amounts.items() if v is not None}}}
    ours: Object = {"metadata": {}, "spec": {"containers": [container]}}
    if spec.priority_class:
        ours["spec"]["priorityClassName"] = spec.priority_class
    found: Object = overlay.merged(ours, spec.driver.pod, "driver.pod")["spec"]
    return found


def _pod_set(name: str, count: int, pod: Object) -> Object:
    kept = {key: pod[key] for key in _POD if pod.get(key)}
    for kind in ("initContainers", "containers"):
        if pod.get(kind):
            kept[kind] = [{key: each[key] for key in _CONTAINER if each.get(key)} for each in pod[kind]]
    return {"name": name, "count": count, "template": {"spec": kept}}


def placed(spec: JobSpec, placements: Mapping[str, Placement]) -> JobSpec:
    """The job's spec with what a queue adds to the pods of each set."""
    driver = spec.driver.model_copy(update={"pod": with_placement(spec.driver.pod, placements.get(CONTAINER))})
    changed: dict[str, Any] = {"driver": driver}
    if (cluster := spec.cluster) is not None:
        head = cluster.head.model_copy(update={"pod": with_placement(cluster.head.pod, placements.get(set_name(HEAD)))})
        workers = tuple(
            group.model_copy(update={"pod": with_placement(group.pod, placements.get(set_name(group.name)))})
            for group in cluster.workers
        )
        changed["cluster"] = cluster.model_copy(update={"head": head, "workers": workers})
    return spec.model_copy(update=changed)


def with_placement(pod: Mapping[str, Any], placement: Placement | None) -> dict[str, Any]:
    """The overlay of a pod with what a queue adds to it."""
    result = dict(pod)
    if placement is None:
        return result
    metadata, spec = dict(result.get("metadata") or {}), dict(result.get("spec") or {})
    for block, key, added in (
        (metadata, "annotations", placement.annotations),
        (metadata, "labels", placement.labels),
        (spec, "nodeSelector", placement.node_selector),
    ):
        if added:
            block[key] = {**(block.get(key) or {}), **added}
    if placement.tolerations:
        present = list(spec.get("tolerations") or ())
        spec["tolerations"] = [*present, *(dict(each) for each in placement.tolerations if each not in present)]
    if placement.scheduler:
        spec["schedulerName"] = placement.scheduler
    return {**result, **({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}
