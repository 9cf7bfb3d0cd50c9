"""Jobs in a queue: what the operator makes of the answers of Kueue."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.index import Watches
from oars.operator.job_place import JobContext
from oars.operator.queues import LABEL, PRIORITY, Queues, Turn, open_queue
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.render.workload import Placement, placed, pod_sets
from oars.places.kube.state import job_codec, workloads
from oars.plan.jobs import (
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
    JobRequest,
    JobSeen,
    JobStep,
    decide_job,
    policy_of,
)
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome
from tests.simulation.api_server import merged

SPEC = {"cluster": {"engine": "dask", "workers": [{"replicas": 2}]}, "entrypoint": ["python", "train.py"]}


class Api:
    """An API server that keeps objects by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.version = 0
        self.asked = 0  # how many objects were read

    def _stored(self, plural: str, name: str, obj: Object) -> Object:
        self.version += 1
        self.objects[plural, name] = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        return self.objects[plural, name]

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        self.asked += 1
        if (kind.plural, name) not in self.objects:
            raise ApiError(404, {"reason": "NotFound"})
        return self.objects[kind.plural, name]

    async def create(self, obj: Object, kind: Kind) -> Object:
        name = obj["metadata"]["name"]
        if (kind.plural, name) in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        metadata = {**obj["metadata"], "uid": f"uid-{self.version}", "generation": 1}
        return self._stored(kind.plural, name, {**obj, "metadata": metadata})

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str = "") -> Object:
        found = self.objects[kind.plural, name]
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiError(409, {"reason": "Conflict"})
        return self._stored(kind.plural, name, merged(found, body))

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str) -> bool:
        return self.objects.pop((kind.plural, name), None) is not None

    # as Kueue

    def answer(self, queues: Queues, name: str, *conditions: tuple[str, str, str], **status: Any) -> None:
        found = self.objects["workloads", name]
        present = (found.get("status") or {}).get("conditions") or ()
        known = {each["type"]: each for each in present}
        known |= {kind: {"type": kind, "status": state, "message": message} for kind, state, message in conditions}
        changed = {**(found.get("status") or {}), **status, "conditions": list(known.values())}
        queues._store(self._stored("workloads", name, {**found, "status": changed}))

    def admit(self, queues: Queues, name: str) -> None:
        sets = self.objects["workloads", name]["spec"]["podSets"]
        assigned = [{"name": each["name"], "flavors": {"cpu": "spot", "memory": "spot"}} for each in sets]
        conditions = [("QuotaReserved", "True", ""), ("Admitted", "True", "")]
        self.answer(queues, name, *conditions, admission={"podSetAssignments": assigned})


