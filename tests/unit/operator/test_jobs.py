"""What the operator reads from a driver's pod, and passes that fail."""

from __future__ import annotations

import asyncio
import gzip
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.index import Watches
from oars.operator.job_place import JobContext, KubeJobPlace, with_priority
from oars.operator.jobs import JobReconciler, _restricted
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.state import job_codec
from oars.places.kube.state.drivers import see_pod
from oars.places.kube.state.job_log import LOG_BYTES, packed_end
from oars.plan.jobs import ClusterState, DriverState, JobPolicy, policy_of
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome, ScheduleStatus

KEY = Key("ComputeJob", "team", "train")


def pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "driver", "state": state}] if state is not None else []
    return {"metadata": {}, "status": {"phase": phase, "containerStatuses": containers, **status}}


def terminated(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:00:00Z"}}


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "message": "the node is drained"}]


@pytest.mark.parametrize(
    ("found", "state", "code", "reason"),
    [
        (pod("Pending"), DriverState.STARTING, None, ""),
        (pod("Pending", {"waiting": {"reason": "ErrImagePull"}}), DriverState.STARTING, None, ""),
        (pod("Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}), DriverState.RUNNING, None, ""),
        (pod("Succeeded", terminated(0)), DriverState.ENDED, 0, ""),
        (pod("Failed", terminated(3)), DriverState.ENDED, 3, ""),
        (pod("Failed", terminated(137, "OOMKilled")), DriverState.ENDED, 137, "OutOfMemory"),
        (pod("Failed", terminated(143), conditions=DISRUPTED), DriverState.LOST, None, "Evicted"),
        (pod("Succeeded", terminated(0), conditions=DISRUPTED), DriverState.ENDED, 0, ""),
        (pod("Failed", reason="Evicted", message="disk"), DriverState.LOST, None, "Evicted"),
        (pod("Failed"), DriverState.LOST, None, ""),
    ],
)
def test_pod_decides(found: dict[str, Any], state: DriverState, code: int | None, reason: str) -> None:
    seen = see_pod(found, 0.0)
    assert (seen.state, seen.exit_code, seen.reason) == (state, code, reason)


def test_message_says_what_the_driver_waits_for() -> None:
    assert "ErrImagePull" in see_pod(pod("Pending", {"waiting": {"reason": "ErrImagePull"}}), 0.0).message
    conditions = [{"type": "PodScheduled", "reason": "Unschedulable", "message": "no node has enough cpu"}]
    assert "no node has enough cpu" in see_pod(pod("Pending", conditions=conditions), 0.0).message


def test_kept_log_fits_into_a_config_map_and_is_the_end() -> None:
    text = random.Random(1).randbytes(3 * 2**20)
    packed = packed_end(text, 8 * 2**20)
    assert len(packed) <= LOG_BYTES
    note, _, end = gzip.decompress(packed).partition(b"\n")
    assert b"the beginning is not kept: logs.keep is 8 MiB" in note
    assert text.endswith(end)


def test_kept_log_that_is_complete_has_no_note() -> None:
    assert gzip.decompress(packed_end(b"one\ntwo\n", 8)) == b"one\ntwo\n"
    assert gzip.decompress(packed_end(b"one\ntwo\n", 7)).endswith(b"compressed)\ntwo\n"), "whole lines"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({"secrets": [{"name": "s", "key": "k", "as": "S"}]}, ["secrets"]),
        ({"driver": {"pod": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}, []),
        ({"driver": {"pod": {"spec": {"hostNetwork": True}}}}, ["driver.pod.spec.hostNetwork"]),
        ({"priorityClass": "high"}, ["priorityClass"]),
        ({"cluster": {"engine": "dask", "head": {"pod": {"spec": {"hostNetwork": True}}}}}, ["cluster"]),
    ],
)
def test_fields_that_need_a_trusted_author(fields: dict[str, Any], found: list[str]) -> None:
    spec = JobSpec.model_validate({"cluster": {"engine": "dask"}, "entrypoint": ["x"], **fields})
    assert [each.partition(".head")[0] for each in _restricted(spec)] == found


class World:
    """A job on an existing cluster that is gone, and the statuses written to it. `error`: of reads."""

    def __init__(self, status: JobStatus, **fields: Any) -> None:
        self.error: ApiError | None = None
        self.failing = ""  # the kind whose reads fail; empty: all
        self.statuses: list[JobStatus] = []
        self.cancelled: list[str] = []  # runs
        metadata = {"name": "train", "namespace": "team", "uid": "u", "generation": 1, "resourceVersion": "1"}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        spec = {"cluster": {"name": "demo"}, "entrypoint": ["x"], **fields}
        self._resource: Object = {
            "metadata": metadata,
            "spec": spec,
            "status": job_codec.dump_status(status, 1, JobPolicy()),
        }
        watches = cast(Watches, SimpleNamespace(resources={}))
        self.reconciler = JobReconciler(cast(Client, self), (), watches, lambda key, pause: None)
        self.reconciler.resources[KEY] = self._resource
        for informer in self.reconciler.informers:
            informer.synced.set()

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if self.error is not None and self.failing in ("", kind.plural):
            raise self.error
        return {"metadata": {"name": name, "uid": "run", "ownerReferences": [{"uid": "u"}]}}

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str = "") -> Object:
        if not subresource:
            self.cancelled.append(name)
            assert body == {"metadata": {"uid": "run", "annotations": {names.CANCEL: "requested"}}}
            return {}
        assert body["metadata"]["resourceVersion"] == self._resource["metadata"]["resourceVersion"]
        self.statuses.append(job_codec.load_status(body["status"]))
        metadata = {**self._resource["metadata"], "resourceVersion": str(len(self.statuses) + 1)}
        self._resource = {**self._resource, "metadata": metadata, "status": body["status"]}
        return self._resource

    async def failed_pass(self) -> None:
        """What the runner does with a pass that raises."""
        with pytest.raises(ApiError) as raised:
            await self.reconciler.reconcile(KEY)
        await self.reconciler.report_failure(KEY, raised.value)


