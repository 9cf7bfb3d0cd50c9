"""What a MarsJob has besides its cluster: the runs of its cronPolicy, its PodGroup and its Workload."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.model import Desired
from oars.operator import marsjob, marsjob_gang, marsjob_queue
from oars.operator.marsjob_schedule import LONGEST_NAME, REFUSED_SECONDS, problem, run_due
from oars.operator.marsjob_status import MarsJobStatus, follow
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.state.observe import timestamp
from oars.places.kube.state.root import ResourceRoot
from tests.marsjob import document

NOW = 1_700_000_030.0  # ten seconds before a minute
MINUTE = NOW + 10
NAME = "mars-test-demo"


class Api:
    """Keeps MarsJobs, PodGroups and Events. `refusal` answers every creation but that of Events."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.resources: dict[Key, Object] = {}  # as the operator watches them
        self.refusal: ApiError | None = None
        self.now = NOW
        self.patches = 0  # of the status

    async def create(self, obj: Object, kind: Kind | None = None) -> Object:
        if obj["kind"] != "Event" and self.refusal is not None:
            raise self.refusal
        key = obj["kind"], obj["metadata"].get("name", str(len(self.objects)))
        if key in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        stamped = {"uid": f"u{len(self.objects)}", "creationTimestamp": timestamp(self.now), "generation": 1}
        self.objects[key] = {**obj, "metadata": {**obj["metadata"], **stamped}}
        if obj["kind"] == "MarsJob":
            self.resources[Key("MarsJob", obj["metadata"]["namespace"], key[1])] = self.objects[key]
        return self.objects[key]

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, {"reason": "NotFound"})
        return self.objects[kind.kind, name]

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str) -> Object:
        assert (name, subresource) == (NAME, "status")
        self.patches += 1
        return body

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str) -> bool:
        found = self.objects.pop((kind.kind, name))
        assert found["metadata"]["uid"] == uid
        self.resources.pop(Key(kind.kind, namespace, name), None)
        return True

    def runs(self) -> list[str]:
        return sorted(key.name for key in self.resources)

    def end(self, run: str) -> None:
        self.resources[Key("MarsJob", "default", run)]["status"] = {"completionTime": timestamp(self.now)}

    @property
    def client(self) -> Client:
        return cast(Client, self)


def job(**spec: Any) -> Object:
    found = document()
    found["metadata"] |= {"uid": "u", "generation": 1, "creationTimestamp": timestamp(NOW - 5)}
    found["metadata"]["annotations"] = {names.WEB_AUTH: "none", "note": "x"}
    found["spec"] |= spec
    return found


def root_of(api: Api, resource: Object) -> ResourceRoot:
    return ResourceRoot(api.client, marsjob.KINDS[0], resource, MarsJobStatus())


def look(api: Api, root: ResourceRoot, at: float) -> float:
    api.now = at
    return asyncio.run(run_due(api.client, root, api.resources, lambda: at))


def run_at(at: float) -> str:
    return f"{NAME}-{int(at)}"


def every_minute(**policy: Any) -> Object:
    return job(cronPolicy={"schedule": "* * * * *", **policy})


# the schedule


def test_run_is_a_marsjob_with_the_names_of_kubedl() -> None:
    api = Api()
    root = root_of(api, every_minute())
    assert look(api, root, NOW) == 10 and not api.runs()
    look(api, root, MINUTE)
    look(api, root, MINUTE + 1)  # it is not started twice
    assert api.runs() == [run_at(MINUTE)]
    run = api.resources[Key("MarsJob", "default", run_at(MINUTE))]
    assert run["apiVersion"] == "training.kubedl.io/v1alpha1" and "cronPolicy" not in run["spec"]
    assert run["spec"]["marsReplicaSpecs"] == root.resource["spec"]["marsReplicaSpecs"]
    assert run["metadata"]["labels"]["kubedl.io/cron-name"] == run["metadata"]["labels"][names.SCHEDULE] == NAME
    assert run["metadata"]["annotations"] == {names.WEB_AUTH: "none", "note": "x"}
    ((owner,),) = [run["metadata"]["ownerReferences"]]
    assert (owner["kind"], owner["uid"]) == ("MarsJob", "u")