class World:
    """One job in queue team-a, without its driver and its clusters."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pods: dict[tuple[str, str], list[Object]] = {}
        self.resources: dict[Key, Object] = {}
        pods = SimpleNamespace(objects=lambda cluster: self.pods.get(cluster, []))
        watches = cast(Watches, SimpleNamespace(resources=self.resources, pods=pods))
        client = cast(Client, api)
        self.context = JobContext(client, cast(Any, None), self.resources)
        self.queues = Queues(client, (), watches, self.context, lambda key, pause: None)
        self.queues._kind = Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
        self.labels = {LABEL: "team-a"}
        self.spec = JobSpec.model_validate(SPEC)
        self.status = JobStatus(engine="dask")
        self.request = JobRequest()

    def review(self) -> Turn:
        metadata = {"name": "train", "namespace": "team", "uid": "job-uid", "labels": self.labels}
        return asyncio.run(self.queues.review({"metadata": metadata}, self.spec, self.status, self.request))

    def hold(self) -> tuple[str, str]:
        hold = self.review().request.hold
        return (hold.reason, hold.message) if hold is not None else ("", "")

    def workloads(self) -> list[str]:
        return sorted(name for kind, name in self.api.objects if kind == "workloads")

    def condition(self, name: str, kind: str) -> str:
        return str(workloads.condition(self.api.objects["workloads", name], kind).get("status", ""))


@pytest.fixture
def world() -> World:
    api = Api()
    spec = {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    api._stored("resourceflavors", "spot", {"metadata": {"name": "spot"}, "spec": spec})
    return World(api)


RUNNING = JobStatus(
    engine="dask",
    state=JobState.RUNNING,
    attempt=1,
    attempts=(Attempt(1, "train-1", 0.0, started=1.0, queue="team-a"),),
)
SEEN = JobSeen(ClusterSeen(ClusterState.READY), DriverSeen(DriverState.RUNNING))


def ended(outcome: Outcome, state: JobState, **more: Any) -> JobStatus:
    attempt = Attempt(1, "train-1", 0.0, started=1.0, ended=2.0, outcome=outcome)
    return JobStatus(state=state, attempt=1, attempts=(attempt,), **more)


def test_job_waits_until_it_is_admitted_and_takes_the_nodes_of_its_flavors(world: World) -> None:
    assert world.hold()[0] == "QueueWaiting"
    sets = world.api.objects["workloads", "train-1"]["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in sets] == [("driver", 1), ("head", 1), ("workers-default", 2)]
    world.api.answer(world.queues, "train-1", ("QuotaReserved", "False", "There is not enough cpu."))
    assert world.hold() == ("QueueWaiting", "Workload train-1 waits in queue team-a. There is not enough cpu.")
    world.api.answer(
        world.queues, "train-1", ("QuotaReserved", "True", ""), admissionChecks=[{"name": "nodes", "state": "Pending"}]
    )
    assert "nodes" in world.hold()[1]
    world.api.admit(world.queues, "train-1")
    turn = world.review()
    assert turn.request.hold is None
    assert turn.spec is not None and turn.spec.cluster is not None
    for pod in (turn.spec.driver.pod, turn.spec.cluster.head.pod, turn.spec.cluster.workers[0].pod):
        assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
        assert [each["key"] for each in pod["spec"]["tolerations"]] == ["spot"]


def test_flavor_that_cannot_be_read_holds_the_job(world: World) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    del world.api.objects["resourceflavors", "spot"]
    assert world.hold()[0] == "QueueUnavailable"


@pytest.mark.parametrize(
    ("conditions", "part"),
    [
        ([("Evicted", "True", "Another team needs it.")], "Another team needs it."),
        ([("QuotaReserved", "False", "")], "lost its quota"),
        ([("Finished", "True", "")], "is finished"),
    ],
)
def test_lost_admission_stops_the_attempt(world: World, conditions: list[tuple[str, str, str]], part: str) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    world.status = RUNNING
    assert world.review().request.evicted == ""
    world.api.answer(world.queues, "train-1", *conditions)
    assert part in world.review().request.evicted


def test_running_driver_is_reported_to_kueue_in_the_same_pass(world: World) -> None:
    """No pass may follow: the job's own status does not wake it."""
    world.review()
    world.api.admit(world.queues, "train-1")
    assert RUNNING.last is not None
    world.status = replace(RUNNING, state=JobState.STARTING, attempts=(replace(RUNNING.last, started=None),))
    for phase, expected in (("Pending", ""), ("Running", "True")):
        world.context.pods["team", "train", "1"] = {"train-1-x": {"status": {"phase": phase}}}
        assert world.review().request.evicted == ""
        assert world.condition("train-1", "PodsReady") == expected


def test_deleted_workload_stops_the_attempt_and_a_stale_cache_does_not(world: World) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    world.status = RUNNING
    world.queues._found.clear()  # as after a restart of the operator, before the watch has it
    assert world.review().request.evicted == ""
    gone = world.api.objects.pop(("workloads", "train-1"))
    world.queues._on_workload(("team", "train-1"), gone, None)
    assert "deleted" in world.review().request.evicted


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
@pytest.mark.parametrize("has_kueue", [True, False])
def test_label_that_is_added_to_a_job_that_runs_changes_nothing(world: World, state: JobState, has_kueue: bool) -> None:
    attempt = Attempt(1, "train-1", 0.0, started=1.0 if state is JobState.RUNNING else None)
    world.status = JobStatus(engine="dask", state=state, attempt=1, attempts=(attempt,))
    if not has_kueue:
        world.queues._kind = None
    turn = world.review()
    assert turn == Turn(world.spec, JobRequest())
    decision = decide_job("train", policy_of(world.spec), turn.request, world.status, SEEN, 2.0)
    assert not decision.steps and decision.status.state is JobState.RUNNING
    world.status = ended(Outcome.FAILED, JobState.RETRYING)
    world.queues._kind = Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
    assert world.hold()[0] == "QueueWaiting"
    assert world.workloads() == ["train-2"], "the next attempt is queued"


