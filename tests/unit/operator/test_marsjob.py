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


def variables(group: str, **spec: Any) -> dict[str, Any]:
    wanted = f"mars-test-demo-{group}"
    (deployment,) = [
        each
        for each in objects.manifests(marsjob.desired(job(**spec)))
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


PLASMA, LOCK_FREE = "MARS_PLASMA_DIRS", "MARS_LOCK_FREE_FILEIO"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {PLASMA: "/dev/shm", LOCK_FREE: "1"}),  # KubeDL's defaults
        ({"memoryTuningPolicy": {"plasmaStore": "/a"}}, {PLASMA: "/a", LOCK_FREE: "1"}),
        ({"workerMemoryTuningPolicy": {"lockFreeFileIO": False}}, {PLASMA: "/dev/shm", LOCK_FREE: "0"}),
        ({"workerMemoryTuningPolicy": {"plasmaStore": "", "lockFreeFileIO": True}}, {LOCK_FREE: "1"}),
        (
            {"memoryTuningPolicy": {"plasmaStore": "/a"}, "workerMemoryTuningPolicy": {"plasmaStore": "/b"}},
            {PLASMA: "/b", LOCK_FREE: "1"},
        ),
    ],
)
def test_workers_have_the_variables_of_the_memory_tuning(spec: Object, expected: dict[str, str]) -> None:
    found = variables("worker", **spec)
    assert {key: found[key] for key in (PLASMA, LOCK_FREE) if key in found} == expected
    assert not {PLASMA, LOCK_FREE} & set(variables("head", **spec))


def test_worker_reads_its_number_in_a_volume() -> None:
    """All pods of a Deployment have the same variables, and get their number when they exist."""
    roles = document()["spec"]["marsReplicaSpecs"]
    number = {"path": "number", "fieldRef": {"fieldPath": f"metadata.labels['{marsjob.INDEX}']"}}
    volume = {"name": "number", "downwardAPI": {"items": [number]}}
    spec = roles["Worker"]["template"]["spec"]
    spec["volumes"] = [volume]
    spec["containers"][0]["volumeMounts"] = [{"name": "number", "mountPath": "/etc/number"}]
    found = job(marsReplicaSpecs=roles)
    (group,) = marsjob.desired(found).shape.workers
    assert group.number_label == marsjob.INDEX and volume in group.pod["spec"]["volumes"]
    assert not any("volume" in each.lower() for each in marsjob.not_honoured(found, {}))