@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        ("Allow", [run_at(MINUTE), run_at(MINUTE + 60)]),
        (None, [run_at(MINUTE), run_at(MINUTE + 60)]),  # KubeDL's default
        ("Forbid", [run_at(MINUTE)]),
        ("Replace", [run_at(MINUTE + 60)]),
    ],
)
def test_concurrency_policy_decides_what_happens_while_a_run_has_not_ended(policy: str, runs: list[str]) -> None:
    api = Api()
    root = root_of(api, every_minute(concurrencyPolicy=policy))
    for at in (MINUTE, MINUTE + 60, MINUTE + 61):
        look(api, root, at)
    assert api.runs() == runs


def test_ended_runs_beyond_the_history_limit_are_deleted() -> None:
    api = Api()
    root = root_of(api, every_minute(historyLimit=1))
    for number in range(3):
        look(api, root, MINUTE + 60 * number)
        api.end(run_at(MINUTE + 60 * number))
    look(api, root, MINUTE + 130)
    assert api.runs() == [run_at(MINUTE + 120)]


@pytest.mark.parametrize("policy", [{"suspend": True}, {"deadline": timestamp(MINUTE)}])
def test_no_run_starts_while_suspended_or_after_the_deadline(policy: Object) -> None:
    api = Api()
    look(api, root_of(api, every_minute(**policy)), MINUTE)
    assert not api.runs()


def test_time_zone_of_the_schedule() -> None:
    api = Api()
    root = root_of(api, job(cronPolicy={"schedule": "CRON_TZ=Asia/Tokyo 30 7 * * *"}))
    look(api, root, MINUTE)
    assert api.runs() == []
    assert 0 < look(api, root, MINUTE) <= 600 and not problem(root.resource)
    assert cast(Any, root.status)["schedule"]["cron"] == "30 7 * * * Asia/Tokyo"


def test_long_blank_after_the_time_zone_is_read_at_once() -> None:
    schedule = "TZ=UTC" + " " * 50_000 + "30 7 * *\n*"
    start = time.process_time()
    assert "is too long" in problem(job(cronPolicy={"schedule": schedule}))
    assert time.process_time() - start < 0.5


def test_policy_without_effect_starts_nothing_and_says_why() -> None:
    api = Api()
    assert math.isinf(look(api, root_of(api, job(cronPolicy={"schedule": "@every 1h"})), MINUTE)) and not api.runs()
    long = every_minute()
    long["metadata"]["name"] = "x" * (LONGEST_NAME + 1)
    assert "is too long" in problem(long) and math.isinf(look(api, root_of(api, long), MINUTE))
    assert math.isinf(look(api, root_of(api, job()), MINUTE))


def test_refused_run_is_announced_and_tried_again() -> None:
    api = Api()
    api.refusal = ApiError(403, {"reason": "Forbidden", "message": "no"})
    root = root_of(api, every_minute())
    assert look(api, root, MINUTE) == REFUSED_SECONDS
    (event,) = [obj for (kind, _), obj in api.objects.items() if kind == "Event"]
    assert event["reason"] == "FailedCreate"
    api.refusal = None
    look(api, root, MINUTE + 5)
    assert api.runs() == [run_at(MINUTE)]


def test_job_with_a_schedule_is_not_deleted_after_its_ttl() -> None:
    ended = {"completionTime": timestamp(NOW), "conditions": [{"type": "Failed"}]}
    once, repeated = job(ttlSecondsAfterFinished=1), every_minute()
    repeated["spec"]["ttlSecondsAfterFinished"] = 1
    assert [follow(each, ended, [], (), NOW + 9).is_over for each in (once, repeated)] == [True, False]


# the queue


def ensure(api: Api, root: ResourceRoot) -> float:
    return asyncio.run(marsjob_gang.ensure(api.client, root, marsjob.desired(root.resource)))


