"""Jobs that Volcano schedules: a PodGroup per attempt, created before its cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.pod_groups import LABEL, PodGroups
from oars.operator.queues import Turn
from oars.plan.jobs import START_DEADLINE, Hold, JobPolicy, JobRequest, JobSeen, decide_job
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus
from tests.unit.operator.test_queues import SPEC, Api

NO_REQUEST = JobRequest()
STARTING = JobStatus(state=JobState.STARTING, attempt=1, attempts=(Attempt(1, "train-1", 0.0),))


def review(
    groups: PodGroups,
    status: JobStatus,
    spec: JobSpec,
    labels: Object | None = None,
    request: JobRequest = NO_REQUEST,
) -> Turn:
    labels = {LABEL: "team-a"} if labels is None else labels
    resource = {"metadata": {"name": "train", "namespace": "team", "uid": "job-uid", "labels": labels}}
    return asyncio.run(groups.review(resource, status, Turn(spec, request)))


def spec_of(**cluster: Any) -> JobSpec:
    return JobSpec.model_validate({**SPEC, "cluster": {"engine": "dask", **cluster}})


def test_members_start_together_and_the_driver_is_reserved_for() -> None:
    api, head = Api(), {"cpu": 1, "memory": "1Gi"}
    groups = PodGroups(cast(Client, api))
    workers = [{"name": "default", "replicas": 3, "cpu": 2, "memory": "2Gi"}, {"name": "more", "min": 1, "max": 9}]
    spec = spec_of(head=head, workers=workers)
    turn = review(groups, STARTING, spec)
    made = api.objects["podgroups", "train-1"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert (made["spec"]["minMember"], made["spec"]["queue"]) == (5, "team-a")
    assert int(made["spec"]["minResources"]["memory"]) >= 7 * 2**30
    assert turn.request.hold is None
    assert turn.spec is not None and turn.spec.cluster is not None
    pods = [turn.spec.driver.pod, turn.spec.cluster.head.pod, *(each.pod for each in turn.spec.cluster.workers)]
    assert [pod["spec"]["schedulerName"] for pod in pods] == ["volcano"] * 4
    assert {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in pods} == {"train-1"}
    assert review(PodGroups(cast(Client, api)), STARTING, spec).spec == turn.spec, "after a restart of the operator"


def test_group_of_an_ended_attempt_is_deleted_once() -> None:
    api = Api()
    groups = PodGroups(cast(Client, api))
    review(groups, STARTING, spec_of())
    assert STARTING.last is not None
    over = replace(STARTING, attempts=(replace(STARTING.last, ended=1.0),))
    review(groups, over, spec_of())
    assert not api.objects
    asked = api.asked
    review(groups, over, spec_of())
    assert api.asked == asked


def test_attempt_waits_while_somebody_else_has_its_group() -> None:
    api = Api()
    api._stored("podgroups", "train-1", {"metadata": {"name": "train-1", "uid": "x"}})
    groups = PodGroups(cast(Client, api))
    turn = review(groups, STARTING, spec_of())
    assert turn.request.hold is not None and turn.pause is not None
    assert "does not belong to this job" in turn.request.hold.message
    del api.objects["podgroups", "train-1"]
    assert review(groups, STARTING, spec_of()).request.hold is None


class Refusing(Api):
    """The webhook of Volcano refuses PodGroups."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    async def create(self, obj: Object, kind: Kind) -> Object:
        if kind.plural != "podgroups":
            return await super().create(obj, kind)
        raise ApiError(self.code, {"reason": "Invalid", "message": "queue nope does not exist"})


@pytest.mark.parametrize("code", [400, 422])
def test_refused_group_holds_the_attempt_until_its_start_deadline(code: int) -> None:
    turn = review(PodGroups(cast(Client, Refusing(code))), STARTING, spec_of())
    hold = turn.request.hold
    assert hold == Hold("QueueRefused", "Volcano refuses the PodGroup: queue nope does not exist")
    assert turn.pause is not None
    decisions = [
        decide_job("train", JobPolicy(start_deadline=60.0), turn.request, STARTING, JobSeen(), now)
        for now in (59.0, 60.0)
    ]
    assert [each.status.reason for each in decisions] == ["QueueRefused", START_DEADLINE]


@pytest.mark.parametrize("request_", [JobRequest(cancel=True), JobRequest(suspend=True)])
def test_refused_group_does_not_stop_a_job_from_being_stopped(request_: JobRequest) -> None:
    groups = PodGroups(cast(Client, Refusing(422)))
    turn = review(groups, STARTING, spec_of(), request=request_)
    assert turn == Turn(turn.spec, request_)
    assert STARTING.last is not None
    stopping = replace(STARTING, attempts=(replace(STARTING.last, stopping=START_DEADLINE),))
    assert review(groups, stopping, spec_of()).request == JobRequest()


def test_group_that_cannot_be_created_at_present_fails_the_pass() -> None:
    with pytest.raises(ApiError, match="queue nope"):
        review(PodGroups(cast(Client, Refusing(500))), STARTING, spec_of())


def test_without_volcano_the_attempt_waits_and_a_job_without_the_label_does_not() -> None:
    class Without(Api):
        async def create(self, obj: Object, kind: Kind) -> Object:
            raise ApiError(404, {"reason": "NotFound"})

    groups = PodGroups(cast(Client, Without()))
    turn = review(groups, STARTING, spec_of())
    assert turn.request.hold is not None
    assert turn.request.hold.reason == "QueueUnavailable"
    assert turn.pause is not None
    assert review(groups, STARTING, spec_of(), {}).request.hold is None


def test_job_on_an_existing_cluster_is_a_group_of_its_driver() -> None:
    api = Api()
    review(PodGroups(cast(Client, api)), STARTING, JobSpec.model_validate({**SPEC, "cluster": {"name": "demo"}}))
    assert api.objects["podgroups", "train-1"]["spec"]["minMember"] == 1
