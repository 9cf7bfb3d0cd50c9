"""The `schedulingPolicy` of a MarsJob: with a queue, or a number of members that start together, Volcano schedules it.

The operator creates the PodGroup, named like the job, before the pods. Where Volcano is missing, the job runs without
it, and the fields are listed as not honoured; while Volcano refuses the PodGroup, the job waits. A job that runs when
it gets the fields is left alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_permanent
from oars.kube.kinds import Object
from oars.model import Desired, Group
from oars.operator.marsjob_status import WAITING, has_begun
from oars.operator.pod_groups import POD_GROUP
from oars.operator.queues import LOOK_SECONDS
from oars.places.kube import names
from oars.places.kube.render.pod_group import SCHEDULER, gang, member_pods
from oars.places.kube.state import ownership
from oars.places.kube.state.root import ResourceRoot

POD_GROUP_NAME = "podGroup"  # field of the status: name of the PodGroup; empty: there is no Volcano
FIELDS = ("queue", "minAvailable")  # of the policy, which need Volcano
MISSING = (
    "the operator cannot create PodGroups: Volcano is not installed, or `oars operator install` ran without --queues"
)
LATE = "the job ran already when it got the field"


def is_wanted(resource: Object) -> bool:
    policy = resource["spec"].get("schedulingPolicy") or {}
    return any(policy.get(field) for field in FIELDS)


def waits(resource: Object, status: Mapping[str, Any]) -> bool:
    """True until the PodGroup exists, or it is known that there is no Volcano."""
    return is_wanted(resource) and POD_GROUP_NAME not in status and not has_begun(status)


def problem(resource: Object, status: Mapping[str, Any]) -> str:
    """Why the job runs without the PodGroup that it should have; empty: it does not."""
    if POD_GROUP_NAME in status:
        return "" if status[POD_GROUP_NAME] else MISSING
    return LATE if is_wanted(resource) and has_begun(status) else ""


def pod_group(resource: Object, cluster: Desired) -> Object:
    policy, metadata = resource["spec"]["schedulingPolicy"], resource["metadata"]
    pods = member_pods(cluster)
    total = sum(count for count, _ in pods)
    least = min(policy.get("minAvailable") or total, total)
    own = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": {names.CLUSTER: metadata["name"]}}
    return gang(own, policy.get("queue") or "", policy.get("priorityClassName") or "", pods, least)


async def ensure(client: Client, root: ResourceRoot, cluster: Desired) -> float:
    """Create the PodGroup of a job that has none yet. Returns the seconds until the next look."""
    resource = root.resource
    if not waits(resource, root.status):
        return math.inf
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    body = pod_group(resource, cluster)
    body["metadata"]["ownerReferences"] = [root.owner]
    try:
        made = await if_allowed(client.create(body, POD_GROUP))
    except ApiError as error:
        if is_conflict(error):
            found = await client.get(POD_GROUP, name, namespace)
            made = found if ownership.has_owner(found, resource["metadata"]["uid"]) else None
            problem = "" if made else f"PodGroup {name!r} exists and does not belong to this job. Delete it."
        elif is_permanent(error):
            made, problem = None, f"Volcano refuses the PodGroup: {error.message}"
        else:
            raise
        if problem:
            await root.amend({WAITING: problem})
            return LOOK_SECONDS
    await root.amend({POD_GROUP_NAME: name if made is not None else "", WAITING: None})
    return math.inf


def scheduled(desired: Desired, status: Mapping[str, Any]) -> Desired:
    """With what Volcano needs in every pod."""
    name = status.get(POD_GROUP_NAME)
    if not name:
        return desired
    shape = desired.shape
    workers = tuple(_in_group(each, name) for each in shape.workers)
    return replace(desired, shape=replace(shape, head=_in_group(shape.head, name), workers=workers))


def _in_group(group: Group, name: str) -> Group:
    pod = dict(group.pod)
    metadata = dict(pod.get("metadata") or {})
    annotations = {**(metadata.get("annotations") or {}), names.GANG: name}
    spec = {**(pod.get("spec") or {}), "schedulerName": SCHEDULER}
    return replace(group, pod={**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec})