def test_pass_after_the_end_removes_nothing_that_is_being_deleted() -> None:
    attempt = Attempt(1, "train-1", 0.0, ended=1.0, outcome=Outcome.FAILED)
    status = JobStatus(JobState.FAILED, engine="dask", cluster="train-1", attempt=1, attempts=(attempt,), ended=1.0)
    world = World(status, cluster={"engine": "dask"}, cleanup={"policy": "all"})
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [{"uid": "u"}]}
    driver = {**pod("Failed", terminated(1)), "metadata": {"name": "p", "creationTimestamp": "", **leaving}}
    world.reconciler.context.pods["team", "train", "1"] = {"p": driver}
    cluster = {"metadata": {"name": "train-1", "generation": 1, **leaving}}
    cast(dict[Key, Object], world.reconciler.context.clusters)[Key("ComputeCluster", "team", "train-1")] = cluster
    assert asyncio.run(world.reconciler.reconcile(KEY)) is None


def test_failed_pass_is_reported_once_and_the_next_one_gives_the_verdict() -> None:
    running = JobStatus(JobState.RUNNING, engine="toy", cluster="demo", attempt=1, attempts=(Attempt(1, "demo", 0.0),))
    world = World(running)
    metadata = {"name": "p", "creationTimestamp": ""}
    world.reconciler.context.pods["team", "train", "1"] = {
        "p": {**pod("Succeeded", terminated(0)), "metadata": metadata}
    }

    async def passes() -> None:
        world.error = ApiError(409, {})
        await world.failed_pass()
        assert not world.statuses  # the status was not the newest
        world.error = ApiError(500, {"message": "etcd is away."})
        for _ in range(3):
            await world.failed_pass()
        (shown,) = world.statuses
        assert (shown.state, shown.reason, shown.attempts) == (JobState.RUNNING, "PassFailed", running.attempts)
        assert shown.message.startswith("Could not reconcile the job: etcd is away. Oars retries.")
        world.error = None
        await world.reconciler.reconcile(KEY)
        verdict = world.statuses[-1]
        assert (verdict.state, verdict.reason, verdict.message) == (JobState.SUCCEEDED, "", "")
        await world.reconciler.report_failure(KEY, OSError("no space"))
        assert world.statuses[-1] == verdict

    asyncio.run(passes())


def test_verdict_of_a_job_whose_cluster_was_never_found_stays() -> None:
    verdict = JobStatus(JobState.FAILED, "ClusterFailed", cluster="demo", attempt=1, ended=1.0)
    world = World(verdict)
    assert asyncio.run(world.reconciler.reconcile(KEY)) is None
    assert not world.statuses


@pytest.mark.parametrize("has_ended", [True, False])
def test_job_that_was_admitted_is_reconciled_while_the_api_of_kueue_fails(has_ended: bool) -> None:
    attempt = Attempt(1, "demo", time.time(), queue="team-a")
    world = World(JobStatus(JobState.STARTING, engine="toy", cluster="demo", attempt=1, attempts=(attempt,)))
    queues = world.reconciler.queues
    queues._kind, queues._informers = (
        Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload"),
        [world.reconciler.informers[0]],
    )
    if has_ended:
        metadata = {"name": "p", "creationTimestamp": ""}
        driver = {**pod("Succeeded", terminated(0)), "metadata": metadata}
        world.reconciler.context.pods["team", "train", "1"] = {"p": driver}
    world.error, world.failing = ApiError(500, {"message": "no endpoints for the webhook."}), "workloads"
    pause = asyncio.run(world.reconciler.reconcile(KEY))
    shown = world.statuses[-1]
    if has_ended:
        assert (shown.state, shown.exit_code) == (JobState.SUCCEEDED, 0)
    else:
        assert pause is not None
        assert (shown.state, shown.reason) == (JobState.STARTING, "QueueUnavailable"), "nothing is created"
        assert "no endpoints for the webhook." in shown.message