def test_attempt_that_was_admitted_stays_in_its_queue_without_the_label(world: World) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    admitted = world.review()
    assert admitted.request.queue == "team-a"
    decision = decide_job("train", policy_of(world.spec), admitted.request, world.status, JobSeen(), 2.0)
    world.status = job_codec.load_status(job_codec.dump_status(decision.status, 1, policy_of(world.spec)))
    assert world.status.state is JobState.STARTING and open_queue(world.status) == "team-a"
    world.labels = {}
    turn = world.review()
    assert turn.spec == admitted.spec and turn.spec != world.spec, "its pods keep their nodes"
    world.api.answer(world.queues, "train-1", ("Evicted", "True", "Another team needs it."))
    assert "Another team needs it." in world.review().request.evicted


def test_attempt_of_an_older_version_is_still_evicted(world: World) -> None:
    """Its record does not name the queue."""
    world.review()
    world.api.admit(world.queues, "train-1")
    assert RUNNING.last is not None
    world.status = replace(RUNNING, attempts=(replace(RUNNING.last, queue=""),))
    assert world.review().request.evicted == ""
    world.api.answer(world.queues, "train-1", ("Evicted", "True", "Another team needs it."))
    assert "Another team needs it." in world.review().request.evicted


@pytest.mark.parametrize("has_driver", [True, False])
def test_spec_that_changes_after_the_admission_returns_the_job_to_its_queue(world: World, has_driver: bool) -> None:
    """Unless its driver exists: the attempt runs with what was admitted."""
    world.review()
    world.api.admit(world.queues, "train-1")
    decision = decide_job("train", policy_of(world.spec), world.review().request, world.status, JobSeen(), 2.0)
    world.status = decision.status
    assert world.review().request.evicted == ""
    world.spec = JobSpec.model_validate({**SPEC, "driver": {"cpu": 4}})
    if has_driver:
        world.context.drivers["team", "train-1"] = {"metadata": {"name": "train-1"}}
        assert world.review().request.evicted == ""
        return
    turn = world.review()
    assert "request of the job has changed" in turn.request.evicted
    starting = JobSeen(ClusterSeen(ClusterState.READY))
    decision = decide_job("train", policy_of(world.spec), turn.request, world.status, starting, 3.0)
    assert decision.steps == (JobStep.STOP_DRIVER,)
    closed = JobSeen(ClusterSeen(), DriverSeen(DriverState.CLOSED))
    decision = decide_job("train", policy_of(world.spec), turn.request, decision.status, closed, 4.0)
    world.status = decision.status
    assert world.hold()[0] == "QueueWaiting"
    assert world.workloads() == ["train-1", "train-2"], "the next attempt requests what the spec says now"


@pytest.mark.parametrize("attempt", [None, "first"])
def test_workload_of_the_job_that_is_no_attempt_is_skipped(world: World, attempt: str | None) -> None:
    world.review()
    found = copy.deepcopy(world.api.objects["workloads", "train-1"])
    found["metadata"] |= {"name": "other", "labels": {**found["metadata"]["labels"], names.ATTEMPT: attempt}}
    if attempt is None:
        del found["metadata"]["labels"][names.ATTEMPT]
    world.queues._store(found)
    assert world.hold()[0] == "QueueWaiting"


def test_quota_is_kept_until_the_last_pod_is_gone(world: World) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    world.status = ended(Outcome.STOPPED, JobState.RUNNING)
    world.pods["team", "train-1"] = [{"metadata": {"name": "train-1-worker"}}]
    turn = world.review()
    assert turn.pause is not None and turn.request.hold is not None
    assert (world.workloads(), world.condition("train-1", "Finished")) == (["train-1"], "")
    world.pods.clear()
    world.context.pods["team", "train", "1"] = {"driver": {"status": {"phase": "Running"}}}
    world.review()
    assert world.workloads() == ["train-1"]
    world.context.pods["team", "train", "1"]["driver"]["status"]["phase"] = "Failed"
    world.review()
    assert (world.workloads(), world.condition("train-1", "Finished")) == (["train-1", "train-2"], "True")


def test_retry_joins_the_queue_after_its_backoff(world: World) -> None:
    world.review()
    world.api.admit(world.queues, "train-1")
    world.status = ended(Outcome.FAILED, JobState.RETRYING, retry_at=4e9)
    turn = world.review()
    assert turn.pause is not None and turn.request.hold is not None, "the next attempt cannot begin without a Workload"
    assert world.workloads() == ["train-1"]


