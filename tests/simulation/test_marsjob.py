"""MarsJobs: the real operator on a virtual clock, killed after some of its writes, while workers and schedulers end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from oars.engines.mars import shape
from oars.kube.errors import ApiError
from oars.kube.kinds import Object
from oars.model import Shape
from oars.operator import marsjob
from oars.places.kube import names
from oars.places.kube.state.observe import annotation
from oars.spec.cluster import ClusterSpec, Part
from tests.marsjob import document
from tests.simulation.api_server import Event
from tests.simulation.controllers import Kubernetes, is_head, is_ready
from tests.simulation.engine import SimulatedEngine
from tests.simulation.history import Replica
from tests.simulation.test_fairness import ManyClusters
from tests.simulation.virtual_time import EPOCH

NAME, TEAM, MARS_JOBS = "mars-test-demo", "team", "marsjobs"
KEY = MARS_JOBS, TEAM, NAME
Story = Callable[["Jobs"], Awaitable[None]]


class MarsHeads(SimulatedEngine):
    """With Mars' own members and options."""

    def shape(self, spec: ClusterSpec) -> Shape:
        return replace(shape.shape(spec), needs_helper=True)

    def options_model(self) -> type[Part]:
        return shape.options_model()


class Volcano(Kubernetes):
    """Assigns no pod of a PodGroup before as many of its pods exist as start together."""

    def _assign(self, pod: Object, used: Counter[str]) -> None:
        if (group := annotation(pod, names.GANG)) and pod["spec"]["schedulerName"] == "volcano":
            namespace = pod["metadata"]["namespace"]
            least = self.server.get(("podgroups", namespace, group))["spec"]["minMember"]
            if sum(annotation(each, names.GANG) == group for each in self.server.find("pods", namespace)) < least:
                return
        super()._assign(pod, used)


class Jobs(ManyClusters):
    """The document's job; then `story` goes on."""

    def __init__(self, seed: int, kills: list[int], story: Story, **spec: Any) -> None:
        super().__init__(seed)
        self.kubernetes = Volcano(self.server, self.random, self.log)
        self.engine = MarsHeads(self.kubernetes, self.random, self.log)
        self.server.listeners.remove(self._check_surplus)  # it is about ComputeClusters
        self.server.listeners.append(self._note)
        self.replicas = [Replica("operator", self, kills=kills, kinds=marsjob.RESOURCE_KINDS[:1], trust_authors=True)]
        self.story, self.spec = story, spec
        self.labels: dict[str, str] = {}
        self.created: list[str] = []  # names of all jobs

    def _note(self, event: Event) -> None:
        if event.type == "ADDED" and event.key[0] == MARS_JOBS:
            self.created.append(event.key[2])

    async def _run(self) -> None:
        async with self._running():
            job = document()
            job["metadata"] |= {"namespace": TEAM, "labels": self.labels}
            job["spec"] |= self.spec
            self.server.create(MARS_JOBS, job)
            if not self.labels:
                await self.until(lambda: self.state() == "Running" and self.ready() == 3)
            await self.story(self)

    async def _join(self) -> None:
        while True:
            for job in self.server.find(MARS_JOBS):
                self.engine.submit(job["metadata"]["name"])
            await asyncio.sleep(0.5)

    async def until(self, holds: Callable[[], object], seconds: float = 300) -> None:
        await self._until(lambda: bool(holds()), seconds)

    def status(self) -> Object:
        found: Object = self.server.get(KEY).get("status") or {}
        return found

    def state(self) -> str:
        return str((self.status().get("conditions") or [{"type": ""}])[-1]["type"])

    def exists(self) -> bool:
        try:
            self.server.get(KEY)
        except ApiError:
            return False
        return True

    def pods(self, name: str = NAME) -> list[Object]:
        return list(self.kubernetes.members(name))

    def ready(self) -> int:
        return sum(map(is_ready, self.pods()))

    def workers(self) -> list[str]:
        return sorted(pod["metadata"]["uid"] for pod in self.pods() if not is_head(pod))

    def crash(self, *, head: bool) -> str:
        pod = next(pod for pod in self.pods() if is_head(pod) is head)
        self.kubernetes.restart_container(pod)
        return str(pod["metadata"]["uid"])


