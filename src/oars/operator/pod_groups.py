"""Volcano schedules the pods of jobs that have its label: all members of an attempt start together, or none."""

from __future__ import annotations

from dataclasses import replace

from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_permanent
from oars.kube.kinds import Kind, Object
from oars.operator.queues import LOOK_SECONDS, UNAVAILABLE, Turn, desired_cluster, owner_of
from oars.places.kube import names
from oars.places.kube.render.driver import job_labels
from oars.places.kube.render.pod_group import in_group, pod_group, pod_group_name
from oars.places.kube.render.workload import placed
from oars.places.kube.state import ownership
from oars.plan.jobs import Hold, cluster_name
from oars.spec.job import JobSpec
from oars.spec.job_status import JobState, JobStatus

LABEL = names.VOLCANO_QUEUE
POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")


class PodGroups:
    """The PodGroups of all jobs of an operator, one per attempt."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: set[tuple[str, int]] = set()  # uid of the job and attempt
        self._deleted: set[tuple[str, int]] = set()

    def forget(self, uid: str) -> None:
        """The job is gone, and its PodGroups with it."""
        self._made = {each for each in self._made if each[0] != uid}
        self._deleted = {each for each in self._deleted if each[0] != uid}

    async def review(self, resource: Object, status: JobStatus, turn: Turn) -> Turn:
        """Create the PodGroup of the open attempt and delete that of an ended one. The turn with Volcano as the
        scheduler of its pods."""
        metadata, last = resource["metadata"], status.last
        queue = (metadata.get("labels") or {}).get(LABEL, "")
        if not queue or last is None:
            return turn
        attempt = str(metadata["uid"]), last.n
        if last.ended is not None:
            if attempt not in self._deleted:
                await self._delete(resource, last.n)
                self._deleted.add(attempt)
            return turn
        is_ending = turn.request.cancel or turn.request.suspend or last.stopping
        if turn.spec is None or status.state is JobState.RUNNING or is_ending:
            return turn
        if attempt not in self._made:
            if hold := await self._ensure(resource, last.n, queue, turn.spec):
                request = replace(turn.request, hold=turn.request.hold or hold)
                return replace(turn, request=request, pause=LOOK_SECONDS)
            self._made.add(attempt)
        name = pod_group_name(str(metadata["name"]), last.n)
        return replace(turn, spec=placed(turn.spec, in_group(turn.spec, name)))

    async def _ensure(self, resource: Object, n: int, queue: str, spec: JobSpec) -> Hold | None:
        """Create the PodGroup. Returns why the attempt must wait, if there is none."""
        job, namespace = str(resource["metadata"]["name"]), str(resource["metadata"]["namespace"])
        cluster = desired_cluster(spec, cluster_name(job, n), namespace)
        metadata = {
            "name": pod_group_name(job, n),
            "namespace": namespace,
            "labels": job_labels(job, n),
            "ownerReferences": [owner_of(resource)],
        }
        body = pod_group(metadata, queue, spec, cluster)
        try:
            if await if_allowed(self._client.create(body, POD_GROUP)) is not None:
                return None
        except ApiError as error:
            if is_permanent(error):
                return Hold("QueueRefused", f"Volcano refuses the PodGroup: {error.message}")
            if not is_conflict(error):
                raise
            name = pod_group_name(job, n)
            found = await self._client.get(POD_GROUP, name, namespace)
            if ownership.has_owner(found, resource["metadata"]["uid"]):
                return None
            what = "Delete it, or submit the job under another name."
            return Hold("QueueRefused", f"PodGroup {name!r} exists and does not belong to this job. {what}")
        return Hold(
            UNAVAILABLE,
            f"The job has the label {LABEL}, but the operator cannot create PodGroups: Volcano is not installed, or "
            "`oars operator install` ran without --queues.",
        )

    async def _delete(self, resource: Object, n: int) -> None:
        name, namespace = pod_group_name(resource["metadata"]["name"], n), resource["metadata"]["namespace"]
        found = await if_allowed(self._client.get(POD_GROUP, name, namespace))
        if found is not None and ownership.has_owner(found, resource["metadata"]["uid"]):
            await self._client.delete(POD_GROUP, name, namespace, uid=found["metadata"]["uid"])
