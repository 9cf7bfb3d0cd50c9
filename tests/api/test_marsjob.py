"""MarsJobs on a real control plane with simulated pods: the document's example, its states, its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from lab.api import Object
from lab.kwok import POD
from lab.wait import until
from tests.api.stage import Operator, Stage
from tests.marsjob import document

from oars.operator import crd
from oars.places.kube import names

pytestmark = pytest.mark.timeout(300)

NAME = "mars-test-demo"
SECONDS = 90
Operators = Callable[..., Operator]


@pytest.fixture
def adopting(stage: Stage, operators: Operators) -> Stage:
    """An operator serves MarsJobs of both groups."""
    serve_mars_jobs(stage)
    operators(adopt="marsjob")
    return stage


def serve_mars_jobs(stage: Stage) -> None:
    for definition in crd.mars_jobs():
        stage.kube.api.apply(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}", definition
        )
    paths = [jobs(stage, group) for group in crd.MARS_JOB_GROUPS]
    until("MarsJobs are served", lambda: all(stage.kube.api.raw("GET", path)[0] == 200 for path in paths))


def jobs(stage: Stage, group: str = crd.MARS_JOB_GROUPS[0]) -> str:
    return str(stage.kube.path(crd.MARS_JOB_PLURAL, f"apis/{group}/v1alpha1"))


def create(stage: Stage, group: str = crd.MARS_JOB_GROUPS[0], **spec: Any) -> Object:
    """The document's example with another image and namespace, on simulated nodes."""
    job = document("mars-image:1", **POD)
    job["apiVersion"] = f"{group}/v1alpha1"
    job["metadata"]["namespace"] = stage.kube.namespace
    job["spec"] |= spec
    stage.kube.kubectl("create", "-f", "-", text=json.dumps(job))
    found: Object = stage.kube.api.get(f"{jobs(stage, group)}/{NAME}")
    return found


def status(stage: Stage, group: str = crd.MARS_JOB_GROUPS[0]) -> Object:
    found: Object = stage.kube.api.get(f"{jobs(stage, group)}/{NAME}").get("status") or {}
    return found


def state(stage: Stage, group: str = crd.MARS_JOB_GROUPS[0]) -> str:
    return str(((status(stage, group).get("conditions") or [{}])[-1]).get("type", ""))


def await_state(stage: Stage, wanted: str, group: str = crd.MARS_JOB_GROUPS[0]) -> Object:
    until(f"the job is {wanted}", lambda: state(stage, group) == wanted, SECONDS)
    return status(stage, group)


def exists(stage: Stage) -> bool:
    return bool(stage.kube.api.raw("GET", f"{jobs(stage)}/{NAME}")[0] == 200)


def left(stage: Stage) -> list[str]:
    query = f"?labelSelector={names.CLUSTER}%3D{NAME}"
    ingresses = stage.kube.api.get(stage.kube.path("ingresses", "apis/networking.k8s.io/v1") + query)["items"]
    return [*stage.left(NAME), *(each["metadata"]["name"] for each in ingresses)]


def addresses(stage: Stage, service: str) -> set[str]:
    """What the Service's name stands for: the names of the pods behind it."""
    query = f"?labelSelector=kubernetes.io/service-name%3D{service}"
    slices = stage.kube.api.get(stage.kube.path("endpointslices", "apis/discovery.k8s.io/v1") + query)["items"]
    return {end["targetRef"]["name"] for each in slices for end in each.get("endpoints") or ()}


def end_head(stage: Stage, code: int) -> None:
    """Its container ends."""
    (pod,) = stage.pods(NAME, "head")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    containers = pod["status"]["containerStatuses"]
    for each in containers:
        each |= {"ready": False, "state": {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}}
    path = f"{stage.kube.path('pods')}/{pod['metadata']['name']}/status"
    stage.kube.api.patch(path, {"status": {"containerStatuses": containers}})


def test_documents_example_runs_under_the_names_of_the_page(adopting: Stage) -> None:
    create(adopting)
    found = await_state(adopting, "Running")
    header, row = adopting.kube.kubectl("get", "marsjob").splitlines()
    assert header.split() == ["NAME", "STATE", "AGE", "TTL-AFTER-FINISHED", "MAX-LIFETIME"]
    assert row.split()[:2] == [NAME, "Running"]
    until("workers are counted", lambda: status(adopting)["replicaStatuses"]["Worker"] == {"active": 2}, SECONDS)
    assert found["webServiceAddresses"] == [f"mars.domain.com/mars/{adopting.kube.namespace}/{NAME}-webservice-0"]
    assert any("WebService.template" in each for each in status(adopting)["notHonoured"])

    (head,) = adopting.pods(NAME, "head")
    workers = {pod["metadata"]["name"] for pod in adopting.pods(NAME, "worker")}
    at_head = [f"{NAME}-scheduler-0", f"{NAME}-webservice-0"]
    until("the head resolves", lambda: all(addresses(adopting, each) for each in at_head), SECONDS)
    assert [addresses(adopting, each) for each in at_head] == [{head["metadata"]["name"]}] * 2
    each_worker = [f"{NAME}-worker-{number}" for number in range(2)]
    until("workers resolve", lambda: all(len(addresses(adopting, each)) == 1 for each in each_worker), SECONDS)
    assert set().union(*(addresses(adopting, each) for each in each_worker)) == workers
    listed = adopting.kube.kubectl("get", "pods", "-l", f"job-name={NAME},replica-type=worker", "-o", "name")
    assert len(listed.splitlines()) == 2

    ingress = adopting.kube.api.get(
        f"{adopting.kube.path('ingresses', 'apis/networking.k8s.io/v1')}/{NAME}-head"
    )  # networking.k8s.io/v1
    ((rule,),) = [ingress["spec"]["rules"]]
    assert rule["host"] == "mars.domain.com"
    assert rule["http"]["paths"][0]["path"].startswith(f"/mars/{adopting.kube.namespace}/{NAME}-webservice-0")

    adopting.kube.kubectl("delete", "marsjob", NAME)
    until("nothing is left", lambda: not left(adopting), SECONDS)


