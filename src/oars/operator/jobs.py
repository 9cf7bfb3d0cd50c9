"""The operator's reconciler of ComputeJobs: one pass of control.jobs for one job.

The status is patched with its resourceVersion: a pass with an old status fails and is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from oars import engines
from oars.base.errors import OarsError, SpecError
from oars.base.log import get_logger, pairs
from oars.client.operator_client import resource_spec
from oars.control.jobs import reconcile_job
from oars.control.runner import NOW
from oars.control.schedule import Template, reconcile_schedule
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict
from oars.kube.informer import Informer
from oars.kube.kinds import JOB, POD, Object
from oars.model import Pause
from oars.operator.driver_logs import DriverLogs
from oars.operator.index import Watches
from oars.operator.job_place import JobContext, KubeJobPlace
from oars.operator.job_runs import KubeRuns
from oars.operator.pod_groups import PodGroups
from oars.operator.queues import LOOK_SECONDS, UNAVAILABLE, Queues, Turn, held, open_queue, queue_of
from oars.operator.resources import Key, compute_cluster
from oars.operator.safe_fields import outside, pod, restricted_fields
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER, COMPUTE_JOB
from oars.places.kube.render.driver import CONTAINER
from oars.places.kube.state import job_codec
from oars.plan.jobs import Hold, JobPolicy, JobRequest, policy_of, with_failed_pass
from oars.plan.schedule import is_template, refused_edit
from oars.spec.job import JobSpec
from oars.spec.job_status import JobStatus
from oars.spec.load_job import build_job, check_on_kubernetes, check_schedule_name

STANDBY_SECONDS = 1.0
LIMITED_ABOVE = 0.9  # seconds: longer pauses are polls, which the rate limiter may delay
NOT_TRUSTED = (
    "jobs may not set these fields unless the operator trusts all authors; create the cluster yourself and use "
    "cluster.name"
)

log = get_logger(__name__)

Wake = Callable[[Key, Pause], None]


class JobReconciler:
    """Reconciles all ComputeJobs of the operator (see control.runner.Reconciler)."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        watches: Watches,
        wake: Wake,
        *,
        trust_authors: bool = False,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._clusters = watches
        self._wake = wake
        self._trust_authors = trust_authors
        self._is_leader = is_leader
        self.resources: dict[Key, Object] = {}
        self.context = JobContext(client, DriverLogs(client), watches.resources)
        self._users: dict[tuple[str, str], set[Key]] = {}  # namespace and name of an existing cluster → its jobs
        self._specs: dict[Key, tuple[tuple[str, int], JobSpec]] = {}  # uid and generation, and what they contain
        self._written: dict[Key, Object] = {}  # as the last write returned it: watches lag behind
        self.informers: list[Informer] = []
        self.queues = Queues(client, namespaces, watches, self.context, wake)
        self._pod_groups = PodGroups(client)
        watches.on_resource = self._on_cluster
        for namespace in namespaces or (None,):
            self.informers += [
                Informer(client, COMPUTE_JOB, namespace, on_change=self._on_job),
                Informer(client, JOB, namespace, labels=names.JOB, on_change=self._on_driver),
                Informer(client, POD, namespace, labels=names.JOB, on_change=self._on_pod),
            ]

    # watches

    def _on_job(self, _: object, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        key = Key(COMPUTE_JOB.kind, str(metadata["namespace"]), str(metadata["name"]))
        used = key.namespace, str(_existing_cluster((new or old or {})["spec"]))
        if new is None:
            self.resources.pop(key, None)
            self._written.pop(key, None)
            self._specs.pop(key, None)
            self.context.logs.forget(str(metadata["uid"]))
            self._pod_groups.forget(str(metadata["uid"]))
            self._users.get(used, set()).discard(key)
        else:
            self.resources[key] = new
            self._users.setdefault(used, set()).add(key)
        if old is None or new is None or _version(old) != _version(new):
            self._wake(key, NOW)
        schedule = (metadata.get("labels") or {}).get(names.SCHEDULE)
        if schedule and (old is None or new is None or _state(old) != _state(new)):
            self._wake(Key(COMPUTE_JOB.kind, key.namespace, str(schedule)), NOW)

    def _on_driver(self, _: object, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        where = str(metadata["namespace"]), str(metadata["name"])
        if new is None:
            self.context.drivers.pop(where, None)
        else:
            self.context.drivers[where] = new
        self._wake_job(metadata)

    def _on_pod(self, _: object, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        labels = metadata.get("labels") or {}
        where = str(metadata["namespace"]), str(labels.get(names.JOB, "")), str(labels.get(names.ATTEMPT, ""))
        if new is None:
            self.context.pods.get(where, {}).pop(metadata["name"], None)
            if not self.context.pods.get(where):
                self.context.pods.pop(where, None)
        else:
            self.context.pods.setdefault(where, {})[metadata["name"]] = new
        self._wake_job(metadata)

    def _on_cluster(self, resource: Object) -> None:
        metadata = resource["metadata"]
        self._wake_job(metadata)
        for key in self._users.get((str(metadata["namespace"]), str(metadata["name"])), ()):
            self._wake(key, NOW)

    def _wake_job(self, metadata: Object) -> None:
        job = (metadata.get("labels") or {}).get(names.JOB)
        key = Key(COMPUTE_JOB.kind, str(metadata["namespace"]), str(job))
        if job and key in self.resources:
            self._wake(key, NOW)

    # passes

    async def reconcile(self, key: Key) -> Pause | None:
        if not self._is_leader():
            return Pause(STANDBY_SECONDS)
        if not all(informer.synced.is_set() for informer in self.informers):
            return Pause(STANDBY_SECONDS)  # a driver that is not known yet would count as lost
        resource = self.newest(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            return None  # Kubernetes deletes the owned objects
        stored = resource.get("status")
        status = job_codec.load_status(stored)
        if (queue_of(resource) or open_queue(status)) and not self.queues.is_known:
            return Pause(STANDBY_SECONDS)  # an attempt whose Workload is not known yet would count as evicted
        spec, hold = None, None
        try:
            spec = self._valid_spec(key, resource)
            policy = policy_of(spec)
        except SpecError as error:  # what runs continues as the last valid spec says, until this one is corrected
            hold = Hold("InvalidSpec", f"{error.message} {error.hint}".strip())
            policy = job_codec.load_policy(stored)
        has_schedule = resource["spec"].get("schedule") is not None
        hold = hold or refused_edit(status, has_schedule=has_schedule)
        if not status.engine and spec is not None:
            status = _with_cluster(status, spec, self._clusters, key)
        annotations = resource["metadata"].get("annotations") or {}
        request = JobRequest(
            cancel=names.CANCEL in annotations, suspend=resource["spec"].get("suspend") is True, hold=hold
        )
        working = dict(resource)

        async def write(changed: JobStatus) -> None:
            await self.write_status(key, working, changed, policy)

        if is_template(status, has_schedule=has_schedule):
            created = datetime.fromisoformat(resource["metadata"]["creationTimestamp"]).timestamp()
            schedule = spec.schedule if spec is not None else None
            template = Template(
                key.name, schedule, created, is_suspended=request.suspend, is_cancelled=request.cancel, hold=hold
            )
            runs = KubeRuns(self._client, self.resources, resource, write)
            status, pause = await reconcile_schedule(template, status, runs, time.time)
            if not status.state.is_final:
                return None if pause is None else Pause(pause)
        turn = await self._turn(resource, spec, status, request)
        place = KubeJobPlace(self.context, resource, turn.spec, policy, write)
        status, pause = await reconcile_job(key.name, policy, turn.request, status, place, time.time)
        await place.collect(status)
        pause = min((each for each in (pause, turn.pause) if each is not None), default=None)
        return None if pause is None else Pause(pause, limited=pause > LIMITED_ABOVE)

    async def _turn(self, resource: Object, spec: JobSpec | None, status: JobStatus, request: JobRequest) -> Turn:
        """What the queues make of the pass. While their API fails nothing is created, and what runs continues."""
        try:
            turn = await self.queues.review(resource, spec, status, request)
            return await self._pod_groups.review(resource, status, turn)
        except OarsError as error:
            message = f"The queue of the job does not work: {error.message} {error.hint}".strip()
            log.warning(pairs("queue failed", job=resource["metadata"]["name"], error=error.message))
            return Turn(spec, held(request, UNAVAILABLE, message), LOOK_SECONDS)

    async def report_failure(self, key: Key, error: Exception) -> None:
        """Show the error in the status. A conflict means only that the status was not the newest."""
        if isinstance(error, ApiError) and is_conflict(error):
            self._written.pop(key, None)
            return
        resource = self.newest(key)
        if resource is None or resource["metadata"].get("deletionTimestamp") or not self._is_leader():
            return
        status = job_codec.load_status(resource.get("status"))
        failed = with_failed_pass(status, error, "the operator's log")
        if failed != status:
            await self.write_status(key, dict(resource), failed, job_codec.load_policy(resource.get("status")))

    def newest(self, key: Key) -> Object | None:
        """The resource as watched, or as the last own write returned it, if that is newer."""
        found, written = self.resources.get(key), self._written.get(key)
        if found is None or written is None or found["metadata"]["uid"] != written["metadata"]["uid"]:
            return found
        return max(found, written, key=lambda each: int(each["metadata"]["resourceVersion"]))

    async def write_status(self, key: Key, resource: Object, status: JobStatus, policy: JobPolicy) -> None:
        metadata = resource["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": job_codec.dump_status(status, metadata["generation"], policy),
        }
        written = await self._client.patch(COMPUTE_JOB, key.name, key.namespace, body, subresource="status")
        self._written[key] = written
        resource.clear()
        resource.update(written)

    def _valid_spec(self, key: Key, resource: Object) -> JobSpec:
        """Raises SpecError. A spec is checked once: that takes longer than the rest of a pass."""
        version = resource["metadata"]["uid"], resource["metadata"]["generation"]
        checked, spec = self._specs.get(key, (None, None))
        if spec is None or checked != version:
            spec = self._spec(resource)
            self._specs[key] = version, spec
        return spec

    def _spec(self, resource: Object) -> JobSpec:
        data = dict(resource["spec"])
        cluster = data.get("cluster")
        if isinstance(cluster, dict) and "name" not in cluster:
            data["cluster"] = {**cluster, "place": "kubernetes"}
        spec = build_job(data, option_model=engines.option_model).spec
        check_on_kubernetes(spec)
        check_schedule_name(resource["metadata"]["name"], spec)
        if spec.cluster is not None:  # raises SpecError for what the cluster's own reconciler would reject
            metadata = {"name": resource["metadata"]["name"], "namespace": resource["metadata"]["namespace"]}
            body = resource_spec(metadata["name"], spec.cluster, metadata["namespace"])
            compute_cluster({"metadata": {**metadata, "generation": 1}, "spec": body})
        if not self._trust_authors and (found := _restricted(spec)):
            raise SpecError(f"{', '.join(found)}: {NOT_TRUSTED}.")
        return spec

    async def close(self) -> None:
        await self.context.logs.close()
        self._written.clear()


def _version(resource: Object) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return tuple(metadata.get(field) for field in ("uid", "generation", "annotations", "labels", "deletionTimestamp"))


def _state(resource: Object) -> object:
    return (resource.get("status") or {}).get("state")


def _restricted(spec: JobSpec) -> list[str]:
    """Fields that give an author more than the right to create jobs."""
    found = list(outside(pod(CONTAINER), dict(spec.driver.pod), "driver.pod"))
    found += ["secrets"] if spec.secrets else []
    found += ["priorityClass"] if spec.priority_class else []
    if spec.cluster is not None:
        dumped = resource_spec("job", spec.cluster, "")
        found += [f"cluster.{field}" for fields in restricted_fields(dumped).values() for field in fields]
    return found


def _existing_cluster(spec: Object) -> object:
    cluster = spec.get("cluster")
    return cluster.get("name") if isinstance(cluster, dict) else None


def _with_cluster(status: JobStatus, spec: JobSpec, clusters: Watches, key: Key) -> JobStatus:
    """The first status: the engine, and the name of an existing cluster."""
    if spec.cluster is not None:
        return replace(status, engine=spec.cluster.engine)
    name = spec.cluster_name or ""
    found = clusters.resources.get(Key(COMPUTE_CLUSTER.kind, key.namespace, name))
    engine = str(found["spec"].get("engine", "")) if found is not None else ""
    return replace(status, cluster=name, engine=engine)
