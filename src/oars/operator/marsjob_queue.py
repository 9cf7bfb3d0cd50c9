"""A MarsJob with Kueue's label waits for its admission: the operator creates its Workload, and starts its pods when
Kueue has admitted that. An evicted job stops, and returns to the queue with a new Workload when its pods are gone. A
job that runs when it gets the label is left alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oars.base import codec
from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_permanent
from oars.kube.kinds import Kind, Object
from oars.model import Desired, Group
from oars.operator.marsjob_status import RUNNING, WAITING, has_begun, is_ended, last_type
from oars.operator.queues import CHANGED, GROUP, LOOK_SECONDS, POLL, VERSIONS, queue_of
from oars.places.kube import names
from oars.places.kube.render.workload import REQUESTED, Placement, cluster_sets, requested, set_name, with_placement
from oars.places.kube.state import ownership, workloads
from oars.places.kube.state.root import ResourceRoot

ADMISSION = "admission"  # field of the status: Admission
MISSING = (
    f"the label {names.KUEUE_QUEUE} has no effect: Kueue is not installed, or `oars operator install` ran without "
    "--queues"
)
LATE = f"the label {names.KUEUE_QUEUE} has no effect: the job ran already when it got the label"


@dataclass(frozen=True)
class Admission:
    """The job's Workload. version: of Kueue's API; empty: there is no Kueue. placements: by set of pods, once the job
    was admitted."""

    version: str = ""
    is_admitted: bool = False
    placements: Mapping[str, Placement] | None = None

    @property
    def kind(self) -> Kind:
        return Kind(GROUP, self.version, "workloads", "Workload")


def admission_of(status: Mapping[str, Any]) -> Admission | None:
    stored = status.get(ADMISSION)
    return codec.load(Admission, stored) if stored else None


async def review(client: Client, root: ResourceRoot, cluster: Desired, pods: Sequence[Object]) -> float:
    """Let the job wait, run or stop as Kueue says. Returns the seconds until the next look."""
    resource, known = root.resource, admission_of(root.status)
    if known is None and (is_ended(root.status) or has_begun(root.status) or not queue_of(resource)):
        await root.amend({WAITING: None})  # it may have lost its label in the queue
        return math.inf
    if known is not None and not known.version:
        return math.inf
    if known is None:
        return await _request(client, root, cluster)
    metadata = resource["metadata"]
    found = await if_allowed(client.get(known.kind, metadata["name"], metadata["namespace"]))
    if is_ended(root.status):
        return await _finish(client, known, found, pods)
    is_ours = found is not None and ownership.has_owner(found, metadata["uid"])
    if found is not None and is_ours and not known.is_admitted and not _is_for(found, _workload(root, cluster)):
        await client.delete(known.kind, metadata["name"], metadata["namespace"], uid=found["metadata"]["uid"])
        await root.amend({ADMISSION: None, WAITING: CHANGED})
        return POLL
    if found is not None and workloads.is_admitted(found):
        return await _run(client, root, known, found)
    if found is not None and not known.is_admitted:
        await root.amend({WAITING: workloads.waiting(found)[1]})
        return LOOK_SECONDS
    await root.amend({WAITING: f"{workloads.eviction(found)} The job returns to the queue."})
    if not pods:
        if found is not None:
            await client.delete(known.kind, metadata["name"], metadata["namespace"], uid=found["metadata"]["uid"])
        await root.amend({ADMISSION: None})
    return POLL


async def _run(client: Client, root: ResourceRoot, known: Admission, found: Object) -> float:
    if not known.is_admitted:
        placements = await _placements(client, known, found)
        if placements is None:
            await root.amend({WAITING: "The operator cannot read the ResourceFlavors that Kueue has chosen."})
            return LOOK_SECONDS
        await root.amend(
            {ADMISSION: codec.dump(replace(known, is_admitted=True, placements=placements)), WAITING: None}
        )
    elif last_type(root.status) == RUNNING and not workloads.is_true(found, workloads.PODS_READY):
        await _report(client, known, found, workloads.PODS_READY, "Running", "The job runs.")
    return LOOK_SECONDS


async def _placements(client: Client, known: Admission, found: Object) -> Mapping[str, Placement] | None:
    """What the admission adds to each set of pods; None: we may not read it."""
    flavors: dict[str, Object] = {}
    kind = Kind(GROUP, known.version, "resourceflavors", "ResourceFlavor", namespaced=False)
    for name in {name for each in workloads.flavors(found).values() for name in each}:
        flavor = await if_allowed(client.get(kind, name))
        if flavor is None:
            return None
        flavors[name] = flavor
    return workloads.placements(found, flavors)


async def _finish(client: Client, known: Admission, found: Object | None, pods: Sequence[Object]) -> float:
    """The job counts in the queue's quota until its pods are gone."""
    if found is None or workloads.is_true(found, workloads.FINISHED):
        return math.inf
    if pods:
        return LOOK_SECONDS
    await _report(client, known, found, workloads.FINISHED, "JobFinished", "The job has ended.")
    return POLL