def test_end_of_the_scheduler_fails_the_job_and_stops_its_pods(adopting: Stage) -> None:
    """With cleanPodPolicy All."""
    create(adopting, cleanPodPolicy="All", ttlSecondsAfterFinished=3600)
    await_state(adopting, "Running")
    end_head(adopting, 1)
    found = await_state(adopting, "Failed")
    assert found["completionTime"] and found["conditions"][-1]["message"].startswith("The scheduler exited with code 1")
    until("its pods are gone", lambda: not adopting.pods(NAME), SECONDS)
    until("they are counted", lambda: status(adopting)["replicaStatuses"]["Worker"]["active"] == 0, SECONDS)
    assert state(adopting) == "Failed" and status(adopting)["replicaStatuses"]["Scheduler"] == {
        "active": 0,
        "failed": 1,
    }
    reasons = {event["reason"] for event in adopting.events(NAME)}
    assert {"JobCreated", "JobFailed"} <= reasons


def test_pods_stay_after_the_end_of_the_scheduler_until_the_ttl(adopting: Stage) -> None:
    """With the document's cleanPodPolicy, None."""
    create(adopting)
    await_state(adopting, "Running")
    until("it is complete", lambda: len(adopting.workers(NAME)) == 2, SECONDS)
    before = {pod["metadata"]["uid"] for pod in adopting.pods(NAME)}
    end_head(adopting, 0)
    await_state(adopting, "Succeeded")
    victim = adopting.pods(NAME, "worker")[0]["metadata"]["name"]
    adopting.kube.kubectl("annotate", "marsjob", NAME, "note=a-pass")  # the operator looks at it again
    adopting.kube.kubectl("delete", f"pod/{victim}", "--grace-period=0", "--force")
    until("Kubernetes replaces it", lambda: len(adopting.workers(NAME)) == 2, SECONDS)
    after = {pod["metadata"]["uid"] for pod in adopting.pods(NAME)}
    assert len(before & after) == 2 and len(after) == 3
    adopting.kube.api.patch(f"{jobs(adopting)}/{NAME}", {"spec": {"ttlSecondsAfterFinished": 1}})
    until("the job is gone", lambda: not exists(adopting), SECONDS)
    until("nothing is left", lambda: not left(adopting), SECONDS)


def test_spot_workers_have_their_labels_and_the_numbers_that_follow(adopting: Stage) -> None:
    roles = document("mars-image:1", **POD)["spec"]["marsReplicaSpecs"]
    roles["Worker"] |= {"replicas": 3, "spotReplicaSpec": {"spotReplicaNumber": 1, "labels": {"quota": "spot"}}}
    create(adopting, marsReplicaSpecs=roles)
    await_state(adopting, "Running")
    names_of = [f"{NAME}-worker-{number}" for number in range(3)]
    until("workers resolve", lambda: all(len(addresses(adopting, each)) == 1 for each in names_of), SECONDS)
    (spot,) = adopting.kube.pods("quota=spot")
    assert addresses(adopting, names_of[2]) == {spot["metadata"]["name"]}
    assert spot["metadata"]["labels"]["replica-index"] == "2"
    roles["Worker"]["replicas"] = 2  # one normal worker less: the spot worker gets its number
    adopting.kube.api.patch(f"{jobs(adopting)}/{NAME}", {"spec": {"marsReplicaSpecs": roles}})
    until("it is worker 1", lambda: addresses(adopting, names_of[1]) == {spot["metadata"]["name"]}, SECONDS)