def settled(root: ResourceRoot) -> Desired:
    return marsjob.settle(marsjob.desired(root.resource), root.status)


@pytest.mark.parametrize(
    ("policy", "queue", "least"),
    [
        ({"queue": "team-a"}, "team-a", 3), ({"minAvailable": 2}, None, 2), ({"queue": "a", "minAvailable": 9}, "a", 3),
    ],
)  # fmt: skip
def test_members_of_a_job_with_a_queue_start_together(policy: Object, queue: str | None, least: int) -> None:
    api = Api()
    root = root_of(api, job(schedulingPolicy={**policy, "priorityClassName": "high"}))
    assert math.isinf(ensure(api, root))
    group = api.objects["PodGroup", NAME]
    assert (group["spec"].get("queue"), group["spec"]["minMember"]) == (queue, least)
    assert group["spec"]["priorityClassName"] == "high"
    assert group["spec"]["minResources"] == {"cpu": "6000m", "memory": str(6 * 2**30)}
    assert group["metadata"]["ownerReferences"][0]["uid"] == "u"
    desired = settled(root)
    for member in (desired.shape.head, *desired.shape.workers):
        assert member.pod["spec"]["schedulerName"] == "volcano"
        assert member.pod["metadata"]["annotations"][names.GANG] == NAME
    before = dict(root.status)
    assert math.isinf(ensure(api, root)) and root.status == before, "once"


def test_job_waits_while_volcano_refuses_its_group() -> None:
    api = Api()
    api.refusal = ApiError(422, {"reason": "Invalid", "message": "queue nope does not exist"})
    root = root_of(api, job(schedulingPolicy={"queue": "nope"}))
    assert ensure(api, root) < math.inf
    assert not settled(root).running
    condition = follow(root.resource, root.status, [], (), NOW).changes["conditions"][-1]
    assert condition["type"] == "Queuing" and "nope does not exist" in condition["message"]
    api.refusal = None
    ensure(api, root)
    assert (
        settled(root).running
        and follow(root.resource, root.status, [], (), NOW).changes["conditions"][-1]["type"] == "Created"
    )


def test_group_of_somebody_else_is_not_used() -> None:
    api = Api()
    api.objects["PodGroup", NAME] = {"metadata": {"name": NAME, "uid": "other"}}
    root = root_of(api, job(schedulingPolicy={"queue": "a"}))
    assert ensure(api, root) < math.inf and not settled(root).running


@pytest.mark.parametrize("status", [403, 404])
def test_job_runs_without_volcano_where_that_is_missing(status: int) -> None:
    api = Api()
    api.refusal = ApiError(status, {"reason": "NotFound"})
    root = root_of(api, job(schedulingPolicy={"queue": "a"}))
    assert math.isinf(ensure(api, root))
    assert settled(root).running and "schedulerName" not in settled(root).shape.head.pod["spec"]
    assert any("schedulingPolicy.queue" in each for each in marsjob.not_honoured(root.resource, root.status))


def test_job_without_a_queue_has_no_group() -> None:
    api = Api()
    root = root_of(api, job(schedulingPolicy={"priorityClassName": "high"}))
    assert math.isinf(ensure(api, root)) and not api.objects and settled(root).running


def review(api: Api, root: ResourceRoot) -> float:
    return asyncio.run(marsjob_queue.review(api.client, root, marsjob.desired(root.resource), []))


def queued(**spec: Any) -> Object:
    found = job(**spec)
    found["metadata"]["labels"] = {names.KUEUE_QUEUE: "team-a"}
    return found


def test_job_with_the_label_of_kueue_waits_for_its_workload() -> None:
    api = Api()
    root = root_of(api, queued(schedulingPolicy={"priority": 7}))
    assert review(api, root) < math.inf
    workload = api.objects["Workload", NAME]
    assert (workload["apiVersion"], workload["spec"]["queueName"]) == ("kueue.x-k8s.io/v1beta2", "team-a")
    assert workload["spec"]["priority"] == 7 and workload["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert not settled(root).running
    assert not any("priority" in each for each in marsjob.not_honoured(root.resource, root.status))
    workload["status"] = {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "No room."}]}
    assert review(api, root) < math.inf
    condition = follow(root.resource, root.status, [], (), NOW).changes["conditions"][-1]
    assert condition["type"] == "Queuing" and "No room." in condition["message"]
    assert math.isinf(review(api, root_of(api, job())))