def roles(**worker: Any) -> Object:
    found = document()["spec"]["marsReplicaSpecs"]
    found["Worker"] |= worker
    return {"marsReplicaSpecs": found}


@pytest.mark.parametrize("kills", [[], [21, 5, 3]])
@pytest.mark.parametrize("policy", ["Never", "Always"])
def test_worker_that_dies_is_replaced_if_the_policy_says_so(policy: str, kills: list[int]) -> None:
    async def story(jobs: Jobs) -> None:
        before = jobs.workers()
        victim = jobs.crash(head=False)
        if policy == "Never":
            await jobs.until(lambda: jobs.status()["replicaStatuses"]["Worker"] == {"active": 1, "failed": 1})
            await asyncio.sleep(200)
            assert jobs.workers() == [each for each in before if each != victim], "the other one stays"
        else:
            await asyncio.sleep(200)
            assert jobs.workers() == before and "lostWorkers" not in jobs.status()
        assert jobs.state() == "Running" and jobs.ready() == 1 + len(jobs.workers())

    Jobs(1, kills, story, **roles(restartPolicy=policy)).run()


def test_workers_come_back_with_their_scheduler() -> None:
    async def story(jobs: Jobs) -> None:
        jobs.crash(head=True)
        await asyncio.sleep(60)
        await jobs.until(lambda: jobs.ready() == 3)
        assert "lostWorkers" not in jobs.status() and jobs.state() == "Running"

    spec = roles()
    spec["marsReplicaSpecs"]["Scheduler"]["restartPolicy"] = "Always"
    Jobs(2, [], story, **spec).run()


@pytest.mark.parametrize(("policy", "stay"), [("None", True), ("Running", False), ("All", False)])
def test_clean_pod_policy_decides_what_stays_when_the_scheduler_ends(policy: str, stay: bool) -> None:
    async def story(jobs: Jobs) -> None:
        jobs.crash(head=True)
        await jobs.until(lambda: jobs.state() == "Failed")
        workers = jobs.workers()
        await asyncio.sleep(300)
        assert jobs.state() == "Failed"
        assert (jobs.workers(), jobs.ready()) == ((workers, 3) if stay else ([], 0))
        jobs.server.patch(KEY, {"spec": {"ttlSecondsAfterFinished": 1}})
        await jobs.until(lambda: not jobs.exists() and not jobs.pods())

    Jobs(3, [], story, cleanPodPolicy=policy).run()


def test_deadline_stops_the_pods_whatever_the_policy_says() -> None:
    async def story(jobs: Jobs) -> None:
        await jobs.until(lambda: jobs.state() == "Failed" and not jobs.pods())

    Jobs(4, [], story, activeDeadlineSeconds=120).run()


@pytest.mark.parametrize("kills", [[], [33, 9, 4, 12, 3], [40, 11, 7, 2]])
def test_each_run_of_a_schedule_starts_once_whenever_the_operator_is_killed(kills: list[int]) -> None:
    """A run per minute, which ends at its deadline."""

    async def story(jobs: Jobs) -> None:
        await asyncio.sleep(600)
        kept = [job["metadata"]["name"] for job in jobs.server.find(MARS_JOBS)]
        assert len(kept) <= 1 + 2 + 2, "the job, the history, the newest and one that runs"
        jobs.server.delete(KEY)
        await jobs.until(lambda: not list(jobs.server.find(MARS_JOBS)) and not list(jobs.kubernetes.pods()))

    cron = {"schedule": "* * * * *", "historyLimit": 2}
    jobs = Jobs(5, kills, story, cronPolicy=cron, activeDeadlineSeconds=20)
    jobs.run()
    own, *runs = jobs.created
    assert own == NAME
    times = [int(run.removeprefix(f"{NAME}-")) for run in runs]
    every = list(range(int(EPOCH) + 60, int(EPOCH) + 601, 60))
    assert times == sorted(set(times)) and set(times) <= {*every}
    assert len(times) == 10 if not kills else len(times) >= 8, "an operator that is away makes up for the last one only"


