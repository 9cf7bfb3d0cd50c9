"""MarsJobs: the objects that one becomes, and the state that it shows for every state of its pods."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars.base.errors import SpecError
from oars.kube.kinds import Object
from oars.model import Cause
from oars.operator import crd, kubedl, marsjob
from oars.operator.marsjob_status import MarsJobStatus, conditions, follow, is_ended
from oars.operator.resources import Course
from oars.operator.safe_fields import INGRESSES
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.state.observe import timestamp
from oars.spec.status import Phase
from tests.marsjob import document

GOLDEN = Path(__file__).with_name("marsjob.yaml")
NOW = 1_700_000_000.0
ASSIGNED = {"uid": "u", "generation": 1, "creationTimestamp": timestamp(NOW)}


def job(**spec: Any) -> Object:
    found = document()
    found["metadata"] |= ASSIGNED
    found["spec"] |= spec
    return found


def scheduler_with(policy: str) -> dict[str, Any]:
    roles = document()["spec"]["marsReplicaSpecs"]
    roles["Scheduler"]["restartPolicy"] = policy
    return {"marsReplicaSpecs": roles}


def pod(group: str = "default", *, restarts: int = 0, phase: str = "Running", **container: Any) -> Object:
    """A pod, whose container runs unless `container` says otherwise."""
    own: Object = {"name": "head" if group == "head" else "worker", "restartCount": restarts, "state": {"running": {}}}
    name = f"mars-test-demo-{group}-a-{restarts}"
    owner = f"mars-test-demo-{'worker' if group == 'default' else group}"
    return {
        "metadata": {
            "name": name,
            "generateName": f"{owner}-a-",
            "labels": {names.CLUSTER: "mars-test-demo", names.GROUP: group, "pod-template-hash": "a"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{owner}-a", "controller": True}],
        },
        "spec": {},
        "status": {"phase": phase, "containerStatuses": [own | container]},
    }


def ended(code: int) -> Object:
    return {"state": {"terminated": {"exitCode": code}}}


def waiting() -> Object:
    return {"state": {"waiting": {"reason": "ContainerCreating"}}}


HEAD, WORKER = pod("head"), pod()
RUNNING = {"conditions": [{"type": "Running", "status": "True"}], "startTime": timestamp(NOW)}


def after(
    pods: list[Object], status: Mapping[str, Any] | None = None, *, now: float = NOW, **spec: Any
) -> tuple[str, Course]:
    """The state, and the course, of a job with these pods."""
    found = follow(job(**spec), status or {}, pods, (), now)
    return found.changes["conditions"][-1]["type"], found


# what it becomes


def test_document_becomes_services_and_an_ingress_with_the_names_of_the_page() -> None:
    """OARS_GOLDEN=1 writes the file."""
    made = [each for each in objects.manifests(marsjob.desired(job())) if each["kind"] in ("Service", "Ingress")]
    if os.environ.get("OARS_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(made, sort_keys=False))
    assert made == list(yaml.safe_load_all(GOLDEN.read_text()))


def variables(group: str) -> dict[str, Any]:
    wanted = f"mars-test-demo-{group}"
    (deployment,) = [
        each
        for each in objects.manifests(marsjob.desired(job()))
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", wanted)
    ]
    found = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {each["name"]: each.get("value") or each.get("valueFrom") for each in found}


@pytest.mark.parametrize(("group", "role"), [("head", "scheduler"), ("worker", "worker")])
def test_pods_have_the_variables_of_kubedl(group: str, role: str) -> None:
    found = variables(group)
    assert found["MARS_CPU_TOTAL"] == "2" and found["MARS_MEMORY_TOTAL"] == str(2 * 2**30)
    assert found["MARS_CPU_USE_PROCESS_STAT"] == "1" and found["MARS_K8S_GROUP_LABELS"] == "job-name"
    assert found["MARS_CONTAINER_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found["MARS_K8S_POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert found["MARS_K8S_POD_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    detail = yaml.safe_load(found["MARS_CLUSTER_DETAIL"])
    assert detail["task"]["type"] == role
    assert detail["cluster"]["webservice"] == ["mars-test-demo-webservice-0.default.svc:11111"]


def test_variables_of_the_user_stay_and_those_of_kubedl_win() -> None:
    found = job()
    container = found["spec"]["marsReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "MINE", "value": "x"}, {"name": "MARS_K8S_POD_NAME", "value": "no"}]
    (group,) = marsjob.desired(found).shape.workers
    assert group.process.env["MINE"] == "x"
    own = group.pod["spec"]["containers"][0]["env"]
    assert {each["name"] for each in own} >= {"MARS_K8S_POD_NAME"} and all("valueFrom" in each for each in own)


@pytest.mark.parametrize("spelling", ["memoryTuningPolicy", "workerMemoryTuningPolicy"])
def test_memory_tuning_in_both_spellings(spelling: str) -> None:
    policy = {"spillDirs": ["/mnt/a"], "workerCachePercentage": 80, "workerCacheSize": "1Gi"}
    (group,) = marsjob.desired(job(**{spelling: policy})).shape.workers
    assert group.spill is not None and group.process.env["MARS_CACHE_MEM_SIZE"] == str(2**30)
    (group,) = marsjob.desired(job(**{spelling: {"workerCachePercentage": 50}})).shape.workers
    assert group.process.env["MARS_CACHE_MEM_SIZE"] == str(2**30)


def test_fields_without_effect_are_listed_in_the_status_once_per_generation() -> None:
    found = job(cronPolicy={"schedule": "0 3 * * *"}, schedulingPolicy={"queue": "a", "priorityClassName": "high"})
    first = marsjob.course(found, {}, [], (), NOW)
    fields = {each.partition(":")[0] for each in first.changes["notHonoured"]}
    assert {"spec.cronPolicy.schedule", "spec.schedulingPolicy.queue"} <= fields or {
        "spec.cronPolicy",
        "spec.schedulingPolicy.queue",
    } <= fields
    assert "spec.marsReplicaSpecs.WebService.template" in fields
    assert not any(each.startswith(("spec.ttl", "spec.backoff", "spec.scheduling.priority")) for each in fields)
    assert [each.reason for each in first.events] == ["JobCreated", "NotHonoured"]
    assert first.changes["webServiceAddresses"] == ["mars.domain.com/mars/default/mars-test-demo-webservice-0"]
    again = marsjob.course(found, first.changes, [], (), NOW)
    assert "notHonoured" not in again.changes and not again.events


def test_deadline_fails_the_job_and_does_not_delete_it() -> None:
    assert not marsjob.desired(job(activeDeadlineSeconds=60)).lifetime.is_limited


def test_account_of_the_document_is_not_used_and_others_are() -> None:
    head = marsjob.desired(job()).shape.head
    assert "serviceAccountName" not in head.pod["spec"]
    other = job()
    other["spec"]["marsReplicaSpecs"]["Scheduler"]["template"]["spec"]["serviceAccountName"] = "mine"
    assert marsjob.desired(other).shape.head.pod["spec"]["serviceAccountName"] == "mine"


def test_author_needs_the_right_to_create_pods_and_ingresses() -> None:
    assert set(marsjob.restricted(job())) == {marsjob.PODS, INGRESSES}
    assert set(marsjob.restricted(job(webHost=None))) == {marsjob.PODS}


def test_job_without_replicas_is_refused() -> None:
    with pytest.raises(SpecError, match="marsReplicaSpecs"):
        marsjob.desired(job(marsReplicaSpecs={}))


# its state


@pytest.mark.parametrize(
    ("pods", "before", "state"),
    [
        ([], None, "Created"),
        ([HEAD], None, "Created"),
        ([pod("head", **waiting()), WORKER], None, "Created"),
        ([HEAD, pod(phase="Pending", **waiting())], None, "Running"),  # as in KubeDL
        ([HEAD, WORKER], None, "Running"),
        ([HEAD], RUNNING, "Running"),  # its workers are being replaced
        ([HEAD, pod(restarts=1, **waiting(), lastState=ended(1)["state"])], RUNNING, "Restarting"),
        ([HEAD, pod(phase="Failed", containerStatuses=[])], RUNNING, "Running"),
        ([HEAD, pod(restarts=1, lastState=ended(1)["state"])], RUNNING, "Running"),
        ([pod("head", **ended(1)), WORKER], RUNNING, "Failed"),
        ([pod("head", **ended(0)), WORKER], RUNNING, "Succeeded"),
        ([pod("head", restarts=1, lastState=ended(137)["state"]), WORKER], RUNNING, "Failed"),
        ([pod("head", phase="Failed", state={})], RUNNING, "Failed"),  # evicted
    ],
)
def test_state_follows_the_pods(pods: list[Object], before: Object | None, state: str) -> None:
    found, course = after(pods, before)
    assert found == state
    assert is_ended(course.changes) is (state in ("Failed", "Succeeded"))


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [
        ("Never", 1, "Failed"), ("ExitCode", 137, "Failed"), ("Always", 1, "Restarting"), ("Always", 0, "Restarting"),
        ("OnFailure", 1, "Restarting"), ("OnFailure", 0, "Succeeded"), ("Never", 0, "Succeeded"),
    ],
)  # fmt: skip
def test_end_of_the_scheduler_is_the_verdict_unless_it_is_restarted(policy: str, code: int, state: str) -> None:
    assert after([pod("head", **ended(code)), WORKER], RUNNING, **scheduler_with(policy))[0] == state


@pytest.mark.parametrize(("limit", "state"), [(None, "Running"), (2, "Running"), (1, "Failed"), (0, "Failed")])
def test_restarts_beyond_the_backoff_limit_fail_the_job(limit: int | None, state: str) -> None:
    pods = [HEAD, pod(restarts=1), pod(restarts=1)]
    found, course = after(pods, RUNNING, backoffLimit=limit)
    assert found == state
    if state == "Failed":
        assert course.changes["conditions"][-1]["reason"] == "BackoffLimitExceeded"


def test_deadline_counts_from_the_start() -> None:
    assert after([HEAD, WORKER], RUNNING, now=NOW + 59, activeDeadlineSeconds=60)[1].pause == 1
    state, course = after([HEAD, WORKER], RUNNING, now=NOW + 60, activeDeadlineSeconds=60)
    assert (state, course.changes["conditions"][-1]["reason"]) == ("Failed", "DeadlineExceeded")
    assert course.changes["completionTime"] == timestamp(NOW + 60)


def test_pod_that_is_deleted_is_no_verdict() -> None:
    deleted = pod("head", **ended(137))
    deleted["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert after([deleted, WORKER], RUNNING)[0] == "Running"


def test_job_that_ended_stays_as_it_is_and_is_deleted_after_its_ttl() -> None:
    _, failed = after([pod("head", **ended(1)), WORKER], RUNNING, ttlSecondsAfterFinished=30)
    status = {**RUNNING, **failed.changes}
    later = follow(job(ttlSecondsAfterFinished=30), status, [], (), NOW + 10)
    assert "conditions" not in later.changes and (later.is_over, later.pause) == (False, 20)
    assert later.changes["replicaStatuses"]["Scheduler"] == {"active": 0, "failed": 1}
    assert follow(job(ttlSecondsAfterFinished=30), status, [], (), NOW + 30).is_over
    without = follow(job(), status, [], (), NOW + 1e9)
    assert (without.is_over, without.pause) == (False, math.inf)


def test_nothing_is_written_while_nothing_changes() -> None:
    _, first = after([HEAD, WORKER])
    _, second = after([HEAD, WORKER], first.changes, now=NOW + 100)
    assert {**first.changes, **second.changes} == first.changes and not second.events


def test_conditions_are_ordered_as_in_kubedl() -> None:
    found = conditions((), "Created", ("JobCreated", "m"), "1")
    found = conditions(found, "Running", ("JobRunning", "m"), "2")
    found = conditions(found, "Restarting", ("JobRestarting", "m"), "3")
    assert [each["type"] for each in found] == ["Created", "Restarting"]
    found = conditions(found, "Running", ("JobRunning", "m"), "4")
    found = conditions(found, "Failed", ("JobFailed", "m"), "5")
    assert [(each["type"], each["status"]) for each in found] == [
        ("Created", "True"), ("Running", "False"), ("Failed", "True"),
    ]  # fmt: skip


def test_refused_spec_is_shown_as_failed_and_is_not_the_end() -> None:
    cause = Cause("InvalidSpec", "No.")
    changes = MarsJobStatus().dump_failure(cause, Phase.FAILED, 1, {}, "1")
    assert changes["conditions"][-1]["type"] == "Failed" and not is_ended(changes)
    assert after([], changes)[0] == "Created"
    assert "conditions" not in MarsJobStatus().dump_failure(cause, None, 1, RUNNING, "1")


# the definitions


def test_both_groups_have_the_columns_of_kubedl() -> None:
    for definition, group in zip(crd.mars_jobs(), crd.MARS_JOB_GROUPS, strict=True):
        assert definition["metadata"]["name"] == f"marsjobs.{group}" and definition["spec"]["group"] == group
        (version,) = definition["spec"]["versions"]
        columns = [each["name"].upper() for each in version["additionalPrinterColumns"]]
        assert columns == ["STATE", "AGE", "TTL-AFTER-FINISHED", "MAX-LIFETIME"]
        assert version["subresources"] == {"status": {}}
    assert [each["spec"]["names"]["singular"] for each in crd.mars_jobs()] == ["marsjob", crd.OLD_MARS_JOB]


@pytest.mark.parametrize(
    ("image", "replicas", "is_kubedl"),
    [
        ("kubedl/kubedl:daily", 1, True), ("registry.example/kubedl:v0.5.0", 1, True), ("kubedl", 2, True),
        ("kubedl/kubedl:daily", 0, False), ("kubedl/dashboard:1", 1, False), ("oars/operator:1", 1, False),
    ],
)  # fmt: skip
def test_operator_of_kubedl_is_recognised_by_its_image(image: str, replicas: int, is_kubedl: bool) -> None:
    template = {"spec": {"containers": [{"image": image}]}}
    assert kubedl.is_operator({"spec": {"replicas": replicas, "template": template}}) is is_kubedl
