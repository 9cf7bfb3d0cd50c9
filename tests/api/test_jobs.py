"""ComputeJobs on a real control plane with simulated pods: the operator creates a cluster and a driver per attempt.

Set OARS_FIGURES to a directory to store there what became of the jobs while operators were killed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.api import ApiError, Object
from lab.errors import Timeout
from lab.wait import until
from tests.api.stage import SHORT_LEASE, SIMULATED_POD, Operator, Stage, group, resource

from oars.operator import crd
from oars.places.kube import names
from oars.spec.cluster import API_VERSION
from oars.spec.job import JOB_KIND

Operators = Callable[..., Operator]
SECONDS = 200
KILLS = 5

# Other tests may have left a real node, whose kubelet would change what a test writes.
NO_NODE = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "none"}}}


class Jobs:
    """The ComputeJobs of one test's namespace, and the pods of their drivers."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.api, self.kube = stage.kube.api, stage.kube
        self._driver_status: dict[str, Object] = {}  # name of a driver's pod → its status

    def path(self, name: str = "") -> str:
        path = self.kube.path(crd.JOB_PLURAL, f"apis/{API_VERSION}")
        return f"{path}/{name}" if name else path

    def create(self, name: str, **spec: Any) -> Object:
        cluster = resource("any", group(replicas=1))["spec"]
        body = {"cluster": cluster, "entrypoint": ["python", "train.py"], "driver": {"pod": NO_NODE}, **spec}
        manifest = {"apiVersion": API_VERSION, "kind": JOB_KIND, "metadata": {"name": name}, "spec": body}
        return self.api.create(self.path(), manifest)

    def status(self, name: str) -> Object:
        found: Object = self.api.get(self.path(name)).get("status") or {}
        return found

    def await_state(self, name: str, *states: str, seconds: float = SECONDS) -> Object:
        def reached() -> Object:
            self._sync_drivers(name)
            status = self.status(name)
            return status if status.get("state") in states else {}

        try:
            found: Object = until(f"{name} is {states}", reached, seconds)
        except Timeout as error:
            pods = [pod["status"] for pod in self.drivers(name)]
            raise AssertionError(f"{error} It is {self.status(name)}. Its drivers: {pods}") from error
        return found

    def drivers(self, name: str) -> list[Object]:
        found: list[Object] = self.kube.pods(f"{names.JOB}%3D{name}")
        return found

    def objects(self, kind: str, api: str, name: str) -> list[str]:
        listed = self.api.get(f"{self.kube.path(kind, api)}?labelSelector={names.JOB}%3D{name}")["items"]
        return sorted(each["metadata"]["name"] for each in listed)

    def run_driver(self, name: str, attempt: int = 1) -> Object:
        """The driver's pod runs. No node takes it, so that the test decides when it ends."""

        def pods() -> list[Object]:
            return [p for p in self.drivers(name) if p["metadata"]["labels"][names.ATTEMPT] == str(attempt)]

        pod = until(f"attempt {attempt} of {name} has a pod", pods, SECONDS)[0]
        self._set_status(pod, "Running", {"running": {"startedAt": _now()}})
        return pod

    def end_driver(self, name: str, attempt: int, code: int) -> None:
        """The driver's pod ends with this exit code."""
        self.end_pod(self.run_driver(name, attempt), code)

    def end_pod(self, pod: Object, code: int) -> None:
        ended = {"terminated": {"exitCode": code, "finishedAt": _now()}}
        self._set_status(pod, "Succeeded" if code == 0 else "Failed", ended)

    def _set_status(self, pod: Object, phase: str, state: Object) -> None:
        container = {"name": "driver", "image": "any", "imageID": "", "restartCount": 0, "ready": False, "state": state}
        self._driver_status[pod["metadata"]["name"]] = {"phase": phase, "containerStatuses": [container]}
        self._write_status(pod["metadata"]["name"])

    def _write_status(self, pod: str) -> None:
        self.api.patch(self.kube.path(f"pods/{pod}/status", "api/v1"), {"status": self._driver_status[pod]})

    def _sync_drivers(self, name: str) -> None:
        """As a kubelet: write the status again if somebody else has changed it."""
        for pod in self.drivers(name):
            status = self._driver_status.get(pod["metadata"]["name"])
            if status is not None and status["phase"] != pod["status"]["phase"]:
                try:
                    self._write_status(pod["metadata"]["name"])
                except ApiError as error:
                    if error.status != 404:  # deleted meanwhile
                        raise


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@pytest.fixture
def jobs(stage: Stage) -> Jobs:
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.JOB_NAME}"
    stage.kube.api.apply(definition, crd.compute_job())
    found = Jobs(stage)
    until("the kind is served", lambda: stage.kube.api.raw("GET", found.path())[0] == 200)
    return found