def test_members_of_a_job_with_a_queue_start_together() -> None:
    """The operator creates the workers although Volcano has not placed the head."""

    async def story(jobs: Jobs) -> None:
        (group,) = jobs.server.find("podgroups", TEAM)
        assert (group["metadata"]["name"], group["spec"]["minMember"], group["spec"]["queue"]) == (NAME, 3, "team-a")
        assert all(annotation(pod, names.GANG) == NAME for pod in jobs.pods())
        jobs.server.delete(KEY)
        await jobs.until(lambda: not list(jobs.server.find("podgroups", TEAM)) and not jobs.pods())

    Jobs(6, [], story, schedulingPolicy={"queue": "team-a"}).run()


WORKLOAD = "workloads", TEAM, NAME


def write(jobs: Jobs, admission: Object | None, **conditions: str) -> None:
    """As Kueue."""
    found = jobs.server.get(WORKLOAD)
    known = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
    known |= {kind: {"type": kind, "status": value, "message": f"{kind} {value}"} for kind, value in conditions.items()}
    body = {"status": {"conditions": list(known.values()), **({"admission": admission} if admission else {})}}
    jobs.server.patch(WORKLOAD, body, "status")


def admit(jobs: Jobs) -> str:
    """Returns the uid of the Workload."""
    found = jobs.server.get(WORKLOAD)
    sets = [{"name": each["name"], "flavors": {"cpu": "spot"}} for each in found["spec"]["podSets"]]
    write(jobs, {"podSetAssignments": sets}, QuotaReserved="True", Admitted="True")
    return str(found["metadata"]["uid"])


def conditions(jobs: Jobs) -> set[str]:
    listed = (jobs.server.get(WORKLOAD).get("status") or {}).get("conditions") or ()
    return {each["type"] for each in listed if each["status"] == "True"}


@pytest.mark.parametrize("kills", [[], [3, 4, 9], [25, 2, 3]])
def test_job_waits_for_its_admission_and_returns_to_the_queue_when_it_is_evicted(kills: list[int]) -> None:
    async def story(jobs: Jobs) -> None:
        await jobs.until(lambda: jobs.state() == "Queuing" and any(jobs.server.find("workloads", TEAM)))
        await asyncio.sleep(100)
        assert not jobs.pods(), "and the deadline does not run"
        spec = jobs.server.get(WORKLOAD)["spec"]
        assert (spec["queueName"], spec["priority"]) == ("team-a", 7)
        assert [(each["name"], each["count"]) for each in spec["podSets"]] == [("head", 1), ("workers-default", 2)]
        first = admit(jobs)
        await jobs.until(lambda: jobs.state() == "Running" and jobs.ready() == 3)
        assert all(pod["spec"]["nodeSelector"] == {"type": "spot"} for pod in jobs.pods())
        await jobs.until(lambda: "PodsReady" in conditions(jobs))
        write(jobs, None, Evicted="True", Admitted="False")
        await jobs.until(lambda: jobs.state() == "Queuing" and not jobs.pods())
        await jobs.until(lambda: any(each["metadata"]["uid"] != first for each in jobs.server.find("workloads", TEAM)))
        admit(jobs)
        await jobs.until(lambda: jobs.state() == "Running" and jobs.ready() == 3)
        jobs.crash(head=True)
        await jobs.until(lambda: jobs.state() == "Failed" and "Finished" in conditions(jobs))
        assert not jobs.pods()

    policy = {"schedulingPolicy": {"priority": 7}, "cleanPodPolicy": "All", "activeDeadlineSeconds": 90}
    jobs = Jobs(7, kills, story, **policy)
    jobs.labels = {names.KUEUE_QUEUE: "team-a"}
    flavor = {"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"type": "spot"}}}
    jobs.server.create("resourceflavors", flavor)
    jobs.run()
