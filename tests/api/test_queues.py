"""Jobs in a queue, on a real control plane with Kueue's CRDs. The test admits and evicts as Kueue does; Kueue's own
controller does in test_kueue.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from lab.api import ApiError, Object
from lab.wait import until
from tests.api.stage import Operator, Stage, group, resource
from tests.api.test_jobs import SECONDS, Jobs

from lab import kueue
from oars.operator import crd
from oars.operator.queues import LABEL, PRIORITY
from oars.spec.cluster import API_VERSION
from oars.spec.job import JOB_KIND

Operators = Callable[..., Operator]
GROUP = "apis/kueue.x-k8s.io/v1beta2"
NODE_TYPE = "kubernetes.io/os"  # a label that simulated nodes have


class Queue(Jobs):
    """The ComputeJobs of a test's namespace, and the Workloads that stand for them."""

    def submit(self, name: str, queue: str = "team-a", priority: str = "", **spec: Any) -> Object:
        cluster = resource("any", group(replicas=2))["spec"]
        body = {"cluster": cluster, "entrypoint": ["python", "train.py"], "backoff": {"first": "0.1s"}, **spec}
        labels = {LABEL: queue, **({PRIORITY: priority} if priority else {})}
        metadata = {"name": name, "labels": labels}
        return self.api.create(
            self.path(), {"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": metadata, "spec": body}
        )

    def workload_path(self, name: str = "") -> str:
        path = self.kube.path("workloads", GROUP)
        return f"{path}/{name}" if name else path

    def workloads(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.api.get(self.workload_path())["items"])

    def await_workload(self, name: str) -> Object:
        until(f"there is Workload {name}", lambda: name in self.workloads(), SECONDS)
        found: Object = self.api.get(self.workload_path(name))
        return found

    def set_conditions(self, workload: str, *changed: tuple[str, bool, str, str], **status: Any) -> None:
        """Write conditions as Kueue does, beside those of others."""
        found = self.api.get(self.workload_path(workload)).get("status") or {}
        conditions = {each["type"]: each for each in found.get("conditions") or ()}
        for kind, is_true, reason, message in changed:
            conditions[kind] = {
                "type": kind,
                "status": "True" if is_true else "False",
                "reason": reason,
                "message": message,
                "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        body = {"status": {**status, "conditions": list(conditions.values())}}
        self.api.patch(f"{self.workload_path(workload)}/status", body)

    def admit(self, name: str, flavor: str = "any") -> None:
        sets = self.await_workload(name)["spec"]["podSets"]
        assigned = [{"name": each["name"], "count": each["count"], "flavors": {"cpu": flavor}} for each in sets]
        admission = {"clusterQueue": "all", "podSetAssignments": assigned}
        reserved = ("QuotaReserved", True, "QuotaReserved", "Quota is reserved.")
        self.set_conditions(name, reserved, ("Admitted", True, "Admitted", "Admitted."), admission=admission)

    def evict(self, name: str) -> None:
        self.set_conditions(name, ("Evicted", True, "Preempted", "Another team takes its share."))

    def has(self, workload: str, condition: str) -> bool:
        status = self.api.get(self.workload_path(workload)).get("status") or {}
        return any(e["type"] == condition and e["status"] == "True" for e in status.get("conditions") or ())

    def await_reason(self, name: str, reason: str) -> str:
        until(f"{name} is {reason}", lambda: self.status(name).get("reason") == reason, SECONDS)
        return str(self.status(name)["message"])

    def clusters(self, name: str) -> list[str]:
        return self.objects(crd.PLURAL, f"apis/{API_VERSION}", name)


@pytest.fixture
def queue(stage: Stage) -> Queue:
    """Kueue's kinds are served, and there is a flavor without labels."""
    kueue.serve(stage.kube.api)
    found = Queue(stage)
    flavor(found, "any", {})
    return found


def flavor(queue: Queue, name: str, labels: dict[str, str]) -> None:
    body = {"apiVersion": GROUP.removeprefix("apis/"), "kind": "ResourceFlavor", "metadata": {"name": name}}
    queue.api.apply(f"/{GROUP}/resourceflavors/{name}", {**body, "spec": {"nodeLabels": labels}})


def test_job_starts_when_it_is_admitted_and_frees_its_quota_at_the_end(queue: Queue, operators: Operators) -> None:
    operators()
    made = queue.submit("train")
    found = queue.await_workload("train-1")
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert found["spec"]["queueName"] == "team-a"
    sets = {each["name"]: each for each in found["spec"]["podSets"]}
    assert {name: each["count"] for name, each in sets.items()} == {"driver": 1, "head": 1, "workers-default": 2}
    requests = [c["resources"]["requests"] for c in sets["workers-default"]["template"]["spec"]["containers"]]
    assert requests[0]["cpu"] == "100m" and requests[0]["memory"]
    queue.set_conditions("train-1", ("QuotaReserved", False, "Pending", "There is not enough cpu."))
    until("it is explained", lambda: "not enough cpu" in queue.status("train").get("message", ""), SECONDS)
    status = queue.status("train")
    assert (status["state"], status["reason"], status["attempt"]) == ("Queued", "QueueWaiting", 0)
    assert not queue.clusters("train")
    flavor(queue, "spot", {NODE_TYPE: "linux"})
    queue.admit("train-1", "spot")
    pod = queue.run_driver("train")
    assert pod["spec"]["nodeSelector"][NODE_TYPE] == "linux"
    assert queue.stage.pods("train-1", "head")[0]["spec"]["nodeSelector"][NODE_TYPE] == "linux"
    queue.await_state("train", "Running")
    until("Kueue knows that it runs", lambda: queue.has("train-1", "PodsReady"), SECONDS)
    assert not queue.has("train-1", "Finished")
    queue.end_driver("train", 1, 0)
    queue.await_state("train", "Succeeded")
    until("its quota is free", lambda: queue.has("train-1", "Finished"), SECONDS)
    assert not queue.stage.kube.pods("oars.dev/cluster%3Dtrain-1"), "not before its pods are gone"
    queue.api.delete(queue.path("train"))
    until("its Workload is gone", lambda: not queue.workloads(), SECONDS)


def test_evicted_job_stops_and_returns_to_the_queue(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("guest", recoveries=0)
    queue.admit("guest-1")
    queue.run_driver("guest")
    queue.await_state("guest", "Running")
    queue.evict("guest-1")
    queue.await_workload("guest-2")
    assert queue.has("guest-1", "Finished"), "the next Workload does not compete with its own predecessor"
    queue.await_state("guest", "Queued")
    assert not queue.clusters("guest")
    attempt = queue.status("guest")["attempts"][0]
    assert (attempt["outcome"], attempt["reason"]) == ("Stopped", "QueueEvicted")
    assert "Another team" in attempt["message"]
    queue.admit("guest-2")
    queue.end_driver("guest", 2, 0)
    assert queue.await_state("guest", "Succeeded")["record"]["lost"] == 0


def test_retry_returns_to_the_queue_and_a_cancelled_job_leaves_it(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("again", retries=1)
    queue.admit("again-1")
    queue.end_driver("again", 1, 3)
    queue.await_workload("again-2")
    queue.await_state("again", "Queued")
    assert queue.has("again-1", "Finished")
    queue.api.patch(queue.path("again"), {"spec": {"suspend": True}})
    queue.await_state("again", "Suspended")
    until("it has left the queue", lambda: queue.workloads() == ["again-1"], SECONDS)
    queue.api.patch(queue.path("again"), {"spec": {"suspend": False}})
    queue.await_workload("again-2")
    queue.api.patch(queue.path("again"), {"metadata": {"annotations": {"oars.dev/cancel": "requested"}}})
    queue.await_state("again", "Cancelled")
    until("it has left the queue", lambda: queue.workloads() == ["again-1"], SECONDS)


def test_deactivated_and_deleted_workloads_stop_the_attempt(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("off")
    queue.await_workload("off-1")
    queue.api.patch(queue.workload_path("off-1"), {"spec": {"active": False}})
    assert "kubectl patch workload off-1" in queue.await_reason("off", "QueueDeactivated")
    queue.api.patch(queue.workload_path("off-1"), {"spec": {"active": True}})
    queue.admit("off-1")
    queue.run_driver("off")
    queue.await_state("off", "Running")
    queue.api.delete(queue.workload_path("off-1"))
    queue.await_workload("off-2")
    queue.await_state("off", "Queued")
    assert queue.status("off")["attempts"][0]["reason"] == "QueueEvicted"


def test_restarted_operator_does_not_stop_an_admitted_job(queue: Queue, operators: Operators) -> None:
    first = operators(identity="first")
    queue.submit("stays")
    queue.admit("stays-1")
    queue.run_driver("stays")
    queue.await_state("stays", "Running")
    first.stop()
    second = operators(identity="second")
    queue.submit("marker")
    queue.await_workload("marker-1")
    queue.end_driver("stays", 1, 0)
    status = queue.await_state("stays", "Succeeded")
    assert [each["n"] for each in status["attempts"]] == [1]
    assert not second.says("QueueEvicted")


def test_changed_job_asks_again(queue: Queue, operators: Operators) -> None:
    operators()
    queue.submit("grows")
    uid = queue.await_workload("grows-1")["metadata"]["uid"]
    queue.api.patch(queue.path("grows"), {"spec": {"cluster": {"replicas": 3}}})

    def requested() -> list[int]:
        try:
            found = queue.api.get(queue.workload_path("grows-1"))
        except ApiError:
            return []
        return [e["count"] for e in found["spec"]["podSets"] if found["metadata"]["uid"] != uid]

    until("it requests three workers", lambda: 3 in requested(), SECONDS)
    queue.api.patch(queue.path("grows"), {"metadata": {"labels": {LABEL: None}}})
    queue.end_driver("grows", 1, 0)
    queue.await_state("grows", "Succeeded")
    until("it has left the queue", lambda: not queue.workloads() or queue.has("grows-1", "Finished"), SECONDS)


def test_without_kueue_the_job_waits_and_says_why(queue: Queue, operators: Operators) -> None:
    kueue.remove(queue.api)
    operators()
    queue.submit("early")
    message = queue.await_reason("early", "QueueUnavailable")
    assert "Kueue is not installed" in message and "--queues" in message
    assert queue.status("early")["state"] == "Queued"
    kueue.serve(queue.api)
    queue.await_workload("early-1")