async def _report(client: Client, known: Admission, found: Object, kind: str, reason: str, message: str) -> None:
    metadata, body = found["metadata"], workloads.with_condition(found, kind, reason, message)
    try:
        await client.patch(known.kind, metadata["name"], metadata["namespace"], body, subresource="status")
    except ApiError as error:
        if not is_conflict(error):  # Kueue has changed it: the next look sees that
            raise


async def _request(client: Client, root: ResourceRoot, cluster: Desired) -> float:
    """Create the Workload, in the version of its API that is served."""
    resource, wanted = root.resource, _workload(root, cluster)
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    for version in VERSIONS:
        known = Admission(version)
        body = {"apiVersion": known.kind.api_version, **wanted}
        try:
            made = await if_allowed(client.create(body, known.kind))
        except ApiError as error:
            if is_conflict(error):
                made = await client.get(known.kind, name, namespace)
            elif is_permanent(error):
                await root.amend({WAITING: f"Kueue refuses the Workload: {error.message}"})
                return LOOK_SECONDS
            else:
                raise
        if made is None:
            continue
        if problem := _not_usable(made, resource):
            await root.amend({WAITING: problem})
            return LOOK_SECONDS
        await root.amend({ADMISSION: codec.dump(known), WAITING: workloads.waiting(made)[1]})
        return POLL
    await root.amend({ADMISSION: codec.dump(Admission()), WAITING: None})
    return math.inf


def _workload(root: ResourceRoot, cluster: Desired) -> Object:
    """Without apiVersion: that is the one which is served."""
    resource, sets = root.resource, cluster_sets(cluster)
    priority = (resource["spec"].get("schedulingPolicy") or {}).get("priority") or 0
    own = {key: resource["metadata"][key] for key in ("name", "namespace")}
    own |= {"annotations": {REQUESTED: requested(sets)}, "ownerReferences": [root.owner]}
    spec = {"queueName": queue_of(resource), "podSets": sets, "priority": priority}
    return {"kind": "Workload", "metadata": own, "spec": spec}


def _is_for(found: Object, wanted: Object) -> bool:
    """True if the Workload requests what the job does now. Those of older versions lack the annotation."""
    digest = wanted["metadata"]["annotations"][REQUESTED]
    is_same = all((found["spec"].get(key) or 0) == (wanted["spec"][key] or 0) for key in ("queueName", "priority"))
    return is_same and (found["metadata"].get("annotations") or {}).get(REQUESTED, digest) == digest


def _not_usable(workload: Object, resource: Object) -> str:
    name = workload["metadata"]["name"]
    if not ownership.has_owner(workload, resource["metadata"]["uid"]):
        return f"Workload {name!r} exists and does not belong to this job. Delete it."
    return f"The former Workload {name!r} is being deleted." if workload["metadata"].get("deletionTimestamp") else ""


def problem(resource: Object, status: Mapping[str, Any]) -> str:
    """Why the job runs without the queue of its label; empty: it does not."""
    known = admission_of(status)
    if known is not None:
        return "" if known.version else MISSING
    return LATE if queue_of(resource) and has_begun(status) else ""


def honours_priority(resource: Object, status: Mapping[str, Any]) -> bool:
    return bool(queue_of(resource)) and not problem(resource, status)


def placed(desired: Desired, status: Mapping[str, Any]) -> Desired:
    """With what the admission adds to the pods."""
    known = admission_of(status)
    if known is None or not known.placements:
        return desired
    chosen, shape = known.placements, desired.shape

    def place(group: Group) -> Group:
        return replace(group, pod=with_placement(group.pod, chosen.get(set_name(group.name))))

    return replace(desired, shape=replace(shape, head=place(shape.head), workers=tuple(map(place, shape.workers))))
