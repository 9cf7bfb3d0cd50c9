"""Kueue admits the attempts of jobs that have its label. For each attempt the operator creates a Workload, and creates
the attempt's cluster when Kueue has admitted it.

There is one Workload per attempt, named like it. It counts in the queue's quota until the pods of the attempt are gone;
then it is marked as finished. So a job that Kueue evicts returns to the queue with a new Workload, and nobody but Kueue
writes an admission."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from oars.base.errors import OarsError, SpecError
from oars.base.log import get_logger, pairs
from oars.client.operator_client import if_allowed, resource_spec
from oars.control.runner import NOW
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_permanent
from oars.kube.informer import Informer
from oars.kube.kinds import Kind, Object
from oars.model import Desired, Pause
from oars.operator.index import Watches
from oars.operator.job_place import JobContext
from oars.operator.resources import Key, compute_cluster
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER, COMPUTE_JOB
from oars.places.kube.render.driver import driver_name
from oars.places.kube.render.workload import REQUESTED, Placement, placed, pod_sets, requested, workload, workload_name
from oars.places.kube.state import ownership, workloads
from oars.plan.jobs import Hold, JobRequest, cluster_name
from oars.spec.job import JobSpec
from oars.spec.job_status import JobState, JobStatus

LABEL = names.KUEUE_QUEUE
PRIORITY = "kueue.x-k8s.io/priority-class"  # label of a ComputeJob: a WorkloadPriorityClass
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
LOOK_SECONDS = 10.0  # between two looks for Kueue while a job waits for it
KIND_SECONDS = 60.0  # between two looks for it while none does
POLL = 1.0  # while pods end, which do not wake their job
LATE_POLL = 5.0  # the same after the job's end: its cluster may stay
UNAVAILABLE = "QueueUnavailable"
CHANGED = "The request of the job has changed."

log = get_logger(__name__)

Wake = Callable[[Key, Pause], None]


@dataclass(frozen=True)
class Turn:
    """What the queue makes of a pass: spec and request of the attempt, and the seconds until the next look."""

    spec: JobSpec | None
    request: JobRequest
    pause: float | None = None


@dataclass(frozen=True)
class _Job:
    """The ComputeJob of a pass. workloads: its Workloads by attempt."""

    resource: Object
    spec: JobSpec | None
    status: JobStatus
    workloads: Mapping[int, Object]

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.resource["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.resource["metadata"]["uid"])

    @property
    def has_open_attempt(self) -> bool:
        return self.status.last is not None and self.status.last.ended is None


class Queues:
    """The Workloads of all jobs of an operator."""

    def __init__(
        self, client: Client, namespaces: Sequence[str], watches: Watches, context: JobContext, wake: Wake
    ) -> None:
        self._client = client
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._watches = watches
        self._context = context
        self._wake = wake
        self._looked = False
        self._kind: Kind | None = None  # None: Kueue is not served, or we may not read its objects
        self._informers: list[Informer] = []
        # By namespace and job, then by name: as watched or as the last own write returned it, if that is newer.
        self._found: dict[tuple[str, str], dict[str, Object]] = {}
        self._placements: dict[str, Mapping[str, Placement]] = {}  # by uid of the Workload

    # watches

    async def run(self, jobs: Mapping[Key, Object]) -> None:
        """Look for Kueue, then watch its Workloads until cancelled. jobs: the ComputeJobs, which wait for this."""
        while self._kind is None:
            try:
                self._kind = await self._find()
            except OarsError as error:
                log.info(pairs("Workloads cannot be listed", error=error.message))
            if not self._looked or self._kind is not None:
                self._looked = True
                self._wake_labelled(jobs)
            if self._kind is None:
                await asyncio.sleep(KIND_SECONDS)  # poll: kinds are rarely installed
        kind = self._kind
        self._informers = [
            Informer(self._client, kind, each, labels=names.JOB, on_change=self._on_workload)
            for each in self._namespaces
        ]
        await asyncio.gather(*(each.run() for each in self._informers), self._wake_when_synced(jobs))

    async def _find(self) -> Kind | None:
        for version in VERSIONS:
            kind = Kind(GROUP, version, "workloads", "Workload")
            if await if_allowed(self._client.list(kind, self._namespaces[0], limit=1)) is not None:
                return kind
        return None

    async def _wake_when_synced(self, jobs: Mapping[Key, Object]) -> None:
        for each in self._informers:
            await each.synced.wait()
        self._wake_labelled(jobs)

    def _wake_labelled(self, jobs: Mapping[Key, Object]) -> None:
        for key, job in jobs.items():
            if queue_of(job):
                self._wake(key, NOW)

    def _on_workload(self, key: tuple[str, str], old: Object | None, new: Object | None) -> None:
        workload = new or old or {}
        job = _job_of(workload)
        if new is None:
            self._forget(workload)
        else:
            self._store(new)
        self._wake(Key(COMPUTE_JOB.kind, *job), NOW)

    def _store(self, workload: Object) -> None:
        found, name = self._found.setdefault(_job_of(workload), {}), workload["metadata"]["name"]
        present = found.get(name)
        if present is None or _version(present) <= _version(workload):
            found[name] = workload

    def _forget(self, workload: Object) -> None:
        job = _job_of(workload)
        self._placements.pop(str(workload["metadata"]["uid"]), None)
        self._found.get(job, {}).pop(workload["metadata"]["name"], None)
        if not self._found.get(job):
            self._found.pop(job, None)

    @property
    def is_known(self) -> bool:
        """False until it is known whether there is a queue, and which Workloads there are."""
        if self._kind is None:
            return self._looked
        return bool(self._informers) and all(each.synced.is_set() for each in self._informers)

    # passes

    async def review(self, resource: Object, spec: JobSpec | None, status: JobStatus, request: JobRequest) -> Turn:
        """Create, finish or delete the job's Workloads, and return what follows for this pass."""
        queue, found = queue_of(resource), self._workloads(resource)
        job = _Job(resource, spec, status, found)
        # An attempt that began before the job had the label is left alone. Records of older versions have no queue.
        is_queued = bool(open_queue(status) or (queue and job.has_open_attempt and status.attempt in found))
        if not found and not is_queued and (not queue or job.has_open_attempt):
            return Turn(spec, request)
        if self._kind is None:
            message = (
                f"The job is in queue {open_queue(status) or queue} (label {LABEL}), but the operator cannot read "
                "Kueue's Workloads: Kueue is not installed, or `oars operator install` ran without --queues."
            )
            return Turn(spec, held(request, UNAVAILABLE, message))
        is_waiting = await self._finish_ended(job)
        pause = (LATE_POLL if status.state.is_final else POLL) if is_waiting else None
        is_over = status.state.is_final or request.cancel or request.suspend
        if is_over or not queue:
            await self._withdraw(job)
        if is_queued and not is_over:
            return await self._review_open(job, request)
        if is_over or not queue or job.has_open_attempt:
            return Turn(spec, request, pause)
        if is_waiting:
            message = f"The pods of attempt {status.attempt} have not ended yet."
            return Turn(spec, held(request, "QueueWaiting", message), pause)
        if request.hold is not None or (status.retry_at is not None and time.time() < status.retry_at):
            # The next attempt is held until its Workload exists, which the queue sees after the backoff.
            return Turn(spec, held(request, "QueueWaiting", f"The job returns to queue {queue}."), POLL)
        return await self._queue(job, queue, request)

    async def _review_open(self, job: _Job, request: JobRequest) -> Turn:
        found = job.workloads.get(job.status.attempt) or await self._read(job, job.status.attempt)
        if evicted := workloads.eviction(found):
            return Turn(job.spec, replace(request, evicted=evicted))
        assert found is not None
        if self._has_other_request(job, found):
            return Turn(job.spec, replace(request, evicted=CHANGED))
        # By its pod: the status says so after this pass, and nothing wakes the job then.
        if self._runs(job) and not workloads.is_true(found, workloads.PODS_READY):
            await self._set_condition(found, workloads.PODS_READY, "Running", "The driver runs.")
        return await self._placed(job, found, request)

    def _has_other_request(self, job: _Job, found: Object) -> bool:
        """True if the spec has changed since the admission, and the driver does not exist yet."""
        n = job.status.attempt
        if job.spec is None or (job.namespace, driver_name(job.name, n)) in self._context.drivers:
            return False
        if job.status.last is not None and job.status.last.started is not None:
            return False  # a driver that is lost
        sets = pod_sets(job.spec, desired_cluster(job.spec, cluster_name(job.name, n), job.namespace))
        return _requested(found) != requested(sets)

    async def _queue(self, job: _Job, queue: str, request: JobRequest) -> Turn:
        """The next attempt waits for its admission."""
        assert job.spec is not None
        n = job.status.attempt + 1
        found = job.workloads.get(n)
        try:
            sets = pod_sets(job.spec, desired_cluster(job.spec, cluster_name(job.name, n), job.namespace))
        except SpecError as error:
            return Turn(job.spec, held(request, "QueueUnsupported", f"{error.message} {error.hint}"))
        priority = await self._priority(job.resource)
        if priority is None:
            message = f"The operator cannot read the WorkloadPriorityClass that label {PRIORITY} names."
            return Turn(job.spec, held(request, UNAVAILABLE, message), LOOK_SECONDS)
        if found is not None and not _is_for(found, queue, sets, priority):
            await self._delete(found)
            return Turn(job.spec, held(request, "QueueWaiting", CHANGED), POLL)
        if found is None:
            try:
                body = workload(job.name, owner_of(job.resource), n, job.namespace, queue, sets)
                body["spec"]["priority"] = priority
                found = await self._create(job, n, body)
            except ApiError as error:
                if not is_permanent(error):
                    raise
                refused = held(request, "QueueRefused", f"Kueue refuses the Workload: {error.message}")
                return Turn(job.spec, refused, LOOK_SECONDS)  # a quota or Kueue itself may change
        if workloads.is_admitted(found):
            return await self._placed(job, found, replace(request, queue=queue))
        return Turn(job.spec, held(request, *workloads.waiting(found)))

    async def _placed(self, job: _Job, found: Object, request: JobRequest) -> Turn:
        """The spec with what the admission adds to the pods."""
        if job.spec is None or job.status.state is JobState.RUNNING:
            return Turn(job.spec, request)
        uid = str(found["metadata"]["uid"])
        if uid not in self._placements:
            known: dict[str, Object] = {}
            for name in {name for each in workloads.flavors(found).values() for name in each}:
                assert self._kind is not None
                kind = Kind(GROUP, self._kind.version, "resourceflavors", "ResourceFlavor", namespaced=False)
                flavor = await if_allowed(self._client.get(kind, name))
                if flavor is None:
                    message = f"The operator cannot read ResourceFlavor {name}, which says where the pods may run."
                    return Turn(job.spec, held(request, UNAVAILABLE, message), LOOK_SECONDS)
                known[name] = flavor
            self._placements[uid] = workloads.placements(found, known)
        return Turn(placed(job.spec, self._placements[uid]), request)

    async def _finish_ended(self, job: _Job) -> bool:
        """Mark the Workloads of ended attempts whose pods are gone. True if one still has pods."""
        is_waiting = False
        for n, found in job.workloads.items():
            has_ended = n < job.status.attempt or (n == job.status.attempt and not job.has_open_attempt)
            if not has_ended or workloads.is_true(found, workloads.FINISHED):
                continue
            if self._has_pods(job, n):
                is_waiting = True
                continue
            ended = next((each for each in job.status.attempts if each.n == n), None)
            reason = str(ended.reason or ended.outcome or "") if ended is not None else ""
            message = ended.message if ended is not None else ""
            if not await self._set_condition(found, workloads.FINISHED, reason or "Ended", message):
                is_waiting = True
        return is_waiting

    def _runs(self, job: _Job) -> bool:
        return "Running" in self._phases(job, job.status.attempt)

    def _phases(self, job: _Job, n: int) -> set[object]:
        """Of the driver's pods."""
        pods = self._context.pods.get((job.namespace, job.name, str(n)), {}).values()
        return {(pod.get("status") or {}).get("phase") for pod in pods}

    def _has_pods(self, job: _Job, n: int) -> bool:
        if self._phases(job, n) - {"Succeeded", "Failed"}:
            return True
        cluster = cluster_name(job.name, n)
        found = self._watches.resources.get(Key(COMPUTE_CLUSTER.kind, job.namespace, cluster))
        if found is not None:
            return ownership.has_owner(found, job.uid)
        is_own = job.spec is None or job.spec.cluster is not None
        return is_own and bool(self._watches.pods.objects((job.namespace, cluster)))

    async def _withdraw(self, job: _Job) -> None:
        """Delete the Workload of an attempt that has not begun."""
        for n, found in job.workloads.items():
            if n > job.status.attempt:
                await self._delete(found)

    # Workloads

    def _workloads(self, resource: Object) -> dict[int, Object]:
        """The job's Workloads by attempt. An earlier job of the same name may have left some."""
        metadata = resource["metadata"]
        found = self._found.get((metadata["namespace"], metadata["name"]), {}).values()
        return {
            int(each["metadata"]["labels"][names.ATTEMPT]): each
            for each in found
            if ownership.has_owner(each, metadata["uid"])
            and not each["metadata"].get("deletionTimestamp")
            and str((each["metadata"].get("labels") or {}).get(names.ATTEMPT, "")).isdecimal()  # else not from us
        }

    async def _read(self, job: _Job, n: int) -> Object | None:
        assert self._kind is not None
        found = await if_allowed(self._client.get(self._kind, workload_name(job.name, n), job.namespace))
        return found if found is not None and ownership.has_owner(found, job.uid) else None

    async def _priority(self, resource: Object) -> int | None:
        """The value of the job's class, 0 if it names none; None: the class does not exist, or we may not read it."""
        name = (resource["metadata"].get("labels") or {}).get(PRIORITY)
        if not name:
            return 0
        assert self._kind is not None
        kind = Kind(GROUP, self._kind.version, "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
        found = await if_allowed(self._client.get(kind, str(name)))
        return None if found is None else int(found["value"])

    async def _create(self, job: _Job, n: int, body: Object) -> Object:
        assert self._kind is not None
        try:
            created = await self._client.create({"apiVersion": self._kind.api_version, **body}, self._kind)
        except ApiError as error:
            if not is_conflict(error):
                raise
            found = await self._read(job, n)
            if found is None:
                name = body["metadata"]["name"]
                message = f"Workload {name!r} exists and does not belong to this job."
                raise OarsError(message, "Delete it, or submit the job under another name.") from error
            return found
        self._store(created)
        return created

    async def _delete(self, found: Object) -> None:
        assert self._kind is not None
        metadata = found["metadata"]
        self._forget(found)
        try:
            await self._client.delete(self._kind, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except ApiError as error:
            if not is_conflict(error):  # another object has the name by now
                raise

    async def _set_condition(self, found: Object, kind: str, reason: str, message: str) -> bool:
        """False if Kueue has changed the Workload meanwhile: its watch event causes the next pass."""
        assert self._kind is not None
        metadata, body = found["metadata"], workloads.with_condition(found, kind, reason, message)
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            written = await self._client.patch(self._kind, name, namespace, body, subresource="status")
        except ApiError as error:
            if not is_conflict(error):
                raise
            return False
        self._store(written)
        return True


def _job_of(workload: Object) -> tuple[str, str]:
    metadata = workload["metadata"]
    return str(metadata["namespace"]), str((metadata.get("labels") or {}).get(names.JOB, ""))


def _version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


def queue_of(resource: Object) -> str:
    return str((resource["metadata"].get("labels") or {}).get(LABEL, ""))


def open_queue(status: JobStatus) -> str:
    """The queue that admitted the open attempt; empty: there is none. The job's label may have changed since."""
    return status.last.queue if status.last is not None and status.last.ended is None else ""


def held(request: JobRequest, reason: str, message: str) -> JobRequest:
    return request if request.hold is not None else replace(request, hold=Hold(reason, message))


def desired_cluster(spec: JobSpec, name: str, namespace: str) -> Desired | None:
    """The cluster of an attempt; None: the job uses an existing one. Raises SpecError."""
    if spec.cluster is None:
        return None
    body = resource_spec(name, spec.cluster, namespace)
    return compute_cluster({"metadata": {"name": name, "namespace": namespace, "generation": 1}, "spec": body})


def _is_for(found: Object, queue: str, sets: list[Object], priority: int) -> bool:
    spec = found["spec"]
    is_same = spec.get("queueName") == queue and (spec.get("priority") or 0) == priority
    return bool(is_same and _requested(found) == requested(sets))


def _requested(found: Object) -> str:
    return str((found["metadata"].get("annotations") or {}).get(REQUESTED, ""))


def owner_of(resource: Object) -> Object:
    """The owner reference to a ComputeJob."""
    metadata = resource["metadata"]
    return {
        "apiVersion": COMPUTE_JOB.api_version,
        "kind": COMPUTE_JOB.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