YEARLY = {"cron": "0 0 1 1 *"}


def test_schedule_that_is_added_to_a_running_job_does_not_abandon_its_attempt() -> None:
    running = JobStatus(JobState.RUNNING, engine="toy", cluster="demo", attempt=1, attempts=(Attempt(1, "demo", 0.0),))
    world = World(running, schedule=YEARLY)
    metadata = {"name": "p", "creationTimestamp": ""}
    world.reconciler.context.pods["team", "train", "1"] = {
        "p": {**pod("Succeeded", terminated(0)), "metadata": metadata}
    }
    asyncio.run(world.reconciler.reconcile(KEY))
    assert (world.statuses[-1].state, world.statuses[-1].exit_code) == (JobState.SUCCEEDED, 0)


SCHEDULED = JobStatus(engine="toy", schedule=ScheduleStatus(since=1e12, cron="0 0 1 1 * UTC", starting="train-9"))


@pytest.mark.parametrize("fields", [{}, {"schedule": {"cron": "wrong"}}, {"schedule": YEARLY, "retries": -1}])
def test_schedule_with_an_invalid_spec_starts_nothing_and_can_be_cancelled(fields: dict[str, Any]) -> None:
    world = World(SCHEDULED, **fields)
    asyncio.run(world.reconciler.reconcile(KEY))
    shown = world.statuses[-1]
    assert (shown.state, shown.reason, shown.attempt) == (JobState.QUEUED, "InvalidSpec", 0)
    world.reconciler.resources[KEY]["metadata"]["annotations"] = {names.CANCEL: "requested"}
    world.reconciler._written[KEY]["metadata"]["annotations"] = {names.CANCEL: "requested"}
    asyncio.run(world.reconciler.reconcile(KEY))
    assert (world.statuses[-1].state, world.cancelled) == (JobState.CANCELLED, ["train-9"])


def test_priority_class_is_that_of_all_pods_that_name_none() -> None:
    own = {"spec": {"priorityClassName": "low", "nodeSelector": {"a": "b"}}}
    cluster = {"engine": "dask", "workers": [{"name": "one"}, {"name": "two", "pod": own}]}
    spec = JobSpec.model_validate({"cluster": cluster, "entrypoint": ["x"], "priorityClass": "high"})
    made = with_priority(spec)
    assert made.head.pod == made.workers[0].pod == {"spec": {"priorityClassName": "high"}}
    assert made.workers[1].pod == own
    assert with_priority(spec.model_copy(update={"priority_class": None})) == spec.cluster


@pytest.mark.parametrize(
    ("min_ready", "status", "state"),
    [
        (None, {"phase": "Ready", "ready": "3/3", "headReady": True}, ClusterState.READY),
        (None, {"phase": "Starting", "ready": "2/3", "headReady": True}, ClusterState.STARTING),
        (2, {"phase": "Starting", "ready": "2/3", "headReady": True}, ClusterState.READY),
        (2, {"phase": "Starting", "ready": "1/3", "headReady": True}, ClusterState.STARTING),
        (0, {"phase": "Starting", "ready": "0/3", "headReady": True}, ClusterState.READY),
        (0, {"phase": "Starting", "ready": "0/3", "headReady": False}, ClusterState.STARTING),
        (0, {"phase": "Pending"}, ClusterState.STARTING),
    ],
)
def test_driver_starts_when_as_many_workers_are_ready_as_the_spec_says(
    min_ready: int | None, status: Object, state: ClusterState
) -> None:
    spec = JobSpec.model_validate(
        {"entrypoint": ["true"], "cluster": {"engine": "dask", "replicas": 3, "minReady": min_ready}}
    )
    owner = {"kind": "ComputeJob", "uid": "u", "name": "train", "controller": True}
    metadata = {"name": "train-1", "namespace": "team", "generation": 1, "ownerReferences": [owner]}
    cluster = {"metadata": metadata, "status": {**status, "observedGeneration": 1}}
    context = JobContext(cast(Client, None), cast(Any, None), {Key("ComputeCluster", "team", "train-1"): cluster})
    job = {"metadata": {"name": "train", "namespace": "team", "uid": "u"}}
    place = KubeJobPlace(context, job, spec, policy_of(spec), cast(Any, None))
    seen = asyncio.run(place.observe(JobStatus(attempt=1, attempts=(Attempt(1, "train-1", 0.0),))))
    assert seen.cluster.state is state
