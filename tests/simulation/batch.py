"""What Kubernetes does with the drivers of jobs, in memory: the controller of batch/v1 Jobs, kubelets on nodes that may
be cut off, clusters that become ready, and garbage collection. A driver is a process: it runs until it ends, whatever
the API server knows about it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oars.kube.errors import ApiError
from oars.kube.kinds import Object
from oars.places.kube import names
from tests.simulation.api_server import ApiServer, Event, Key, copied

TICK = 0.25
EVICT_AFTER = 30.0  # seconds that a node is away until its pods are deleted
CODES = (0, 0, 0, 0, 1, 2, 137)


@dataclass
class Driver:
    """A process of a driver. code: None while it runs."""

    job: str  # uid of the ComputeJob
    n: int
    node: Node
    started: float
    code: int | None = None
    was_cut_off: bool = False


@dataclass
class Node:
    name: str
    is_up: bool = True
    away_since: float = 0.0


@dataclass
class Batch:
    """Controllers and kubelets. `on_start` is called when a driver's process starts."""

    server: ApiServer
    random: random.Random
    log: Callable[[str], None]
    on_start: Callable[[Driver], None]
    nodes: list[Node] = field(default_factory=lambda: [Node("a"), Node("b")])
    drivers: dict[str, Driver] = field(default_factory=dict)  # by uid of the pod
    _dirty: set[Key] = field(default_factory=set)
    _busy: set[Key] = field(default_factory=set)
    _is_garbage_due: bool = False
    _had_pod: set[str] = field(default_factory=set)  # uids of Jobs
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def running(self, job: str) -> list[Driver]:
        return [each for each in self.drivers.values() if each.job == job and each.code is None]

    async def run(self) -> None:
        self.server.listeners.append(self._changed)
        while True:
            await asyncio.sleep(TICK)
            if self._is_garbage_due:
                self._collect_garbage()
            self._evict()
            for key in sorted(self._dirty - self._busy):
                self._dirty.discard(key)
                self._start(self._sync(key))

    def _start(self, work: Any) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    def _changed(self, event: Event) -> None:
        plural, namespace, _ = event.key
        self._is_garbage_due |= event.type != "MODIFIED"
        if plural == "jobs" and event.type != "DELETED":
            self._dirty.add(event.key)
        elif plural == "pods":
            labels = event.object["metadata"]["labels"]
            self._dirty.add(("jobs", namespace, f"{labels[names.JOB]}-{labels[names.ATTEMPT]}"))
            if event.type == "ADDED":
                self._start(self._run_pod(event.key, event.object["metadata"]["uid"]))
        elif plural == "computeclusters" and event.type == "ADDED":
            self._start(self._make_ready(event.key, event.object["metadata"]["uid"]))

    def _collect_garbage(self) -> None:
        self._is_garbage_due = False
        alive = {obj["metadata"]["uid"] for obj in self.server.objects.values()}
        for key, obj in list(self.server.objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in alive for owner in owners):
                self.server.delete(key)

    # clusters

    async def _make_ready(self, key: Key, uid: str) -> None:
        await asyncio.sleep(self.random.uniform(0.2, 4.0))
        self.set_head(key, uid, "1")

    def set_head(self, key: Key, uid: str, incarnation: str) -> None:
        found = self.server.objects.get(key)
        if found is not None and found["metadata"]["uid"] == uid:
            status = {"phase": "Ready", "observedGeneration": 1, "head": {"incarnation": f"{uid}-{incarnation}"}}
            self.server.patch(key, {"status": status}, "status")

    # batch/v1 Jobs

    async def _sync(self, key: Key) -> None:
        """One sync of the controller, with a copy of the Job that may be old when it acts."""
        job = copied(self.server.objects.get(key))
        if job is None:
            return
        self._busy.add(key)
        try:
            await asyncio.sleep(self.random.uniform(0.01, 1.0))
            if key in self.server.objects and self.server.objects[key]["metadata"]["uid"] == job["metadata"]["uid"]:
                self._act(key, job)
        finally:
            self._busy.discard(key)

    def is_new(self, key: Key) -> bool:
        """True if the Job has no pod yet, and gets none at present."""
        return key not in self._busy and self.server.objects[key]["metadata"]["uid"] not in self._had_pod

    def _act(self, key: Key, job: Object) -> None:
        uid, spec, status = job["metadata"]["uid"], job["spec"], job.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        if conditions.keys() & {"Complete", "Failed"}:
            return
        pods = self.server.owned("pods", uid)
        phases = {(pod.get("status") or {}).get("phase") for pod in pods}
        limit = spec.get("activeDeadlineSeconds")
        started = status.get("started", self.server.clock.now)
        if "Succeeded" in phases:
            self._finish(key, "Complete", "")
        elif "Failed" in phases or (uid in self._had_pod and not pods and not spec.get("suspend")):
            self._finish(key, "Failed", "BackoffLimitExceeded")
        elif limit is not None and self.server.clock.now - started > limit:
            self._delete_pods(pods)
            self._finish(key, "Failed", "DeadlineExceeded")
        elif spec.get("suspend"):
            self._delete_pods(pods)
            left = len(self.server.owned("pods", uid))
            listed = [conditions.get("Suspended") or self._condition("Suspended", "JobSuspended")]
            self._had_pod.discard(uid)  # it gets another one when somebody resumes it
            self.server.patch(key, {"status": {"conditions": listed, "active": 0, "terminating": left}}, "status")
        elif spec["parallelism"] == 0:
            self._delete_pods(pods)
            self.server.patch(key, {"status": {"conditions": [], "active": 0}}, "status")
        elif uid not in self._had_pod:
            self._had_pod.add(uid)
            self.server.patch(key, {"status": {"started": started, "conditions": [], "active": 1}}, "status")
            self._create_pod(job)
        if limit is not None:
            self._start(self._requeue(key, limit))

    async def _requeue(self, key: Key, seconds: float) -> None:
        await asyncio.sleep(seconds + 1.0)
        self._dirty.add(key)

    def _condition(self, kind: str, reason: str) -> Object:
        return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": self.server.stamp()}

    def _finish(self, key: Key, kind: str, reason: str) -> None:
        self.server.patch(key, {"status": {"conditions": [self._condition(kind, reason)], "active": 0}}, "status")

    def _delete_pods(self, pods: list[Object]) -> None:
        for pod in pods:
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                self.server.delete(_key(pod))

    def _create_pod(self, job: Object) -> None:
        metadata, template = job["metadata"], copied(job["spec"]["template"])
        owner = {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        template["metadata"] |= {
            "name": f"{metadata['name']}-{self.random.getrandbits(20):05x}",
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        }
        self.server.create("pods", {**template, "status": {"phase": "Pending"}})

    # nodes and kubelets

    def _evict(self) -> None:
        for node in self.nodes:
            if not node.is_up and self.server.clock.now - node.away_since > EVICT_AFTER:
                for pod in self.server.find("pods"):
                    is_deleted = "deletionTimestamp" in pod["metadata"]
                    if pod["spec"].get("nodeName") == node.name and not is_deleted:
                        self.server.delete(_key(pod))

    def cut_off(self, node: Node, seconds: float) -> None:
        """The node is away for a while; its processes continue. One node is always up."""
        if all(each.is_up for each in self.nodes):
            node.is_up, node.away_since = False, self.server.clock.now
            for driver in self.drivers.values():
                driver.was_cut_off |= driver.node is node
            self._start(self._back(node, seconds))

    async def _back(self, node: Node, seconds: float) -> None:
        await asyncio.sleep(seconds)
        node.is_up = True
        self.log(f"node {node.name} is back")

    async def _run_pod(self, key: Key, uid: str) -> None:
        """The life of a pod: scheduler, kubelet, process."""
        await asyncio.sleep(self.random.uniform(0.05, 2.0))
        pod = self._pod(key, uid)
        if pod is None:
            return None
        node = self.random.choice([node for node in self.nodes if node.is_up])
        self.server.update(key, {**pod, "spec": {**pod["spec"], "nodeName": node.name}})
        await asyncio.sleep(self.random.uniform(0.1, 3.0))
        await self._until_up(node)
        pod = self._pod(key, uid)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return await self._end(key, uid, node, None)
        annotations, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
        driver = Driver(annotations[names.JOB_UID], int(labels[names.ATTEMPT]), node, self.server.clock.now)
        self.drivers[uid] = driver
        self.on_start(driver)
        self._report(key, uid, "Running", {"running": {"startedAt": self.server.stamp()}})
        driver.code = await self._wait(key, uid, node)
        await self._end(key, uid, node, driver.code)

    async def _wait(self, key: Key, uid: str, node: Node) -> int:
        """The exit code of the process, when it ends: by itself, or some time after the kubelet's SIGTERM."""
        ends = self.server.clock.now + self.random.choice((0.3, 5.0, 20.0, 200.0)) * self.random.uniform(0.5, 1.5)
        while self.server.clock.now < ends:
            await asyncio.sleep(TICK)
            pod = self._pod(key, uid)
            if node.is_up and (pod is None or "deletionTimestamp" in pod["metadata"]):
                await asyncio.sleep(self.random.uniform(0.0, 15.0))
                return self.random.choice((143, 143, 0))
        return self.random.choice(CODES)

    async def _end(self, key: Key, uid: str, node: Node, code: int | None) -> None:
        await self._until_up(node)
        stamp = self.server.stamp()
        state = {"terminated": {"exitCode": code, "finishedAt": stamp}} if code is not None else {}
        self._report(key, uid, "Succeeded" if code == 0 else "Failed", state)
        while (pod := self._pod(key, uid)) is not None:  # an ended pod stays until it is deleted
            if "deletionTimestamp" in pod["metadata"]:
                await asyncio.sleep(self.random.uniform(0.05, 1.0))
                return self._drop(key, uid)
            await asyncio.sleep(1.0)

    async def _until_up(self, node: Node) -> None:
        while not node.is_up:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1.0)

    def _pod(self, key: Key, uid: str) -> Object | None:
        found = self.server.objects.get(key)
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def _drop(self, key: Key, uid: str) -> None:
        if self._pod(key, uid) is not None:
            self.server.remove(key)

    def _report(self, key: Key, uid: str, phase: str, state: Object) -> None:
        if self._pod(key, uid) is not None:
            containers = [{"name": "driver", "state": state}]
            self.server.patch(key, {"status": {"phase": phase, "containerStatuses": containers}}, "status")

    def log_of(self, name: str, namespace: str) -> Driver:
        """The process behind a pod, if its node returns the log."""
        pod = self.server.get(("pods", namespace, name))
        driver = self.drivers.get(pod["metadata"]["uid"])
        if driver is None:
            raise ApiError(400, {"message": "the container is waiting to start"})
        if not driver.node.is_up:
            raise ApiError(500, {"message": "dial tcp: i/o timeout"})
        return driver


def _key(obj: Object) -> Key:
    return "pods", obj["metadata"]["namespace"], obj["metadata"]["name"]