@pytest.mark.parametrize("request_", [JobRequest(suspend=True), JobRequest(cancel=True)])
def test_suspended_or_cancelled_job_leaves_the_queue(world: World, request_: JobRequest) -> None:
    world.review()
    world.request = request_
    assert world.review().request == request_
    assert world.workloads() == []


def test_job_whose_label_is_removed_leaves_the_queue_and_starts(world: World) -> None:
    world.review()
    world.labels = {}
    assert world.review().request.hold is None
    assert world.workloads() == []


def test_changed_request_or_queue_gets_another_workload(world: World) -> None:
    world.review()
    world.spec = JobSpec.model_validate({**SPEC, "driver": {"cpu": 4}})
    world.review()
    world.review()
    assert world.api.objects["workloads", "train-1"]["spec"]["podSets"][0]["template"]["spec"]["containers"][0][
        "resources"
    ]["requests"] == {"cpu": "4.0"}
    world.labels = {LABEL: "team-b"}
    world.review()
    world.review()
    assert world.api.objects["workloads", "train-1"]["spec"]["queueName"] == "team-b"


def test_priority_is_that_of_the_class_that_the_label_names(world: World) -> None:
    world.review()
    assert world.api.objects["workloads", "train-1"]["spec"]["priority"] == 0
    world.labels[PRIORITY] = "urgent"
    assert world.hold()[0] == "QueueUnavailable"
    world.api._stored("workloadpriorityclasses", "urgent", {"metadata": {"name": "urgent"}, "value": 1000})
    world.review()
    world.review()
    assert world.api.objects["workloads", "train-1"]["spec"]["priority"] == 1000


def test_workload_of_somebody_else_is_left_alone(world: World) -> None:
    world.api._stored("workloads", "train-1", {"metadata": {"name": "train-1", "uid": "x"}, "spec": {}})
    with pytest.raises(Exception, match="does not belong to this job"):
        world.review()


@pytest.mark.parametrize("code", [403, 422])
def test_refused_workload_is_requested_again(world: World, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(obj: Object, kind: Kind) -> Object:
        raise ApiError(code, {"message": "exceeded quota: count/workloads"})

    with monkeypatch.context() as quota:
        quota.setattr(world.api, "create", refuse)
        turn = world.review()
        assert turn.request.hold is not None and turn.request.hold.reason == "QueueRefused"
        assert turn.pause is not None, "nothing announces that a quota has changed"
    world.review()
    assert world.workloads() == ["train-1"]


def test_without_kueue_the_job_waits_and_a_job_without_the_label_does_not(world: World) -> None:
    world.queues._kind = None
    assert world.hold()[0] == "QueueUnavailable"
    world.labels = {}
    assert world.hold() == ("", "")


def test_more_groups_than_kueue_admits_are_explained(world: World) -> None:
    groups = [{"name": f"g{number}"} for number in range(7)]
    world.spec = JobSpec.model_validate({**SPEC, "cluster": {"engine": "dask", "workers": groups}})
    assert world.hold()[0] == "QueueUnsupported"


def test_autoscaled_group_requests_its_maximum_and_an_existing_cluster_nothing(world: World) -> None:
    workers = [{"name": "default", "replicas": 1, "max": 9}]
    world.spec = JobSpec.model_validate({**SPEC, "cluster": {"engine": "dask", "workers": workers}})
    world.review()
    assert world.api.objects["workloads", "train-1"]["spec"]["podSets"][2]["count"] == 9
    existing = JobSpec.model_validate({**SPEC, "cluster": {"name": "demo"}})
    assert [each["name"] for each in pod_sets(existing, None)] == ["driver"]


def test_placement_adds_to_what_the_user_wrote() -> None:
    pod = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "x"}]},
    }
    spec = JobSpec.model_validate({**SPEC, "driver": {"pod": pod}})
    found = placed(spec, {"driver": Placement({"pool": "spot"}, ({"key": "x"}, {"key": "y"}), {"c": "d"}, {"e": "f"})})
    assert found.driver.pod == {
        "metadata": {"annotations": {"a": "b", "c": "d"}, "labels": {"e": "f"}},
        "spec": {"nodeSelector": {"disk": "fast", "pool": "spot"}, "tolerations": [{"key": "x"}, {"key": "y"}]},
    }
    assert found.cluster == spec.cluster
