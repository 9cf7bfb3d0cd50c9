"""A cluster of Kubernetes in memory: API server, cache and root in one. It records every write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import DEPLOYMENT, POD, SECRET, Kind
from oars.model import HEAD, Cause, Desired, Ensure, LoopState, MemberId, Observed, Remove, Retiring
from oars.places.kube import names
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render import objects
from oars.places.kube.render.fingerprint import Fingerprint
from oars.places.kube.wire import Reach
from oars.places.report import Report
from tests.unit.places.clusters import cluster
from tests.unit.places.test_kube_observe import Object, pod
from tests.unit.plan.clusters import with_replicas

Names = list[str]  # the class has a method called list
OWNER: Object = {"kind": "ConfigMap", "name": "demo-oars", "uid": "root"}
DRAINED_LONG_AGO = Retiring(0.0, drained=True)


class World:
    """A head and three workers, of which two are desired."""

    def __init__(
        self, desired: Desired | None = None, workers: Sequence[str] = ("a", "b", "c"), epoch: int = 0
    ) -> None:
        self.owner = OWNER
        self.now = 10_000.0
        self.clock_step = 0.0  # how far the wall clock is off
        self.state = LoopState()
        self.writes: list[str] = []
        self.refusal: ApiError | None = None
        # What the watches show; None: the kind is not watched. Any other kind exists.
        self.kinds: dict[str, bool | None] = {"PodDisruptionBudget": False}
        self.desired = desired or cluster(workers=2)
        self.running: dict[str, Object] = {}
        self.stored: dict[tuple[str, str], Object] = {}  # objects of other kinds
        self.of_name: dict[str, Object] = {}
        self.reopen()
        if workers:
            self._start(workers, epoch)
        self.writes.clear()

    def _start(self, workers: Sequence[str], epoch: int) -> None:
        """As a loop of that head epoch left it."""
        desired = replace(with_replicas(self.desired, {"default": len(workers)}), head_epoch=epoch)
        asyncio.run(self.place.ensure(desired, Ensure(desired.shape.head, (HEAD,))))
        asyncio.run(self.place.ensure(desired, Ensure(desired.shape.workers[0], tuple(map(MemberId, workers)))))
        self.of_name["h"] = pod("h", "head", metadata={"resourceVersion": "1"})
        self.of_name |= {name: self.worker(name, epoch) for name in workers}
        self.reopen()

    def reopen(self) -> None:
        """Another process takes over."""
        client = cast(Client, self)
        self.place = KubePlace(
            Setting(client, self, self, Reach(client, "lab")),
            "lab",
            lambda: self.now + self.clock_step,
            lambda: self.now,
        )

    @property
    def revision(self) -> str:
        return objects.revision_of(self.desired, self.desired.shape.workers[0])

    def worker(self, name: str, epoch: int = 0) -> Object:
        annotations = {names.HEAD_EPOCH: str(epoch)} if epoch else {}
        return pod(name, revision=self.revision, annotations=annotations, metadata={"resourceVersion": "1"})

    def set_ready(self, name: str, ready: bool) -> None:
        (condition,) = self.of_name[name]["status"]["conditions"]
        condition["status"] = str(ready)

    def keep_from_starting(self, name: str) -> None:
        self.set_ready(name, False)
        self.of_name[name]["status"]["containerStatuses"] = []

    # as a cache

    def pods(self) -> list[Object]:
        return list(self.of_name.values())

    def deployments(self) -> list[Object]:
        return list(self.running.values())

    def has(self, kind: str, name: str) -> bool | None:
        return self.kinds.get(kind, True)

    # as the root

    async def save(self, state: LoopState, report: Report | None) -> None:
        self.writes.append("save")
        self.state = state

    # as a client

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        self._write("patch", kind.kind, name)
        if kind is DEPLOYMENT:
            self.running[name]["spec"] |= body.get("spec", {})
            self.running[name]["metadata"]["annotations"] |= body.get("metadata", {}).get("annotations", {})
            return self.running[name]
        if kind is SECRET:
            found = self.stored["Secret", name]
            annotations = {**found["metadata"].get("annotations", {}), **body["metadata"]["annotations"]}
            found["metadata"] = {**found["metadata"], "annotations": annotations, "resourceVersion": "2"}
            found["data"] |= body["data"]
            return found
        assert kind is POD
        self.of_name[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]
        return self.of_name[name]

    async def apply(self, obj: Object) -> Object:
        name = obj["metadata"]["name"]
        self._write("apply", obj["kind"], name)
        if obj["kind"] == "Deployment":
            before = self.running.get(name, {"metadata": {"uid": name, "resourceVersion": "1", "generation": 1}})
            kept = {key: before["metadata"][key] for key in ("uid", "resourceVersion", "generation")}
            self.running[name] = {**before, **obj, "metadata": {**obj["metadata"], **kept}}
            return self.running[name]
        self.kinds[obj["kind"]] = None if self.kinds.get(obj["kind"], True) is None else True
        return self._store(obj)

    async def create(self, obj: Object) -> Object:
        self._write("create", obj["kind"], obj["metadata"]["name"])
        return self._store(obj)

    def _store(self, obj: Object) -> Object:
        """As the API server returns it."""
        key = (obj["kind"], obj["metadata"]["name"])
        metadata = {"uid": "-".join(key), "resourceVersion": "1", **obj["metadata"]}
        self.stored[key] = {**obj, "metadata": metadata}
        return self.stored[key]

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str = "") -> bool:
        self._write("delete", kind.kind, name)
        if kind not in (DEPLOYMENT, POD):
            return self.stored.pop((kind.kind, name), None) is not None
        found = self.running if kind is DEPLOYMENT else self.of_name
        return found.pop(name, None) is not None

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if (kind.kind, name) in self.stored:
            return self.stored[kind.kind, name]
        raise ApiError(404, {"reason": "NotFound"})

    async def list(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, {"reason": "Forbidden"})

    def _write(self, verb: str, kind: str, name: str) -> None:
        self.writes.append(f"{verb} {kind}/{name}")
        if self.refusal is not None:
            raise self.refusal

    # as a loop

    def observe(self) -> Observed:
        return asyncio.run(self.place.observe(self.desired))

    def record(self, *victims: str) -> None:
        state = LoopState(retiring={MemberId(victim): DRAINED_LONG_AGO for victim in victims})
        asyncio.run(self.place.record(self.desired, state))

    def remove(self, *victims: str, force: bool = False, grace: float | None = None) -> Names:
        """A pass that finds them drained; the messages of what the removal waits for."""
        self.record(*victims)
        desired = replace(self.desired, force=force)
        step = Remove(tuple(map(MemberId, victims)), "no longer wanted", grace)
        waits: Sequence[Cause] = asyncio.run(self.place.remove(desired, step))
        return [wait.message for wait in waits]

    def ensure(self, *members: str) -> None:
        """A pass that observes these workers, those that leave among them."""
        step = Ensure(self.desired.shape.workers[0], tuple(map(MemberId, members)))
        asyncio.run(self.place.ensure(self.desired, step))

    def ensure_head(self, *, settled: bool = False) -> None:
        asyncio.run(self.place.ensure(self.desired, Ensure(self.desired.shape.head, (HEAD,), settled)))

    def collect(self) -> None:
        asyncio.run(self.place.collect(self.desired))

    @property
    def deployment(self) -> Object:
        return self.running["demo-worker"]

    @property
    def replicas(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    @property
    def epoch(self) -> int:
        return Fingerprint.of(self.deployment).epoch

    @property
    def leaving(self) -> Names:
        return [name for name, each in self.of_name.items() if names.LEAVING in each["metadata"]["annotations"]]
