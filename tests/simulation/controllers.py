"""Kubernetes' controllers in memory: Deployments, ReplicaSets with their real victim order, garbage collection, the
scheduler and kubelets. They react after random delays."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from oars.kube.kinds import Object
from oars.places.kube import names
from tests.simulation.api_server import ApiServer, Event, Key, cluster_of, copied

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
GRACE = 2.0
ROLLED_OUT = "its Deployment rolled out a new template"


@dataclass
class Node:
    name: str
    capacity: int
    is_up: bool = True


@dataclass
class Kubernetes:
    """All controllers of one API server. `deaths`: why each pod ended, for the checks of a history."""

    server: ApiServer
    random: random.Random
    log: Callable[[str], None]
    nodes: list[Node] = field(default_factory=lambda: [Node("a", 12), Node("b", 12)])
    start_seconds: float = 2.0
    unready_since: dict[str, float] = field(default_factory=dict)  # pod uid → when its probe began to fail
    deaths: dict[str, str] = field(default_factory=dict)  # pod uid → "removed by its ReplicaSet", …
    ended_at: dict[str, float] = field(default_factory=dict)  # pod uid → when its end began
    secrets: dict[str, Object] = field(default_factory=dict)  # pod uid → the files with which its process started
    _queue: asyncio.Event = field(default_factory=asyncio.Event)
    _digests: dict[tuple[str, int], str] = field(default_factory=dict)  # Deployment's uid and generation → digest
    _dirty: set[str] = field(default_factory=set)  # clusters whose objects changed
    _garbage: bool = False  # objects came or went
    _timers: set[str] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        self.server.listeners.append(self._changed)
        while True:
            await self._queue.wait()
            self._queue.clear()
            await asyncio.sleep(self.random.uniform(0.01, 0.2))
            if self._garbage:
                self._garbage = False
                self._collect_garbage()
            dirty, self._dirty = sorted(self._dirty), set()
            for cluster in dirty:
                for deployment in self.server.labelled("deployments", cluster):
                    self._reconcile_deployment(deployment)
                for replica_set in self.server.labelled("replicasets", cluster):
                    self._reconcile_replica_set(replica_set)
            self._schedule()

    def _changed(self, event: Event) -> None:
        plural, _, name = event.key
        if event.type != "MODIFIED":
            self._garbage = True
            self._queue.set()
        if plural in ("deployments", "replicasets", "pods", "computeclusters"):
            self._dirty.add(name if plural == "computeclusters" else cluster_of(event.object))
            self._queue.set()

    # Owners

    def _collect_garbage(self) -> None:
        for key, obj in [(key, obj) for key, obj in self.server.objects.items() if self.server.is_garbage(obj)]:
            if key[0] == "pods" and not obj["metadata"].get("deletionTimestamp"):
                self._end(obj, "its owner was deleted")
            elif key[0] != "pods":
                self.server.remove(key)

    def _owned(self, plural: str, owner: Object) -> list[Object]:
        return self.server.owned(plural, owner["metadata"]["uid"])

    def _digest(self, deployment: Object) -> str:
        """The hash of the pod template."""
        version = deployment["metadata"]["uid"], deployment["metadata"]["generation"]
        if version not in self._digests:
            text = json.dumps(deployment["spec"]["template"], sort_keys=True)
            self._digests[version] = hashlib.sha256(text.encode()).hexdigest()[:10]
        return self._digests[version]

    # Deployments

    def _reconcile_deployment(self, deployment: Object) -> None:
        spec, metadata = deployment["spec"], deployment["metadata"]
        digest = self._digest(deployment)
        sets = self._owned("replicasets", deployment)
        current = next((each for each in sets if each["metadata"]["labels"]["pod-template-hash"] == digest), None)
        older = [each for each in sets if each is not current]
        left = [pod for each in older for pod in self._owned("pods", each) if _is_active(pod)]
        for each in older:  # Recreate, and RollingUpdate with maxUnavailable 100%, end all old pods first
            self._set_size(each, 0, ROLLED_OUT)
        recreate = spec.get("strategy", {}).get("type") == "Recreate"
        if not (recreate and left):
            if current is None:
                current = self._create_set(deployment, digest)
            surplus = 0 if recreate else len(left)
            self._set_size(current, max(0, spec["replicas"] - surplus), "it was scaled down")
        pods = self._owned("pods", current) if current else []
        active = [pod for pod in pods if _is_active(pod)]
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": len(active) + len(left),
            "updatedReplicas": len(active),
            "readyReplicas": sum(map(is_ready, active)),
        }
        key = ("deployments", metadata["namespace"], metadata["name"])
        if key in self.server.objects and deployment.get("status") != status:
            self.server.update(key, {**self.server.objects[key], "status": status})

    def _create_set(self, deployment: Object, digest: str) -> Object:
        metadata, template = deployment["metadata"], copied(deployment["spec"]["template"])
        template["metadata"]["labels"]["pod-template-hash"] = digest
        owner = {"kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        own = {
            "name": f"{metadata['name']}-{digest}", "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"], "ownerReferences": [owner],
        }  # fmt: skip
        return self.server.create("replicasets", {"metadata": own, "spec": {"replicas": 0, "template": template}})

    def _set_size(self, replica_set: Object, size: int, why: str) -> None:
        metadata = replica_set["metadata"]
        key = ("replicasets", metadata["namespace"], metadata["name"])
        if key in self.server.objects and replica_set["spec"]["replicas"] != size:
            changed = {**replica_set, "spec": {**replica_set["spec"], "replicas": size}, "why": why}
            self.server.update(key, changed)

    # ReplicaSets

    def _reconcile_replica_set(self, replica_set: Object) -> None:
        key = ("replicasets", replica_set["metadata"]["namespace"], replica_set["metadata"]["name"])
        replica_set = self.server.objects.get(key, {})
        if not replica_set:
            return
        pods = [pod for pod in self._owned("pods", replica_set) if _is_active(pod)]
        missing = replica_set["spec"]["replicas"] - len(pods)
        for _ in range(missing):
            self._create_pod(replica_set)
        if missing < 0:
            why = replica_set.get("why", "it was scaled down")
            for pod in sorted(pods, key=victim_rank)[:-missing]:
                # A pod that fails its probe between a scale-down and the choice of its victims is chosen first. No
                # client of Kubernetes can prevent that.
                unready = self.unready_since.get(pod["metadata"]["uid"], -1.0)
                is_race = self.server.clock.now - unready < 1.0
                self._end(pod, f"fault: not ready when {why}" if is_race else why)

    def _create_pod(self, replica_set: Object) -> None:
        metadata, template = replica_set["metadata"], copied(replica_set["spec"]["template"])
        suffix = f"{self.random.getrandbits(25):05x}"
        own = {
            **template["metadata"],
            "name": f"{metadata['name']}-{suffix}",
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
            ],
        }
        self.server.create("pods", {"metadata": own, "spec": template["spec"], "status": {"phase": "Pending"}})

    # Nodes

    def _schedule(self) -> None:
        pods = list(self.server.find("pods"))
        used = Counter(pod["spec"].get("nodeName") for pod in pods)
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp"):
                self.later(pod, "end", GRACE, self._remove)
            elif not pod["spec"].get("nodeName"):
                self._assign(pod, used)

    def _assign(self, pod: Object, used: Counter[str]) -> None:
        free = [node for node in self.nodes if node.is_up and used[node.name] < node.capacity]
        key = _key(pod)
        if free:
            node = self.random.choice(free)
            used[node.name] += 1
            self.server.update(key, {**pod, "spec": {**pod["spec"], "nodeName": node.name}})
            self.later(pod, "start", self.random.uniform(0.5, self.start_seconds), self._start)
        else:
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
            self.server.update(key, {**pod, "status": {"phase": "Pending", "conditions": [waits]}})
            self.later(pod, "schedule", 5.0, lambda _: self._queue.set())

    def later(self, pod: Object, what: str, seconds: float, act: Callable[[Object], None]) -> None:
        """Once for each pod and purpose."""
        mark = f"{what} {pod['metadata']['uid']}"
        if mark in self._timers:
            return
        self._timers.add(mark)

        async def wait() -> None:
            await asyncio.sleep(seconds)
            self._timers.discard(mark)
            present = self.server.objects.get(_key(pod))
            if present is not None and present["metadata"]["uid"] == pod["metadata"]["uid"]:
                act(present)

        self._tasks.add(task := asyncio.create_task(wait()))
        task.add_done_callback(self._tasks.discard)

    def _node(self, pod: Object) -> Node | None:
        return next((node for node in self.nodes if node.name == pod["spec"].get("nodeName")), None)

    def _start(self, pod: Object) -> None:
        node = self._node(pod)
        if node is None or not node.is_up or pod["metadata"].get("deletionTimestamp"):
            return
        if not self._mount(pod):
            self.later(pod, "start", 2.0, self._start)
            return
        self.set_container(pod, {"running": {"startedAt": self.server.stamp()}}, restarts=0)
        self.later(pod, "ready", self.random.uniform(0.2, 1.5), lambda each: self.set_ready(each, True))

    def _mount(self, pod: Object) -> bool:
        """False if one of the pod's volumes does not exist."""
        files: Object = {}
        for volume in pod["spec"].get("volumes") or ():
            for plural, kind, field_name in (("secrets", "secret", "secretName"), ("configmaps", "configMap", "name")):
                if kind in volume:
                    key = (plural, pod["metadata"]["namespace"], volume[kind][field_name])
                    if key not in self.server.objects:
                        return False
                    files |= self.server.objects[key]["data"] if kind == "secret" else {}
        self.secrets[pod["metadata"]["uid"]] = copied(files)
        return True

    def set_container(self, pod: Object, state: Object, restarts: int, last: Object | None = None) -> None:
        role = "head" if is_head(pod) else "worker"
        container = {"name": role, "state": state, "restartCount": restarts, "ready": False}
        if last:
            container["lastState"] = {"terminated": last}
        status = {
            "phase": "Running", "podIP": f"10.0.0.{int(pod['metadata']['uid'][4:]) % 250}",
            "containerStatuses": [container],
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        }  # fmt: skip
        self.server.update(_key(pod), {**pod, "status": status})

    def set_ready(self, pod: Object, ready: bool) -> None:
        status = copied(pod.get("status", {}))
        if not is_running(pod) or pod["metadata"].get("deletionTimestamp"):
            return
        status["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": self.server.stamp()},
        ]
        self.server.update(_key(pod), {**pod, "status": status})

    def _end(self, pod: Object, why: str) -> None:
        self.deaths.setdefault(pod["metadata"]["uid"], why)
        self.ended_at.setdefault(pod["metadata"]["uid"], self.server.clock.now)
        if _key(pod) in self.server.objects:
            self.server.delete(_key(pod))

    def _remove(self, pod: Object) -> None:
        """The kubelet reports that the pod has ended. A lost node's kubelet reports nothing."""
        node = self._node(pod)
        if node is None or node.is_up:
            self.deaths.setdefault(pod["metadata"]["uid"], "it was deleted")
            self.server.remove(_key(pod))

    # Faults

    def delete_pod(self, pod: Object, why: str = "fault: deleted") -> None:
        self.log(f"fault: delete pod {pod['metadata']['name']}")
        self._end(pod, why)

    def restart_container(self, pod: Object) -> None:
        """The process dies; the kubelet starts it again."""
        if not pod.get("status", {}).get("containerStatuses") or pod["metadata"].get("deletionTimestamp"):
            return
        self.log(f"fault: restart {pod['metadata']['name']}")
        before = pod["status"]["containerStatuses"][0]
        restarts = before["restartCount"] + 1
        ended = {"exitCode": 137, "finishedAt": self.server.stamp(), "startedAt": self.server.stamp()}
        self.set_container(pod, {"terminated": ended}, before["restartCount"])

        def restart(each: Object) -> None:
            if not each["metadata"].get("deletionTimestamp"):
                self._mount(each)  # a pod keeps the files of a Secret that was deleted
                self.set_container(each, {"running": {"startedAt": self.server.stamp()}}, restarts, ended)
                self.later(each, "ready", self.random.uniform(0.2, 1.5), lambda one: self.set_ready(one, True))

        self.later(pod, "restart", self.random.uniform(0.5, 3.0), restart)

    def lose_node(self, node: Node, seconds: float) -> None:
        """Its pods end; after a while the node controller deletes them, and later the node comes back empty."""
        self.log(f"fault: node {node.name} is lost for {seconds:.0f} s")
        node.is_up = False
        for pod in list(self.server.find("pods")):
            if pod["spec"].get("nodeName") == node.name:
                self.set_ready(pod, False)
                self.deaths.setdefault(pod["metadata"]["uid"], "fault: node lost")
                if _key(pod) in self.server.objects:
                    self.server.delete(_key(pod))

        async def back() -> None:
            await asyncio.sleep(seconds)
            self.log(f"fault: node {node.name} is back")
            node.is_up = True
            for pod in list(self.server.find("pods")):
                if pod["spec"].get("nodeName") == node.name and pod["metadata"].get("deletionTimestamp"):
                    self.server.remove(_key(pod))

        self._tasks.add(task := asyncio.create_task(back()))
        task.add_done_callback(self._tasks.discard)

    def pods(self, *, active: bool = True) -> Iterator[Object]:
        for pod in self.server.find("pods"):
            if not active or _is_active(pod):
                yield pod

    def runs(self, uid: str) -> bool:
        """True if the pod's process runs and the pod is not being deleted."""
        pod = self.server.with_uid(uid)
        return pod is not None and _is_active(pod) and is_running(pod)

    def members(self, cluster: str) -> Iterator[Object]:
        """The pods of a cluster that are not being deleted."""
        return filter(_is_active, self.server.labelled("pods", cluster))


def victim_rank(pod: Object) -> tuple[bool, int, bool, int, float, int, float]:
    """Who a ReplicaSet deletes first: not assigned, pending, not ready, cheaper, ready for a shorter time, restarted
    more often, newer."""
    status = pod.get("status", {})
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    cost = int((pod["metadata"].get("annotations") or {}).get(DELETION_COST, 0))
    condition: Object = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    since = condition.get("lastTransitionTime")
    restarts = sum(each["restartCount"] for each in status.get("containerStatuses", ()))
    return (
        bool(pod["spec"].get("nodeName")),
        phases[status.get("phase", "Pending")],
        is_ready(pod),
        cost,
        -datetime.fromisoformat(since).timestamp() if since else 0.0,
        -restarts,
        -datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp(),
    )


def is_head(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(names.GROUP) == "head")


def is_running(pod: Object) -> bool:
    """True if the engine's process runs."""
    return any("running" in each["state"] for each in pod.get("status", {}).get("containerStatuses", ()))


def _key(obj: Object) -> Key:
    return "pods", obj["metadata"]["namespace"], obj["metadata"]["name"]


def _is_active(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and pod.get("status", {}).get("phase") not in ("Failed",)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