def test_job_runs_where_kueue_is_missing_and_says_so() -> None:
    api = Api()
    api.refusal = ApiError(404, {"reason": "NotFound"})
    root = root_of(api, queued(schedulingPolicy={"priority": 7}))
    assert math.isinf(review(api, root)) and math.isinf(review(api, root)) and settled(root).running
    listed = marsjob.not_honoured(root.resource, root.status)
    assert any("Kueue is not installed" in each for each in listed)
    assert any(each.startswith("spec.schedulingPolicy.priority") for each in listed)
    first = marsjob.course(root.resource, root.status, [], (), NOW)
    assert "notHonoured" in first.changes
    assert "notHonoured" not in marsjob.course(root.resource, {**root.status, **first.changes}, [], (), NOW).changes


@pytest.mark.parametrize("leaving", [False, True])
def test_job_waits_while_another_workload_has_its_name(leaving: bool) -> None:
    api = Api()
    metadata: Object = {"name": NAME, "uid": "other"}
    if leaving:  # its own, of an earlier admission
        metadata |= {"deletionTimestamp": "x", "ownerReferences": [{"uid": "u"}]}
    api.objects["Workload", NAME] = {"metadata": metadata}
    root = root_of(api, queued())
    assert review(api, root) < math.inf and not settled(root).running
    del api.objects["Workload", NAME]
    review(api, root)
    assert ("Workload", NAME) in api.objects


