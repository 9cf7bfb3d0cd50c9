"""A namespace in memory for clusters of bare pods: API server, cache, garbage collector and kubelet in one. Pods run as
soon as they are created. It lists every write."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from oars.base.errors import EngineUnreachable
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object, kind_of
from oars.model import Desired, Group, Member, Port, Process, Role, Shape
from oars.places.kube import names
from oars.places.kube.pods.place import Memory, PodPlace, Setting

NAMESPACE, INSTANCE = "lab", "abc"


def group(name: str, role: Role, replicas: int) -> Group:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "demo-", "namespace": NAMESPACE, "labels": {"app": "dask"}},
        "spec": {"containers": [{"name": "main", "image": "i:1"}]},
    }
    ports = (Port("client", 8786),) if role is Role.HEAD else (Port("any", 0),)
    return Group(name, role, replicas, Process(argv=(), ports=ports), pod=pod)


def cluster(workers: int = 2) -> Desired:
    shape = Shape(
        head=group("head", Role.HEAD, 1),
        workers=(group("default", Role.WORKER, workers),),
        endpoints={"client": "tcp://$(head.host):$(head.client)"},
    )
    return Desired("demo", "dask", "kubernetes", shape, namespace=NAMESPACE)


def owned_object(api_version: str, kind: str) -> Object:
    labels = {names.INSTANCE: INSTANCE}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "demo", "namespace": NAMESPACE, "labels": labels},
        "spec": {},
    }


OBJECTS = (owned_object("v1", "Service"), owned_object("policy/v1", "PodDisruptionBudget"))


class World:
    """`refuse`: error for the next creation."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.writes: list[str] = []
        self.refusal: ApiError | None = None
        self.memory = Memory()
        self.now = 10_000.0
        self._created = 0
        self.place = self.open()

    def open(self, head: Member | None = None) -> PodPlace:
        """Another place for the same cluster."""
        setting = Setting(cast(Client, self), self, self, self.memory, INSTANCE, () if head else OBJECTS, head, None)
        return PodPlace(setting, NAMESPACE, lambda: self.now)

    # as a cache

    def of_kind(self, *kinds: str) -> list[Object]:
        found = [obj for (kind, _), obj in self.objects.items() if kind in kinds]
        return [obj for obj in found if obj["metadata"]["labels"].get(names.INSTANCE) == INSTANCE]

    def pods(self) -> list[Object]:
        return self.of_kind("Pod")

    def owned(self) -> list[Object]:
        return self.of_kind("Service", "PodDisruptionBudget")

    # as a route

    host = "demo.lab"

    async def address(self, port: str) -> str:
        raise EngineUnreachable("nothing runs here")

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        raise EngineUnreachable("nothing runs here")

    async def close(self) -> None:
        """Nothing is open."""

    # as a client

    async def create(self, obj: Object, kind: Kind | None = None, *, dry_run: bool = False) -> Object:
        if self.refusal is not None:
            raise self.refusal
        obj = copy.deepcopy(obj)
        metadata = obj["metadata"]
        self._created += 1
        metadata.setdefault("name", f"{metadata.get('generateName')}{self._created:05}")
        if (obj["kind"], metadata["name"]) in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists", "message": "it exists"})
        metadata |= {"uid": f"uid-{self._created}", "creationTimestamp": self.stamp()}
        if obj["kind"] == "Pod":
            running = {"name": "main", "state": {"running": {"startedAt": self.stamp()}}, "restartCount": 0}
            ready = [{"type": "Ready", "status": "True"}]
            address = f"10.0.0.{self._created}"
            obj["status"] = {
                "phase": "Running", "podIP": address, "containerStatuses": [running], "conditions": ready,
            }  # fmt: skip
        self.store(obj)
        self.writes.append(f"create {obj['kind']}")
        return copy.deepcopy(obj)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, {"message": "not found"})
        return self.objects[kind.kind, name]

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> Any:
        raise ApiError(403, {"message": "no right to list it"})

    def logs(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, {"message": "no right to read it"})

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, **options: Any) -> bool:
        self.writes.append(f"delete {kind.kind}")
        found = self.objects.get((kind.kind, name))
        if found is None:
            return False
        if options.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            raise ApiError(409, {"message": "another uid"})
        del self.objects[kind.kind, name]
        for obj in list(self.objects.values()):
            owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ()}
            if found["metadata"]["uid"] in owners and options.get("propagation") == "Orphan":
                obj["metadata"]["ownerReferences"] = []
            elif found["metadata"]["uid"] in owners:
                await self.delete(kind_of(obj), obj["metadata"]["name"])
        return True

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def store(self, obj: Object) -> None:
        obj["metadata"]["resourceVersion"] = str(len(self.writes) + self._created + 1)
        self.objects[obj["kind"], obj["metadata"]["name"]] = obj

    def end(self, name: str, code: int, after: float = 1.0) -> None:
        """The pod's process ends, and its kubelet does not restart it."""
        pod = self.objects["Pod", name]
        (status,) = pod["status"]["containerStatuses"]
        started = status["state"]["running"]["startedAt"]
        self.now += after
        ended = {"exitCode": code, "startedAt": started, "finishedAt": self.stamp()}
        pod["status"] |= {"phase": "Failed" if code else "Succeeded", "conditions": []}
        status["state"] = {"terminated": ended}

    def head(self) -> str:
        """The name of the newest head pod."""
        heads = [pod for pod in self.pods() if pod["metadata"]["labels"][names.GROUP] == "head"]
        return str(heads[-1]["metadata"]["name"])
