"""Jobs in a queue of Kueue's own controller, with its webhooks, on simulated pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from lab.api import Object
from lab.cluster import Lab
from lab.kwok import POD
from lab.wait import until
from tests.api.stage import Operator, Stage
from tests.api.test_jobs import SECONDS
from tests.api.test_marsjob import NAME as MARS_JOB
from tests.api.test_marsjob import await_state, jobs, serve_mars_jobs
from tests.api.test_queues import GROUP, Queue, flavor
from tests.marsjob import document

from lab import kueue
from oars.operator.queues import LABEL

Operators = Callable[..., Operator]
OURS = {"frameworks": ["batch/job"], "externalFrameworks": ["ComputeJob.v1alpha1.oars.dev"]}

# The first test builds the controller, if it is not in the lab's cache.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def queue(request: pytest.FixtureRequest, stage: Stage, lab: Lab) -> Iterator[Queue]:
    """Queue team-a has the quota for one job. Its parameter: more of Kueue's configuration."""
    with kueue.controller(lab, **getattr(request, "param", {})):
        found = Queue(stage)
        create_queue(found)
        yield found


def create_queue(queue: Queue, name: str = "team-a", quota: str = "all", cpu: str = "2") -> None:
    """The LocalQueue, and its ClusterQueue, which is named like its quota."""
    flavor(queue, "any", {})
    preemption = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": resources(cpu)}
    create(queue, f"/{GROUP}/clusterqueues", "ClusterQueue", quota, spec=spec)
    path = queue.kube.path("localqueues", GROUP)
    create(queue, path, "LocalQueue", name, spec={"clusterQueue": quota})
    ready = ("Active", "True")
    until("the queue admits", lambda: ready in conditions(queue.api.get(f"{path}/{name}")), SECONDS)


def resources(cpu: str) -> list[Object]:
    quotas = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "1Ti"}]
    return [{"coveredResources": ["cpu", "memory"], "flavors": [{"name": "any", "resources": quotas}]}]


def create(queue: Queue, path: str, kind: str, name: str, **fields: object) -> None:
    body = {"apiVersion": GROUP.removeprefix("apis/"), "kind": kind, "metadata": {"name": name}, **fields}
    queue.api.create(path, body)


def conditions(found: Object) -> list[tuple[str, str]]:
    return [(each["type"], each["status"]) for each in (found.get("status") or {}).get("conditions") or ()]


def admitted(queue: Queue) -> int:
    return int(queue.api.get(f"/{GROUP}/clusterqueues/all")["status"]["admittedWorkloads"])


def test_second_job_waits_until_the_first_has_ended(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("first")
    queue.run_driver("first")
    queue.await_state("first", "Running")
    until("Kueue knows that it runs", lambda: queue.has("first-1", "PodsReady"), SECONDS)
    queue.submit("second")
    message = until("Kueue explains", lambda: explained(queue, "second"), SECONDS)
    assert "insufficient unused quota for cpu" in message
    assert (queue.status("second")["state"], queue.clusters("second")) == ("Queued", [])
    until("only one is admitted", lambda: admitted(queue) == 1, SECONDS)
    queue.end_driver("first", 1, 0)
    queue.await_state("first", "Succeeded")
    queue.end_driver("second", 1, 0)
    queue.await_state("second", "Succeeded")
    until("the quota is free", lambda: admitted(queue) == 0, SECONDS)
    for job in ("first", "second"):
        queue.api.delete(queue.path(job))
    until("their Workloads are gone", lambda: not queue.workloads(), SECONDS)


def explained(queue: Queue, name: str) -> str:
    status = queue.status(name)
    message = str(status.get("message", ""))
    return message if status.get("reason") == "QueueWaiting" and "quota" in message else ""


def test_job_of_higher_priority_takes_the_quota_and_the_other_one_returns(queue: Queue, operators: Operators) -> None:
    create(queue, f"/{GROUP}/workloadpriorityclasses", "WorkloadPriorityClass", "urgent", value=1000)
    operators()
    queue.submit("guest", recoveries=0)
    queue.run_driver("guest")
    queue.await_state("guest", "Running")
    queue.submit("owner", priority="urgent")
    queue.run_driver("owner")
    queue.await_state("owner", "Running")
    attempt = queue.status("guest")["attempts"][0]
    assert (attempt["outcome"], attempt["reason"]) == ("Stopped", "QueueEvicted")
    assert "Preempted" in attempt["message"]
    queue.await_workload("guest-2")
    assert (queue.status("guest")["state"], queue.clusters("guest")) == ("Queued", [])
    until("only one is admitted", lambda: admitted(queue) == 1, SECONDS)
    queue.end_driver("owner", 1, 0)
    queue.await_state("owner", "Succeeded")
    queue.end_driver("guest", 2, 0)
    assert queue.await_state("guest", "Succeeded")["record"]["lost"] == 0


def test_marsjob_waits_for_its_quota(queue: Queue, operators: Operators) -> None:
    serve_mars_jobs(queue.stage)
    operators(adopt="marsjob")
    queue.submit("first")
    queue.run_driver("first")
    queue.await_state("first", "Running")
    job = document("mars-image:1", **POD)
    job["metadata"] |= {"namespace": queue.kube.namespace, "labels": {LABEL: "team-a"}}
    for role in job["spec"]["marsReplicaSpecs"].values():
        for container in role["template"]["spec"]["containers"]:
            container["resources"] = {"requests": {"cpu": "400m", "memory": "1Gi"}}
    queue.kube.kubectl("create", "-f", "-", text=json.dumps(job))
    waiting = await_state(queue.stage, "Queuing")
    until("Kueue explains", lambda: "insufficient unused quota" in mars_message(queue), SECONDS)
    assert not queue.stage.pods(MARS_JOB), waiting
    queue.end_driver("first", 1, 0)
    await_state(queue.stage, "Running")
    until("Kueue knows that it runs", lambda: queue.has(MARS_JOB, "PodsReady"), SECONDS)
    queue.api.delete(f"{jobs(queue.stage)}/{MARS_JOB}")
    until("its Workload is gone", lambda: MARS_JOB not in queue.workloads(), SECONDS)
    until("the quota is free", lambda: admitted(queue) == 0, SECONDS)


def mars_message(queue: Queue) -> str:
    found = queue.api.get(f"{jobs(queue.stage)}/{MARS_JOB}")["status"]
    return str(found["conditions"][-1].get("message", ""))


@pytest.mark.parametrize("queue", [{"manageJobsWithoutQueueName": True, "integrations": OURS}], indirect=True)
def test_kueue_that_manages_all_jobs_leaves_drivers_in_a_queue_alone(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("again", retries=1)
    queue.end_driver("again", 1, 3)
    queue.end_driver("again", 2, 0)
    queue.await_state("again", "Succeeded")
    assert queue.workloads() == ["again-1", "again-2"]


def test_driver_that_kueue_holds_back_starts_when_its_job_is_resumed(queue: Queue, operators: Operators) -> None:
    """The queue `default` takes all Jobs of its namespace, and our kinds are not among Kueue's externalFrameworks."""
    create_queue(queue, "default", "none", cpu="0")
    operators()
    queue.create("plain")
    until("it is explained", lambda: "Kueue" in queue.status("plain").get("message", ""), SECONDS)
    assert queue.status("plain")["state"] == "Starting"
    queue.api.patch(f"/{GROUP}/clusterqueues/none", {"spec": {"resourceGroups": resources("2")}})
    queue.end_driver("plain", 1, 0)
    assert [each["n"] for each in queue.await_state("plain", "Succeeded")["attempts"]] == [1]
