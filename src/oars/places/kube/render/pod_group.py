"""Volcano's PodGroup for an attempt of a job: its members start together or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oars.model import HEAD, Desired
from oars.places.kube.names import Object
from oars.places.kube.render.driver import CONTAINER
from oars.places.kube.render.workload import Placement, driver_pod, members, set_name
from oars.places.kube.why.quantities import pod_requests

if TYPE_CHECKING:
    from oars.spec.job import JobSpec

SCHEDULER = "volcano"
GROUP_NAME = "scheduling.k8s.io/group-name"  # annotation of a pod


def pod_group_name(job: str, n: int) -> str:
    return f"{job}-{n}"


def pod_group(metadata: Object, queue: str, spec: JobSpec, cluster: Desired | None) -> Object:
    """The head and the least number of workers start together. The driver starts when its cluster is ready, so the
    members do not wait for it; but its resources are reserved with theirs."""
    pods = [(1, driver_pod(spec))]
    if cluster is not None:
        pods += [((group.min or 0) if group.max else group.replicas, pod) for group, pod in members(cluster)]
    total: dict[str, float] = {}
    for count, pod in pods:
        for resource, amount in pod_requests({"spec": pod}).items():
            total[resource] = total.get(resource, 0.0) + count * amount
    together = pods[1:] or pods
    body = {
        "minMember": sum(count for count, _ in together),
        "minResources": {name: _quantity(name, amount) for name, amount in total.items() if amount},
        "queue": queue,
        **({"priorityClassName": spec.priority_class} if spec.priority_class else {}),
    }
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": body}


def _quantity(resource: str, amount: float) -> str:
    return f"{round(amount * 1000)}m" if resource == "cpu" else str(round(amount))


def in_group(spec: JobSpec, name: str) -> Mapping[str, Placement]:
    """What Volcano needs in every pod of the attempt."""
    placement = Placement(annotations={GROUP_NAME: name}, scheduler=SCHEDULER)
    workers = spec.cluster.workers if spec.cluster is not None else ()
    sets = (CONTAINER, set_name(HEAD), *(set_name(group.name) for group in workers))
    return dict.fromkeys(sets, placement)