def test_cron_policy_starts_runs_that_are_named_as_in_kubedl(adopting: Stage) -> None:
    """At the next minute."""
    created = create(adopting, cronPolicy={"schedule": "* * * * *", "concurrencyPolicy": "Forbid"})
    await_state(adopting, "Running")  # the job itself runs at once

    def runs() -> list[Object]:
        query = f"?labelSelector=kubedl.io/cron-name%3D{NAME}"
        listed: list[Object] = adopting.kube.api.get(jobs(adopting) + query)["items"]
        return listed

    until("a run has started", lambda: bool(runs()), SECONDS)
    (run,) = runs()
    name = run["metadata"]["name"]
    assert name.startswith(f"{NAME}-") and int(name.rpartition("-")[2]) % 60 == 0
    assert "cronPolicy" not in run["spec"] and run["spec"]["marsReplicaSpecs"] == created["spec"]["marsReplicaSpecs"]
    adopting.kube.api.patch(f"{jobs(adopting)}/{NAME}", {"spec": {"cronPolicy": {"suspend": True}}})
    path = f"{jobs(adopting)}/{name}"
    until(
        "it runs",
        lambda: (
            [each["type"] for each in adopting.kube.api.get(path).get("status", {}).get("conditions", ())][-1:]
            == ["Running"]
        ),
        SECONDS,
    )
    adopting.kube.kubectl("delete", "marsjob", NAME)
    until("its runs are gone with it", lambda: not runs() and not left(adopting), SECONDS)


@pytest.fixture
def volcano(stage: Stage) -> Iterator[None]:
    """The definition of Volcano's PodGroup, without its scheduler."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.volcano.sh"},
        "spec": {
            "group": "scheduling.volcano.sh",
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
            "versions": [{
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }],
        },
    }  # fmt: skip
    where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.volcano.sh"
    stage.kube.api.apply(where, definition)
    path = stage.kube.path("podgroups", "apis/scheduling.volcano.sh/v1beta1")
    until("PodGroups are served", lambda: stage.kube.api.raw("GET", path)[0] == 200)
    yield
    stage.kube.api.delete(where)
    until("PodGroups are not served", lambda: stage.kube.api.raw("GET", path)[0] == 404)


def test_job_with_a_queue_is_scheduled_by_volcano_as_a_whole(adopting: Stage, volcano: None) -> None:
    create(adopting, schedulingPolicy={"queue": "team-a", "minAvailable": 2})
    until("its pods wait for Volcano", lambda: len(adopting.pods(NAME)) == 3, SECONDS)
    group = adopting.kube.api.get(f"{adopting.kube.path('podgroups', 'apis/scheduling.volcano.sh/v1beta1')}/{NAME}")
    assert (group["spec"]["queue"], group["spec"]["minMember"]) == ("team-a", 2)
    assert group["spec"]["minResources"] == {"cpu": "6000m", "memory": str(6 * 2**30)}
    for pod in adopting.pods(NAME):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"][names.GANG] == NAME
    until("the rest is listed", lambda: "notHonoured" in status(adopting), SECONDS)
    assert not any("schedulingPolicy" in each for each in status(adopting)["notHonoured"])


def test_job_with_a_queue_runs_without_volcano_and_says_so(adopting: Stage) -> None:
    create(adopting, schedulingPolicy={"queue": "team-a"})
    await_state(adopting, "Running")
    assert any(each.startswith("spec.schedulingPolicy.queue:") for each in status(adopting)["notHonoured"])


def test_job_fails_at_its_deadline_and_is_deleted_after_its_ttl(adopting: Stage) -> None:
    create(adopting, activeDeadlineSeconds=20, ttlSecondsAfterFinished=10)
    await_state(adopting, "Running")
    found = await_state(adopting, "Failed")
    assert found["conditions"][-1]["reason"] == "DeadlineExceeded"
    until("its pods are gone", lambda: not adopting.pods(NAME), SECONDS)
    until("the job is gone", lambda: not exists(adopting), SECONDS)
    until("nothing is left", lambda: not left(adopting), SECONDS)


def test_workers_keep_their_numbers_when_one_is_replaced_and_their_services_go(adopting: Stage) -> None:
    create(adopting)
    second = f"{NAME}-worker-1"
    until("worker 1 resolves", lambda: addresses(adopting, second), SECONDS)
    (lost,) = addresses(adopting, second)
    first = addresses(adopting, f"{NAME}-worker-0")
    adopting.kube.kubectl("delete", f"pod/{lost}", "--grace-period=0", "--force")
    until("another is worker 1", lambda: addresses(adopting, second) - {lost, ""}, SECONDS)
    assert addresses(adopting, f"{NAME}-worker-0") == first


def test_job_of_the_other_group_is_served_beside_it(adopting: Stage) -> None:
    _, old = crd.MARS_JOB_GROUPS
    create(adopting, old)
    await_state(adopting, "Running", old)
    adopting.kube.kubectl("delete", f"marsjobs.{old}", NAME)
    until("nothing is left", lambda: not left(adopting), SECONDS)


def test_spec_that_cannot_run_is_shown_and_runs_once_it_is_corrected(adopting: Stage) -> None:
    create(adopting, memoryTuningPolicy={"workerCacheSize": "much"})
    found = await_state(adopting, "Failed")
    assert found["conditions"][-1]["reason"] == "InvalidSpec" and "completionTime" not in found
    adopting.kube.api.patch(f"{jobs(adopting)}/{NAME}", {"spec": {"memoryTuningPolicy": None}})
    await_state(adopting, "Running")
