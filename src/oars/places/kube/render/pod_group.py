"""Volcano's PodGroup for an attempt of a job: its members start together or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from oars.model import HEAD, Desired
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render.driver import CONTAINER
from oars.places.kube.render.workload import Placement, driver_pod, members, set_name
from oars.places.kube.why.quantities import pod_requests

if TYPE_CHECKING:
    from oars.spec.job import JobSpec

SCHEDULER = "volcano"


def pod_group_name(job: str, n: int) -> str:
    return f"{job}-{n}"


def pod_group(metadata: Object, queue: str, spec: JobSpec, cluster: Desired | None) -> Object:
    """The head and the least number of workers start together. The driver starts when its cluster is ready, so the
    members do not wait for it; but its resources are reserved with theirs."""
    cluster_pods = [] if cluster is None else member_pods(cluster)
    driver = 1, driver_pod(spec)
    least = sum(count for count, _ in cluster_pods or [driver])
    return gang(metadata, queue, spec.priority_class or "", [driver, *cluster_pods], least)


def member_pods(cluster: Desired) -> list[tuple[int, Object]]:
    """How many pods of each group start with the cluster, and their spec."""
    return [((group.min or 0) if group.max else group.replicas, pod) for group, pod in members(cluster)]


def gang(metadata: Object, queue: str, priority_class: str, pods: Sequence[tuple[int, Object]], least: int) -> Object:
    """The PodGroup for these pods, of which at least so many start together. An empty queue: Volcano's default."""
    total: dict[str, float] = {}
    for count, pod in pods:
        for resource, amount in pod_requests({"spec": pod}).items():
            total[resource] = total.get(resource, 0.0) + count * amount
    body = {
        "minMember": least,
        "minResources": {name: _quantity(name, amount) for name, amount in total.items() if amount},
        **({"queue": queue} if queue else {}),
        **({"priorityClassName": priority_class} if priority_class else {}),
    }
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": body}


def _quantity(resource: str, amount: float) -> str:
    return f"{round(amount * 1000)}m" if resource == "cpu" else str(round(amount))


def in_group(spec: JobSpec, name: str) -> Mapping[str, Placement]:
    """What Volcano needs in every pod of the attempt."""
    placement = Placement(annotations={names.GANG: name}, scheduler=SCHEDULER)
    workers = spec.cluster.workers if spec.cluster is not None else ()
    sets = (CONTAINER, set_name(HEAD), *(set_name(group.name) for group in workers))
    return dict.fromkeys(sets, placement)
