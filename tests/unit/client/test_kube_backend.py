"""KubeBackend and KubeHandle on a fake API server that detects conflicts."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import NotFound, SpecError
from oars.base.settings import Settings
from oars.client import deletion, kubernetes
from oars.client.backend import Location
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, NAMESPACE, POD, Kind, Object
from oars.kube.target import Target
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.root import dump_intent
from oars.service import Service
from tests.unit.places.test_kube_observe import created_by

Key = tuple[str, str]
GROUPS = {"engine": "dask", "workers": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]}


@dataclass
class Server(Client):
    """Objects of one namespace. `before_writing` is called once before a patch, as a concurrent client would be."""

    objects: dict[Key, Object] = field(default_factory=dict)
    before_writing: Callable[[], None] | None = None
    deleted: list[Key] = field(default_factory=list)
    writes: int = 0
    target: Target = field(default_factory=lambda: Target("https://k", namespace="team"))

    def put(self, kind: Kind, name: str, /, **content: Any) -> None:
        self.writes += 1  # one counter for all objects, so that no version repeats
        metadata = {"name": name, "namespace": "team", "uid": f"{kind.kind} {name}", "generation": self.writes}
        metadata |= {**content.pop("metadata", {}), "resourceVersion": str(self.writes)}
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        self.objects[kind.kind, name] = {**head, "metadata": metadata, **content}

    async def close(self) -> None:
        """Nothing is open."""

    async def log_in(self) -> None:
        """No credentials are needed."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, {"reason": "NotFound"})
        return copy.deepcopy(self.objects[kind.kind, name])

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> Listing:
        return Listing([copy.deepcopy(obj) for (known, _), obj in self.objects.items() if known == kind.kind], "1")

    async def patch(self, kind: Kind, name: str, namespace: str | None, body: Object, **_: Any) -> Object:
        if self.before_writing is not None:
            write_first, self.before_writing = self.before_writing, None
            write_first()
        known = await self.get(kind, name)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, known["metadata"]["resourceVersion"]):
            raise ApiError(409, {"reason": "Conflict"})
        for part in ("data", "spec"):
            merged = {**known.get(part, {}), **body.get(part, {})}
            known[part] = {key: value for key, value in merged.items() if value is not None}
        del known["metadata"]["resourceVersion"]
        self.put(kind, name, **known)
        return await self.get(kind, name)

    async def delete(
        self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None, **_: Any
    ) -> bool:
        if (kind.kind, name) not in self.objects:
            return False
        if uid not in (None, self.objects[kind.kind, name]["metadata"]["uid"]):
            raise ApiError(409, {"reason": "Conflict"})
        self.deleted.append((kind.kind, name))
        del self.objects[kind.kind, name]
        return True


def backend_on(server: Server) -> KubeBackend:
    backend = KubeBackend(Settings.from_environ(os.environ), {}, Location("kubernetes", namespace="team"))
    backend._client = server
    return backend


def handle_on(server: Server) -> KubeHandle:
    return backend_on(server).cluster("demo")


def put_direct(server: Server, spec: dict[str, Any]) -> None:
    labels = names.labels("demo", "dask")
    server.put(CONFIG_MAP, names.root("demo"), metadata={"labels": labels}, data=dump_intent(Intent(spec)))


def put_operated(server: Server, spec: dict[str, Any]) -> None:
    server.put(COMPUTE_CLUSTER, "demo", spec=spec)


@pytest.mark.parametrize("put", [put_direct, put_operated])
def test_concurrent_changes_are_both_applied(put: Callable[[Server, dict[str, Any]], None]) -> None:
    server = Server()
    put(server, GROUPS)
    mine, theirs = handle_on(server), handle_on(server)

    async def both() -> dict[str, int]:
        await theirs.mode()

        def write_first() -> None:
            rival = theirs.scale(5, "b")
            with pytest.raises(StopIteration):  # it never awaits anything that blocks
                rival.send(None)

        server.before_writing = write_first
        await mine.scale(3, "a")
        return {group.name: group.replicas for group in (await mine.spec()).workers}

    assert asyncio.run(both()) == {"a": 3, "b": 5}


def test_every_change_of_a_direct_cluster_increments_its_generation() -> None:
    server = Server()
    put_direct(server, GROUPS)

    async def change_twice() -> int:
        handle = handle_on(server)
        await handle.scale(3, "a")
        await handle.apply((await handle.spec()).with_replicas("b", 4))
        return await handle.generation()

    assert asyncio.run(change_twice()) == 3


def test_stored_spec_is_read() -> None:
    server = Server()
    put_operated(server, {"engine": "dask", "replicas": 4, "workers": [{"cpu": 2}]})
    spec = asyncio.run(handle_on(server).spec())
    assert (spec.place, [(group.replicas, group.cpu) for group in spec.workers]) == ("kubernetes", [(4, 2)])


@pytest.mark.parametrize(
    ("put", "edit"),
    [
        (put_direct, "kubectl edit configmap demo-oars -n team"),
        (put_operated, "kubectl edit computecluster demo -n team"),
    ],
)
def test_invalid_stored_spec_is_reported_as_such(put: Callable[[Server, dict[str, Any]], None], edit: str) -> None:
    server = Server()
    put(server, {"engine": "dask", "head": {"memory": "much"}})
    with pytest.raises(SpecError, match=r"^The spec of cluster 'demo' in Kubernetes is invalid: ") as raised:
        asyncio.run(handle_on(server).spec())
    assert f"`{edit}`" in raised.value.hint


def test_concurrent_calls_share_one_reconciler(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Slow:
        def __init__(self, *_: object) -> None:
            started.append(self)

        async def start(self) -> None:
            await asyncio.sleep(0)

    monkeypatch.setattr(kubernetes, "Direct", Slow)

    async def twice() -> tuple[Any, Any]:
        handle = handle_on(Server())
        return await asyncio.gather(handle._reconciler(), handle._reconciler())

    first, second = asyncio.run(twice())
    assert first is second and started == [first]


def test_permanent_conflict_is_an_error() -> None:
    class Busy(Server):
        async def patch(self, *_: Any, **__: Any) -> Object:
            raise ApiError(409, {"reason": "Conflict", "message": "the object has been modified"})

    server = Busy()
    put_direct(server, GROUPS)
    with pytest.raises(ApiError, match="modified"):
        asyncio.run(handle_on(server).scale(3, "a"))


def test_own_namespace_is_deleted_before_waiting_for_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    put_direct(server, GROUPS)
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "demo"}})
    server.put(POD, "demo-head-1", metadata=created_by("demo-head", names.pod_labels("demo")))
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.01)
    assert not asyncio.run(handle_on(server).stop(0.05))
    assert server.deleted[-1] == ("Namespace", "team")


def test_namespace_of_another_cluster_is_kept() -> None:
    server = Server()
    put_direct(server, GROUPS)
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "another"}})
    assert asyncio.run(handle_on(server).stop(1))
    assert ("Namespace", "team") in server.objects


def test_stop_removes_a_leftover_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "demo"}})
    monkeypatch.setattr(KubeBackend, "client", server)
    service = Service({}, Location("kubernetes", namespace="team"))
    assert isinstance(asyncio.run(service.stop(["another"], 1))["another"], NotFound)
    with pytest.raises(NotFound):
        asyncio.run(service.get("demo"))
    assert asyncio.run(service.stop(["demo"], 1)) == {"demo": None}
    assert server.deleted[-1] == ("Namespace", "team")
    assert isinstance(asyncio.run(service.stop(["demo"], 1))["demo"], NotFound)


@pytest.fixture(autouse=True)
def _no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