def test_job_gets_a_cluster_and_a_driver_and_leaves_a_verdict(jobs: Jobs, operators: Operators) -> None:
    operators()
    made = jobs.create("train", deadline="8h", ttlAfterFinished="24h")
    jobs.run_driver("train")
    jobs.await_state("train", "Running")
    job = jobs.api.get(jobs.kube.path("jobs/train-1", "apis/batch/v1"))
    assert job["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert (job["spec"]["backoffLimit"], job["spec"]["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert jobs.stage.get("train-1")["metadata"]["ownerReferences"][0]["kind"] == JOB_KIND
    jobs.end_driver("train", 1, 0)
    status = jobs.await_state("train", "Succeeded")
    assert (status["exitCode"], status["cluster"], status["engine"]) == (0, "train-1", "simulated")
    assert [each["type"] for each in status["conditions"]] == ["Admitted", "ClusterReady", "Complete"]
    assert status["completionTime"] >= status["startTime"]
    until("its cluster is gone", lambda: not jobs.objects(crd.PLURAL, f"apis/{API_VERSION}", "train"), SECONDS)
    assert jobs.objects("configmaps", "api/v1", "train") == ["train-1-log"]
    shown = jobs.kube.kubectl("get", "computejobs").splitlines()
    assert shown[0].split() == ["NAME", "STATE", "AGE", "TTL-AFTER-FINISHED", "MAX-LIFETIME", "ENGINE", "CLUSTER"]
    row = shown[1].split()
    assert (row[0], row[1], *row[3:]) == ("train", "Succeeded", "24h", "8h", "simulated", "train-1")


def test_stopped_driver_does_not_start_when_somebody_resumes_its_job(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("train")
    jobs.run_driver("train")
    jobs.await_state("train", "Running")
    jobs.api.patch(jobs.path("train"), {"metadata": {"annotations": {names.CANCEL: "requested"}}})
    jobs.await_state("train", "Cancelled")
    path = jobs.kube.path("jobs/train-1", "apis/batch/v1")
    jobs.api.patch(path, {"spec": {"suspend": False}})

    def is_resumed() -> bool:
        return any(each["reason"] == "JobResumed" for each in jobs.api.get(path)["status"]["conditions"])

    until("Kubernetes has resumed it", is_resumed, SECONDS)
    assert not jobs.drivers("train")


def test_bad_exits_are_retried_on_new_clusters_until_the_budget_is_used(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("again", retries=1, backoff={"first": "0.1s"})
    jobs.end_driver("again", 1, 3)
    jobs.end_driver("again", 2, 4)
    status = jobs.await_state("again", "Failed")
    assert [(each["n"], each["exitCode"], each["outcome"]) for each in status["attempts"]] == [
        (1, 3, "Failed"),
        (2, 4, "Failed"),
    ]
    assert status["exitCode"] == 4
    assert jobs.objects("jobs", "apis/batch/v1", "again") == ["again-1", "again-2"]


def test_lost_head_gives_another_attempt(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("lost", backoff={"first": "0.1s"})
    jobs.run_driver("lost")
    jobs.await_state("lost", "Running")
    head = jobs.stage.pods("lost-1", "head")[0]["metadata"]["name"]
    jobs.api.delete(jobs.kube.path(f"pods/{head}", "api/v1"))
    jobs.end_driver("lost", 2, 0)
    status = jobs.await_state("lost", "Succeeded")
    assert [each.get("reason") for each in status["attempts"]] == ["HeadLost", ""]


def test_cancel_and_deletion_leave_no_driver(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("stop")
    jobs.run_driver("stop")
    jobs.await_state("stop", "Running")
    jobs.api.patch(jobs.path("stop"), {"metadata": {"annotations": {names.CANCEL: "requested"}}})
    assert jobs.await_state("stop", "Cancelled")["reason"] == "Cancelled"
    assert all("deletionTimestamp" in pod["metadata"] for pod in jobs.drivers("stop"))
    jobs.api.delete(jobs.path("stop"))
    until("nothing is left", lambda: not jobs.objects("configmaps", "api/v1", "stop"), SECONDS)


def test_suspend_stops_all_and_resume_starts_another_attempt(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("pause")
    jobs.run_driver("pause")
    jobs.await_state("pause", "Running")
    jobs.api.patch(jobs.path("pause"), {"spec": {"suspend": True}})
    jobs.await_state("pause", "Suspended")
    assert not jobs.objects(crd.PLURAL, f"apis/{API_VERSION}", "pause")
    jobs.api.patch(jobs.path("pause"), {"spec": {"suspend": False}})
    jobs.end_driver("pause", 2, 0)
    assert jobs.await_state("pause", "Succeeded")["attempt"] == 2


def test_invalid_and_untrusted_specs_are_explained_and_can_be_corrected(jobs: Jobs, operators: Operators) -> None:
    operators(trust_authors=False)
    jobs.create("bad", cluster={"engine": "nonesuch"})
    until("it is explained", lambda: jobs.status("bad").get("reason") == "InvalidSpec", SECONDS)
    assert "nonesuch" in jobs.status("bad")["message"]
    jobs.create(
        "sly",
        cluster={"engine": "simulated"},
        secrets=[{"name": "s", "key": "k", "as": "S"}],
        driver={"pod": {"spec": {"hostNetwork": True}}},
    )
    until("it is refused", lambda: "secrets" in jobs.status("sly").get("message", ""), SECONDS)
    assert "driver.pod" in jobs.status("sly")["message"]
    assert not jobs.objects(crd.PLURAL, f"apis/{API_VERSION}", "sly")


def test_attempt_that_is_stopped_before_its_start_cannot_start_later(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("early", cluster={"name": "missing"}, recoveries=0)
    assert jobs.await_state("early", "Failed")["reason"] == "ClusterFailed"
    job = jobs.api.get(jobs.kube.path("jobs/early-1", "apis/batch/v1"))
    assert job["spec"]["suspend"] is True, "a request to create the driver that arrives now is refused"
    assert not jobs.drivers("early")


def test_cluster_of_somebody_else_is_left_alone(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.stage.create(resource("taken-1", group(replicas=0)))
    jobs.create("taken", backoff={"first": "0.1s"})
    jobs.end_driver("taken", 2, 0)
    status = jobs.await_state("taken", "Succeeded")
    assert [each.get("reason") for each in status["attempts"]] == ["ClusterFailed", ""]
    assert not jobs.stage.get("taken-1")["metadata"].get("ownerReferences")


def test_cleanup_removes_the_drivers_pod_once(jobs: Jobs, operators: Operators) -> None:
    operator = operators()
    jobs.create("tidy", cleanup={"policy": "all"})
    jobs.end_driver("tidy", 1, 0)
    jobs.await_state("tidy", "Succeeded")
    until("its pod is gone", lambda: not jobs.drivers("tidy"), SECONDS)
    until("its cluster is gone", lambda: not jobs.objects(crd.PLURAL, f"apis/{API_VERSION}", "tidy"), SECONDS)
    jobs.create("after")
    jobs.end_driver("after", 1, 0)
    jobs.await_state("after", "Succeeded")
    removals = [line for line in operator.lines if "remove driver" in line and "tidy" in line]
    assert 1 <= len(removals) <= 10, "not once in every pass"


def test_job_whose_spec_becomes_invalid_continues_and_can_be_cancelled(jobs: Jobs, operators: Operators) -> None:
    operators()
    jobs.create("edited", deadline="8h")
    jobs.run_driver("edited")
    jobs.await_state("edited", "Running")
    jobs.api.patch(jobs.path("edited"), {"spec": {"cluster": {"engine": "nonesuch"}}})
    until("it is explained", lambda: jobs.status("edited").get("reason") == "InvalidSpec", SECONDS)
    assert jobs.status("edited")["state"] == "Running"
    limit = jobs.api.get(jobs.kube.path("jobs/edited-1", "apis/batch/v1"))["spec"]["activeDeadlineSeconds"]
    assert 8 * 3600 < limit + 300 < 9 * 3600
    jobs.api.patch(jobs.path("edited"), {"metadata": {"annotations": {names.CANCEL: "requested"}}})
    jobs.await_state("edited", "Cancelled")


@pytest.mark.timeout(900)
def test_schedule_runs_jobs_that_it_owns(jobs: Jobs, operators: Operators) -> None:
    """A run that has not ended is replaced; the last one is cancelled with the schedule and deleted with it."""

    def runs() -> list[str]:
        listed = jobs.api.get(f"{jobs.path()}?labelSelector={names.SCHEDULE}%3Dnightly")["items"]
        return sorted(each["metadata"]["name"] for each in listed)

    operators()
    made = jobs.create("nightly", schedule={"cron": "* * * * *", "concurrency": "Replace", "history": 1})
    first = until("a run starts", runs, SECONDS)[0]
    run = jobs.api.get(jobs.path(first))
    assert run["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert "schedule" not in run["spec"]
    jobs.run_driver(first)
    jobs.await_state(first, "Running")
    assert jobs.status("nightly")["schedule"]["active"] == [first]
    jobs.await_state(first, "Cancelled")
    until("the next run replaces it", lambda: runs()[-1:] != [first], SECONDS)
    second = runs()[-1]
    assert second.startswith("nightly-") and second > first
    with pytest.raises(ApiError, match="schedule cannot be added or removed"):
        jobs.api.patch(jobs.path("nightly"), {"spec": {"schedule": None}})
    jobs.api.patch(jobs.path("nightly"), {"metadata": {"annotations": {names.CANCEL: "requested"}}})
    assert jobs.await_state("nightly", "Cancelled")["schedule"]["active"] == []
    for each in runs():
        jobs.await_state(each, "Cancelled")
    jobs.api.delete(jobs.path("nightly"))
    until("its runs are gone", lambda: not runs(), SECONDS)


class Starts(threading.Thread):
    """The uids of all driver pods that ever existed, by job and attempt. The drivers of the jobs in `failing` have no
    node: here they end, with exit code 1 in the first attempt and 0 later."""

    def __init__(self, jobs: Jobs, failing: set[str]) -> None:
        super().__init__(daemon=True)
        self.uids: dict[tuple[str, str], set[str]] = {}
        self._jobs = jobs
        self._failing = failing
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.3):
            self.look()

    def look(self) -> None:
        for pod in self._jobs.kube.pods(names.JOB):
            labels = pod["metadata"]["labels"]
            job, attempt = labels[names.JOB], labels[names.ATTEMPT]
            self.uids.setdefault((job, attempt), set()).add(pod["metadata"]["uid"])
            if job in self._failing and pod["status"].get("phase") == "Pending":
                try:
                    self._jobs.end_pod(pod, 1 if attempt == "1" else 0)
                except ApiError as error:
                    if error.status != 404:  # deleted meanwhile
                        raise

    def stop(self) -> None:
        self._is_over.set()
        self.join(60)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_killed_operators_run_each_job_once(jobs: Jobs, operators: Operators, count: int) -> None:
    """All are submitted at once, and the first attempt of every third one fails. The operator is killed five times
    meanwhile."""
    began = time.monotonic()
    current = operators(lease=SHORT_LEASE, identity="first")
    cluster = resource("any", group(replicas=0))["spec"]
    failing = {f"many-{number}" for number in range(0, count, 3)}
    for number in range(count):
        driver = {} if f"many-{number}" in failing else {"driver": {"pod": SIMULATED_POD}}
        jobs.create(f"many-{number}", cluster=cluster, retries=1, backoff={"first": "0.1s"}, **driver)
    starts = Starts(jobs, failing)
    starts.start()

    def has_final(least: int) -> bool:
        return len(final()) >= least

    def final() -> list[Object]:
        listed = jobs.api.get(jobs.path())["items"]
        return [each for each in listed if (each.get("status") or {}).get("completionTime")]

    try:
        for kill in range(KILLS):
            until("some are final", partial(has_final, count * kill // (KILLS + 1)), SECONDS)
            current.kill()
            current = operators(lease=SHORT_LEASE, identity=f"next-{kill}")
        until("all are final", partial(has_final, count), SECONDS)
        starts.look()
    finally:
        starts.stop()
    assert {each["status"]["state"] for each in final()} == {"Succeeded"}
    assert {
        each["metadata"]["name"]: [attempt["exitCode"] for attempt in each["status"]["attempts"]] for each in final()
    } == {name: [1, 0] if name in failing else [0] for name in (f"many-{number}" for number in range(count))}
    expected = [(f"many-{number}", "1") for number in range(count)] + [(name, "2") for name in failing]
    assert {key: len(uids) for key, uids in starts.uids.items()} == dict.fromkeys(expected, 1)
    if folder := os.environ.get("OARS_FIGURES"):
        found = {"jobs": count, "kills": KILLS, "retried": len(failing), "drivers": len(starts.uids)}
        found["twice"] = sum(len(uids) > 1 for uids in starts.uids.values())
        found["seconds"] = round(time.monotonic() - began)
        (Path(folder) / "jobs.json").write_text(json.dumps(found))
