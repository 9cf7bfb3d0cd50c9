"""One ComputeJob in its namespace: a ComputeCluster, a batch/v1 Job and a kept log per attempt. See control.jobs.

All names follow from the job's name and the number of the attempt, which is in the status before anything is created;
so an object that exists already was created by an earlier pass. A driver is stopped by suspending its Job, and by
allowing it no pod, which counts if somebody else resumes it. The Job is never deleted, because its name is the lock of
the attempt: a request of an earlier pass or of an earlier leader that arrives late cannot start another driver."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oars.base.errors import OarsError
from oars.client.operator_client import resource_spec
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import JOB, POD, Kind, Object
from oars.operator.driver_logs import DriverLog, DriverLogs
from oars.operator.resources import Key, compute_cluster
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER, COMPUTE_JOB
from oars.places.kube.render.driver import STOPPED, Attempted, closed_job, driver_job, driver_name, job_labels
from oars.places.kube.state import ownership
from oars.places.kube.state.drivers import is_stopped, see_driver
from oars.plan.jobs import (
    MAX_ATTEMPTS,
    ClusterSeen,
    ClusterState,
    DriverState,
    JobPolicy,
    JobSeen,
    JobStep,
    cluster_name,
    driver_seconds,
)
from oars.spec.cluster import ClusterSpec
from oars.spec.job import JobSpec, Logs
from oars.spec.job_status import Attempt, JobStatus


@dataclass
class JobContext:
    """What all jobs of an operator share: the client, the kept logs, and the caches of the informers."""

    client: Client
    logs: DriverLogs
    clusters: Mapping[Key, Object]
    drivers: dict[tuple[str, str], Object] = field(default_factory=dict)  # namespace and name of the batch/v1 Job
    pods: dict[tuple[str, str, str], dict[str, Object]] = field(default_factory=dict)  # namespace, job, attempt → name


class KubeJobPlace:
    """See control.jobs.JobPlace. spec: None if it is invalid; then nothing is created. write: stores a status."""

    def __init__(
        self,
        context: JobContext,
        resource: Object,
        spec: JobSpec | None,
        policy: JobPolicy,
        write: Callable[[JobStatus], Awaitable[None]],
    ) -> None:
        metadata = resource["metadata"]
        self._context = context
        self._client = context.client
        self._logs = context.logs
        self._spec = spec
        self._policy = policy
        self._write = write
        self._name, self._namespace, self._uid = metadata["name"], metadata["namespace"], str(metadata["uid"])

    async def observe(self, status: JobStatus) -> JobSeen:
        attempt = status.last
        if attempt is None:
            return JobSeen()
        job = self._job(attempt.n)
        if job is None and attempt.started is not None and attempt.ended is None:
            job = await self._read_job(attempt.n)  # before a driver counts as lost
        driver = see_driver(self._pods(attempt.n), job, attempt, time.time())
        has_log = driver.state in (DriverState.ENDED, DriverState.LOST, DriverState.UNREACHABLE)
        is_kept = not has_log or attempt.ended is not None or await self._logs.is_kept(self._log(attempt.n))
        return JobSeen(self._see_cluster(attempt.cluster), driver, is_kept)

    async def record(self, status: JobStatus) -> None:
        await self._write(status)

    async def perform(self, step: JobStep, status: JobStatus) -> None:
        attempt = status.last
        match step:
            case JobStep.DELETE_JOB:
                await self._client.delete(COMPUTE_JOB, self._name, self._namespace, uid=self._uid)
            case JobStep.MAKE_CLUSTER if attempt is not None:
                await self._make_cluster(attempt.cluster)
            case JobStep.START_DRIVER if attempt is not None:
                await self._start_driver(attempt, status)
            case JobStep.KEEP_LOG if attempt is not None:
                await self._keep_log(attempt.n)
            case JobStep.STOP_DRIVER if attempt is not None:
                await self._stop_driver(attempt.n)
            case JobStep.REMOVE_DRIVER if attempt is not None:
                await self._stop_driver(attempt.n)
                for pod in self._pods(attempt.n):
                    await self._delete_by_uid(POD, pod)
            case JobStep.REMOVE_CLUSTER if attempt is not None:
                await self._remove_cluster(attempt.cluster)

    async def collect(self, status: JobStatus) -> None:
        """Delete clusters of earlier attempts, which a late request of an earlier leader may have created."""
        if self._policy.has_own_cluster:
            for n in range(max(1, status.attempt - MAX_ATTEMPTS), status.attempt):
                await self._remove_cluster(cluster_name(self._name, n))

    # the cluster

    def _cluster(self, name: str) -> Object | None:
        return self._context.clusters.get(Key(COMPUTE_CLUSTER.kind, self._namespace, name))

    def _see_cluster(self, name: str) -> ClusterSeen:
        found = self._cluster(name)
        if found is None:
            if not self._policy.has_own_cluster:
                return ClusterSeen(ClusterState.FAILED, message=f"There is no cluster {name!r}.")
            return ClusterSeen()
        if self._policy.has_own_cluster and not ownership.has_owner(found, self._uid):
            message = f"ComputeCluster {name!r} exists and does not belong to this job."
            return ClusterSeen(ClusterState.FOREIGN, message=message)
        stored = found.get("status") or {}
        head = str((stored.get("head") or {}).get("incarnation", ""))
        is_current = stored.get("observedGeneration") == found["metadata"]["generation"]
        minimum = self._spec.cluster.min_ready if self._spec is not None and self._spec.cluster is not None else None
        if found["metadata"].get("deletionTimestamp"):
            return ClusterSeen(ClusterState.TERMINATING, head, f"Cluster {name} is being deleted.")
        if is_current and _is_ready(stored, minimum):
            return ClusterSeen(ClusterState.READY, head)
        message = " ".join(filter(None, (f"Cluster {name}: {stored.get('phase', 'Pending')}.", stored.get("message"))))
        if stored.get("reason") == "InvalidSpec":
            return ClusterSeen(ClusterState.FAILED, head, message)
        return ClusterSeen(ClusterState.STARTING, head, message)

    async def _make_cluster(self, name: str) -> None:
        assert self._spec is not None and self._spec.cluster is not None
        await self._create(
            COMPUTE_CLUSTER,
            {
                "apiVersion": COMPUTE_CLUSTER.api_version,
                "kind": COMPUTE_CLUSTER.kind,
                "metadata": self._metadata(name),
                "spec": resource_spec(name, with_priority(self._spec), self._namespace),
            },
        )

    async def _remove_cluster(self, name: str) -> None:
        found = self._cluster(name)
        if found is not None and ownership.has_owner(found, self._uid):
            await self._delete_by_uid(COMPUTE_CLUSTER, found)

    # the driver

    def _pods(self, n: int) -> list[Object]:
        """The driver's pods. An earlier job of the same name may have left some."""
        found = self._context.pods.get((self._namespace, self._name, str(n)), {}).values()
        return [pod for pod in found if _job_uid(pod) in ("", self._uid)]

    def _job(self, n: int) -> Object | None:
        found = self._context.drivers.get((self._namespace, driver_name(self._name, n)))
        return found if found is not None and ownership.has_owner(found, self._uid) else None

    async def _read_job(self, n: int) -> Object | None:
        try:
            found = await self._client.get(JOB, driver_name(self._name, n), self._namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            return None
        return found if ownership.has_owner(found, self._uid) else None

    async def _start_driver(self, attempt: Attempt, status: JobStatus) -> None:
        assert self._spec is not None
        cluster = self._cluster(attempt.cluster)
        if cluster is None:
            return
        seconds = driver_seconds(self._policy, status, time.time())
        attempted = Attempted(self._name, self._owner(), attempt.n, compute_cluster(cluster), seconds)
        await self._create(JOB, driver_job(attempted, self._spec))

    async def _stop_driver(self, n: int) -> None:
        """Stop the driver's Job: Kubernetes stops its pod and starts none. If there is no Job, create it so."""
        job = self._job(n) or await self._create(JOB, closed_job(self._name, self._owner(), n, self._namespace))
        if not is_stopped(job):
            change = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": dict(STOPPED)}
            await self._client.patch(JOB, job["metadata"]["name"], self._namespace, change)
        for pod in self._pods(n):
            if (pod.get("status") or {}).get("phase") == "Running":
                self._logs.follow(self._log(n), pod)

    # the log

    def _log(self, n: int) -> DriverLog:
        keep = (self._spec.logs if self._spec is not None else Logs()).keep
        return DriverLog(self._uid, n, self._metadata(names.job_log(self._name, n), n), keep)

    async def _keep_log(self, n: int) -> None:
        pods = self._pods(n)
        await self._logs.keep(self._log(n), pods[0] if pods else None)

    # objects

    def _owner(self) -> Object:
        return {
            "apiVersion": COMPUTE_JOB.api_version,
            "kind": COMPUTE_JOB.kind,
            "name": self._name,
            "uid": self._uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def _metadata(self, name: str, n: int | None = None) -> Object:
        labels = job_labels(self._name, n)
        return {"name": name, "namespace": self._namespace, "labels": labels, "ownerReferences": [self._owner()]}

    async def _create(self, kind: Kind, obj: Object) -> Object:
        """Create an object, and return it; or the one that an earlier pass created. Raises OarsError if it belongs to
        somebody else."""
        try:
            return await self._client.create(obj)
        except ApiError as error:
            if not is_conflict(error):
                raise
            found = await self._client.get(kind, obj["metadata"]["name"], self._namespace)
            if not ownership.has_owner(found, self._uid):
                message = f"{obj['kind']} {obj['metadata']['name']!r} exists and does not belong to this job."
                raise OarsError(message, "Delete it, or submit the job under another name.") from error
            return found

    async def _delete_by_uid(self, kind: Any, found: Object) -> None:
        metadata = found["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        try:
            await self._client.delete(kind, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except ApiError as error:
            if not is_conflict(error):  # another object has the name by now
                raise


def _is_ready(status: Object, workers: int | None) -> bool:
    """True if the head and that many workers are ready; None: the whole cluster."""
    if workers is None:
        return status.get("phase") == "Ready"
    return bool(status.get("headReady")) and int(str(status.get("ready") or 0).partition("/")[0]) >= workers


def with_priority(spec: JobSpec) -> ClusterSpec:
    """The job's own cluster, with its priority class for all pods that name none."""
    assert spec.cluster is not None
    if spec.priority_class is None:
        return spec.cluster
    first = {"priorityClassName": spec.priority_class}

    def pod(given: Mapping[str, Any]) -> Object:
        return {**given, "spec": {**first, **(given.get("spec") or {})}}

    head = spec.cluster.head.model_copy(update={"pod": pod(spec.cluster.head.pod)})
    workers = tuple(group.model_copy(update={"pod": pod(group.pod)}) for group in spec.cluster.workers)
    return spec.cluster.model_copy(update={"head": head, "workers": workers})


def _job_uid(pod: Object) -> str:
    """The uid of the ComputeJob; empty: an earlier version of Oars created the pod."""
    return str((pod["metadata"].get("annotations") or {}).get(names.JOB_UID, ""))