def test_variables_of_the_user_stay_and_those_of_kubedl_win() -> None:
    found = job()
    container = found["spec"]["marsReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "MINE", "value": "x"}, {"name": "MARS_K8S_POD_NAME", "value": "no"}]
    container["env"] += [{"name": PLASMA, "value": "no"}, {"name": LOCK_FREE, "valueFrom": {}}]
    (group,) = marsjob.desired(found).shape.workers
    assert group.process.env["MINE"] == "x"
    own = {each["name"]: each.get("value") for each in group.pod["spec"]["containers"][0]["env"]}
    assert own == {**dict.fromkeys(marsjob.FROM_POD), PLASMA: "/dev/shm", LOCK_FREE: "1"}


def test_detail_of_a_worker_has_its_resources() -> None:
    roles = document()["spec"]["marsReplicaSpecs"]
    roles["Worker"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    desired = marsjob.desired(job(marsReplicaSpecs=roles))
    (group,) = desired.shape.workers
    worker, head = (
        yaml.safe_load(each.process.env["MARS_CLUSTER_DETAIL"])["task"] for each in (group, desired.shape.head)
    )
    assert worker == {"type": "worker", "index": 0, "resources": {"cpu_procs": 2, "phy_mem": 2**30}}
    assert head == {"type": "scheduler", "index": 0}


@pytest.mark.parametrize(("count", "groups"), [(1, [("default", 2), ("spot", 1)]), (3, [("default", 3)])])
def test_last_workers_are_spot_workers(count: int, groups: list[tuple[str, int]]) -> None:
    spot = {"spotReplicaNumber": count, "priorityClassName": "low", "labels": {"quota": "spot"}}
    found = job(**worker_with("Never", 3, spotReplicaSpec=spot), schedulingPolicy={"priorityClassName": "high"})
    desired = marsjob.desired(found)
    assert [(each.name, each.replicas) for each in desired.shape.workers] == groups
    last = desired.shape.workers[-1].pod
    assert last["spec"]["priorityClassName"] == "low"
    assert last["metadata"]["labels"]["quota"] == "spot" and last["metadata"]["labels"]["replica-type"] == "worker"
    assert desired.shape.head.pod["spec"]["priorityClassName"] == "high"
    services = [each for each in objects.alias_services(desired) if "-worker-" in each["metadata"]["name"]]
    assert [each["metadata"]["name"] for each in services] == [f"mars-test-demo-worker-{index}" for index in range(3)]
    assert [each["spec"]["selector"]["oars.dev/group"] for each in services][-1] == groups[-1][0]
    assert not any("spot" in each for each in marsjob.not_honoured(found, {}))


def test_spot_scheduler_has_the_priority_class_and_the_labels() -> None:
    roles = document()["spec"]["marsReplicaSpecs"]
    roles["Scheduler"]["spotReplicaSpec"] = {"spotReplicaNumber": 1, "priorityClassName": "low", "labels": {"a": "b"}}
    head = marsjob.desired(job(marsReplicaSpecs=roles)).shape.head
    assert head.pod["spec"]["priorityClassName"] == "low" and head.pod["metadata"]["labels"]["a"] == "b"


def test_annotation_switches_the_token_of_the_web_service_off() -> None:
    found = job()
    assert "OARS_WEB_AUTH" not in marsjob.desired(found).shape.head.process.env
    found["metadata"]["annotations"] = {"oars.dev/web-auth": "none"}
    desired = marsjob.desired(found)
    assert desired.shape.head.process.env["OARS_WEB_AUTH"] == "none"
    assert "OARS_WEB_AUTH" not in desired.shape.workers[0].process.env
    found["metadata"]["annotations"] = {"oars.dev/web-auth": "off"}
    with pytest.raises(SpecError, match="web-auth"):
        marsjob.desired(found)


@pytest.mark.parametrize("spelling", ["memoryTuningPolicy", "workerMemoryTuningPolicy"])
def test_memory_tuning_in_both_spellings(spelling: str) -> None:
    policy = {"spillDirs": ["/mnt/a"], "workerCachePercentage": 80, "workerCacheSize": "1Gi"}
    (group,) = marsjob.desired(job(**{spelling: policy})).shape.workers
    assert group.spill is not None and group.process.env["MARS_CACHE_MEM_SIZE"] == str(2**30)
    (group,) = marsjob.desired(job(**{spelling: {"workerCachePercentage": 50}})).shape.workers
    assert group.process.env["MARS_CACHE_MEM_SIZE"] == str(2**30)


def not_honoured(status: Mapping[str, Any] | None = None, **spec: Any) -> set[str]:
    """The fields that are listed."""
    return {each.partition(":")[0] for each in marsjob.not_honoured(job(**spec), status or {})}


ROLE = "spec.marsReplicaSpecs"
ALWAYS_LISTED = {  # of the document
    f"{ROLE}.Scheduler.template.spec.serviceAccountName",
    f"{ROLE}.Worker.template.spec.serviceAccountName",
    f"{ROLE}.WebService.template",
    f"{ROLE}.WebService.restartPolicy",
}


@pytest.mark.parametrize(
    ("spec", "listed"),
    [
        ({}, {"spec.cleanPodPolicy"}),  # the document's None
        ({"cleanPodPolicy": "Running"}, {"spec.cleanPodPolicy"}),
        ({"cleanPodPolicy": "All"}, set()),
        ({"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 1, "backoffLimit": 1, "activeDeadlineSeconds": 1}, set()),
        ({"cleanPodPolicy": "All", "cronPolicy": {"schedule": "0 3 * * *", "suspend": True, "historyLimit": 1}}, set()),
        ({"cleanPodPolicy": "All", "cronPolicy": {"schedule": "@every 1h"}}, {"spec.cronPolicy"}),
        (
            {"cleanPodPolicy": "All", "schedulingPolicy": {"queue": "a", "minAvailable": 1, "priorityClassName": "b"}},
            set(),
        ),
        ({"cleanPodPolicy": "All", "schedulingPolicy": {"priority": 5}}, {"spec.schedulingPolicy.priority"}),
        (
            {"cleanPodPolicy": "All", "memoryTuningPolicy": {"plasmaStore": "/etc/pstore", "lockFreeFileIO": False}},
            {"spec.memoryTuningPolicy.plasmaStore", "spec.memoryTuningPolicy.lockFreeFileIO"},
        ),
        (
            {"cleanPodPolicy": "All", "workerMemoryTuningPolicy": {"plasmaStore": "/x", "lockFreeFileIO": True}},
            {"spec.workerMemoryTuningPolicy.plasmaStore"},
        ),
        (
            {"cleanPodPolicy": "All", "memoryTuningPolicy": {"spillDirs": ["/x"], "workerCachePercentage": 50}},
            set(),
        ),
    ],
)  # fmt: skip
def test_only_fields_without_their_effect_are_listed(spec: Object, listed: set[str]) -> None:
    assert not_honoured(**spec) == ALWAYS_LISTED | listed


def test_queue_is_listed_where_volcano_is_missing() -> None:
    policy = {"queue": "a", "minAvailable": 2}
    both = {"spec.schedulingPolicy.queue", "spec.schedulingPolicy.minAvailable"}
    assert not_honoured({"podGroup": ""}, schedulingPolicy=policy) >= both
    assert not not_honoured({"podGroup": "mars-test-demo"}, schedulingPolicy=policy) & both


def test_what_is_listed_is_written_once_per_generation() -> None:
    found = job()
    first = marsjob.course(found, {}, [], (), NOW)
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
        ([HEAD, pod(restarts=1, **waiting(), lastState=ended(1)["state"])], RUNNING, "Running"),  # it is not replaced
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


def worker_with(policy: str | None, replicas: int = 2, **more: Any) -> dict[str, Any]:
    roles = document()["spec"]["marsReplicaSpecs"]
    roles["Worker"] |= {"restartPolicy": policy, "replicas": replicas, **more}
    return {"marsReplicaSpecs": roles}


def restarted(code: int, reason: str = "Error") -> Object:
    """A worker whose container ended and is to be started again."""
    return pod(restarts=1, **waiting(), lastState={"terminated": {"exitCode": code, "reason": reason}})


@pytest.mark.parametrize(
    ("policy", "worker", "is_replaced"),
    [
        ("Always", restarted(0), True), ("Always", restarted(1), True),
        ("OnFailure", restarted(1), True), ("OnFailure", restarted(0), False),
        ("Never", restarted(1), False), ("Never", restarted(137), False),
        ("ExitCode", restarted(1), False), ("ExitCode", restarted(137), True), ("ExitCode", restarted(143), True),
        ("ExitCode", restarted(1, "OOMKilled"), True), (None, restarted(1), False), (None, restarted(130), True),
        ("Never", pod(phase="Failed", containerStatuses=[]), False),
    ],
)  # fmt: skip
def test_policy_of_the_workers_says_whether_one_that_ended_is_replaced(
    policy: str, worker: Object, is_replaced: bool
) -> None:
    state, course = after([HEAD, pod(), worker], RUNNING, **worker_with(policy))
    name = worker["metadata"]["name"]
    assert course.changes.get("lostWorkers", {}) == ({} if is_replaced else {name: "default"})
    assert state == ("Restarting" if is_replaced else "Running")
    specified = marsjob.desired(job(**worker_with(policy)))
    desired = marsjob.settle(specified, course.changes)
    (group,) = desired.shape.workers
    assert group.replicas == (2 if is_replaced else 1)
    assert (name in desired.drain) is not is_replaced
    if not is_replaced:
        assert course.changes["replicaStatuses"]["Worker"]["failed"] == 1
        later = follow(job(**worker_with(policy)), {**RUNNING, **course.changes}, [HEAD, pod()], (), NOW)
        assert "lostWorkers" not in {key for key, value in later.changes.items() if value != course.changes.get(key)}


def test_workers_that_end_because_of_the_head_are_replaced() -> None:
    spec = {**worker_with("Never")}
    spec["marsReplicaSpecs"]["Scheduler"]["restartPolicy"] = "Always"
    at = timestamp(NOW)
    worker = pod(restarts=1, lastState={"terminated": {"exitCode": 1, "finishedAt": at}})
    down = pod("head", **ended(1))
    assert "lostWorkers" not in after([down, worker], RUNNING, **spec)[1].changes
    running = {"state": {"running": {"startedAt": at}}, "lastState": ended(1)["state"]}
    up = pod("head", restarts=1, **running)
    assert "lostWorkers" not in after([up, worker], RUNNING, **spec)[1].changes
    late = timestamp(NOW + 60)
    worker = pod(restarts=1, lastState={"terminated": {"exitCode": 1, "finishedAt": late}})
    assert "lostWorkers" in after([up, worker], RUNNING, **spec)[1].changes


@pytest.mark.parametrize(
    ("policy", "reason", "stay"),
    [
        ("None", "JobFailed", True), ("None", "JobSucceeded", True), ("None", "DeadlineExceeded", False),
        ("None", "BackoffLimitExceeded", False), ("Running", "JobFailed", False), ("All", "JobFailed", False),
    ],
)  # fmt: skip
def test_pods_stay_if_the_scheduler_ended_the_job_and_the_policy_is_none(policy: str, reason: str, stay: bool) -> None:
    (kind, _) = marsjob.RESOURCE_KINDS
    status = {"completionTime": "x", "conditions": [{"type": "Failed", "reason": reason}]}
    assert kind.is_left_alone(job(cleanPodPolicy=policy), status) is stay
    assert not kind.is_left_alone(job(cleanPodPolicy=policy), RUNNING)
    assert not marsjob.settle(marsjob.desired(job()), status).running


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