def test_job_waits_while_kueue_refuses_its_workload_or_flavors_cannot_be_read() -> None:
    api = Api()
    api.refusal = ApiError(422, {"reason": "Invalid", "message": "no such queue"})
    root = root_of(api, queued())
    assert review(api, root) < math.inf and "no such queue" in str(root.status["queueMessage"])
    api.refusal = None
    review(api, root)
    admitted = [{"type": each, "status": "True"} for each in ("QuotaReserved", "Admitted")]
    sets = [{"name": "head", "flavors": {"cpu": "spot"}}]
    api.objects["Workload", NAME]["status"] = {"conditions": admitted, "admission": {"podSetAssignments": sets}}
    assert review(api, root) < math.inf and "ResourceFlavors" in str(root.status["queueMessage"])
    spec = {"nodeLabels": {"type": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    api.objects["ResourceFlavor", "spot"] = {"spec": spec}
    review(api, root)
    pod = settled(root).shape.head.pod["spec"]
    assert (
        settled(root).running
        and pod["nodeSelector"] == spec["nodeLabels"]
        and pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    )
    assert "nodeSelector" not in settled(root).shape.workers[0].pod["spec"]


RUNS = {"loop": {}, "conditions": [{"type": "Created"}, {"type": "Running"}]}


@pytest.mark.parametrize("has_kueue", [True, False])
def test_label_that_is_added_to_a_job_that_runs_changes_nothing_and_is_listed(has_kueue: bool) -> None:
    api = Api()
    if not has_kueue:
        api.refusal = ApiError(404, {"reason": "NotFound"})
    root = root_of(api, {**queued(schedulingPolicy={"priority": 7}), "status": RUNS})
    assert math.isinf(review(api, root)) and root.status == RUNS and not api.objects
    assert settled(root).running
    course = marsjob.course(root.resource, {**RUNS, "notHonouredGeneration": 1}, [], (), NOW)
    listed = {each.partition(":")[0] for each in course.changes["notHonoured"] if "ran already" in each}
    assert listed == {"metadata.labels"}
    assert any("spec.schedulingPolicy.priority" in each for each in course.changes["notHonoured"])


def test_queue_of_volcano_that_is_added_to_a_job_that_runs_changes_nothing_and_is_listed() -> None:
    api = Api()
    api.refusal = ApiError(422, {"reason": "Invalid", "message": "queue nope does not exist"})
    root = root_of(api, {**job(schedulingPolicy={"queue": "nope"}), "status": RUNS})
    assert math.isinf(ensure(api, root)) and root.status == RUNS and settled(root).running
    listed = marsjob.not_honoured(root.resource, root.status)
    assert [each for each in listed if "ran already" in each] == [f"spec.schedulingPolicy.queue: {marsjob_gang.LATE}"]


def test_job_that_ran_under_kubedl_enters_its_queue() -> None:
    api = Api()
    root = root_of(api, {**queued(), "status": {"conditions": RUNS["conditions"]}})
    review(api, root)
    assert not settled(root).running and ("Workload", NAME) in api.objects


def keep_up(root: ResourceRoot, pods: list[Object], at: float) -> None:
    """The course of a pass, in the status."""
    course = marsjob.course(root.resource, root.status, pods, (), at)
    asyncio.run(root.amend(course.changes, course.events))


def test_job_that_returns_to_its_queue_starts_with_all_workers_and_a_new_start_time() -> None:
    api = Api()
    earlier = {"lostWorkers": {f"{NAME}-worker-a": "default"}, "startTime": timestamp(NOW - 900), **RUNS}
    admission = {"admission": {"version": "v1beta2", "is_admitted": True, "placements": {}}}
    root = root_of(api, {**queued(), "status": {**earlier, **admission}})
    assert settled(root).shape.workers[0].replicas == 1
    review(api, root)  # its Workload was deleted
    keep_up(root, [], NOW)
    assert not settled(root).running and not root.status.keys() & {"lostWorkers", "startTime"}
    asyncio.run(root.amend({"queueMessage": None}))
    keep_up(root, [], NOW + 60)
    assert settled(root).shape.workers[0].replicas == 2
    assert root.status["startTime"] == timestamp(NOW + 60)


def test_job_that_waits_for_its_queue_writes_nothing_at_rest() -> None:
    api = Api()
    root = root_of(api, queued())
    for seconds in range(0, 60, 10):
        review(api, root)
        keep_up(root, [], NOW + seconds)
        if seconds == 10:
            before = api.patches
    assert api.patches == before


def test_changed_request_or_queue_of_a_job_that_waits_gets_another_workload() -> None:
    api = Api()
    root = root_of(api, queued())
    review(api, root)
    workload = api.objects["Workload", NAME]
    workload["status"] = {"conditions": [{"type": each, "status": "True"} for each in ("QuotaReserved", "Admitted")]}
    root.resource["spec"]["marsReplicaSpecs"]["Worker"]["replicas"] = 9
    review(api, root)
    assert not settled(root).running, "less was admitted"
    review(api, root)
    assert [each["count"] for each in api.objects["Workload", NAME]["spec"]["podSets"]] == [1, 9]
    root.resource["metadata"]["labels"] = {names.KUEUE_QUEUE: "team-b"}
    review(api, root)
    review(api, root)
    assert api.objects["Workload", NAME]["spec"]["queueName"] == "team-b" and not settled(root).running


def test_workload_of_an_older_version_keeps_its_place_in_the_queue() -> None:
    api = Api()
    root = root_of(api, queued())
    review(api, root)
    del api.objects["Workload", NAME]["metadata"]["annotations"]
    review(api, root)
    assert "annotations" not in api.objects["Workload", NAME]["metadata"]


@pytest.mark.parametrize("is_refused", [True, False])
def test_job_that_loses_its_label_leaves_the_queue_and_starts(is_refused: bool) -> None:
    api = Api()
    if is_refused:
        api.refusal = ApiError(422, {"reason": "Invalid", "message": "no such queue"})
    root = root_of(api, queued())
    review(api, root)
    assert not settled(root).running
    del root.resource["metadata"]["labels"]
    review(api, root)
    assert math.isinf(review(api, root)) and settled(root).running and not api.objects
