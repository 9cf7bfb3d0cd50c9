"""A namespace as a home of clusters, on a small API server of our own that knows conflicts."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import NotFound
from oars.base.settings import Settings
from oars.cli import down, lookup
from oars.client import backends, deletion
from oars.client.backends import Where
from oars.client.kubernetes import KubeBackend
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, NAMESPACE, POD, Kind, Object
from oars.kube.target import Target
from oars.places.kube import names
from oars.places.kube.state.root import Intent

Key = tuple[str, str]
GROUPS = {"engine": "dask", "workers": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]}


@dataclass
class Server(Client):
    """Objects of one namespace. `before_writing` is called once, where another client would come in between."""

    objects: dict[Key, Object] = field(default_factory=dict)
    before_writing: Callable[[], None] | None = None
    deleted: list[Key] = field(default_factory=list)
    writes: int = 0
    target: Target = field(default_factory=lambda: Target("https://k", namespace="team"))

    def put(self, kind: Kind, name: str, /, **content: Any) -> None:
        self.writes += 1  # one number for all: what is made anew has no version that was before
        metadata = {"name": name, "namespace": "team", "uid": f"{kind.kind} {name}", "generation": self.writes}
        metadata |= {**content.pop("metadata", {}), "resourceVersion": str(self.writes)}
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        self.objects[kind.kind, name] = {**head, "metadata": metadata, **content}

    async def close(self) -> None:
        """Nothing is open."""

    async def log_in(self) -> None:
        """Everybody may come in."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, {"reason": "NotFound"})
        return copy.deepcopy(self.objects[kind.kind, name])

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> Listing:
        return Listing([copy.deepcopy(obj) for (known, _), obj in self.objects.items() if known == kind.kind], "1")

    async def patch(self, kind: Kind, name: str, namespace: str | None, body: Object, **_: Any) -> Object:
        if self.before_writing is not None:
            come_between, self.before_writing = self.before_writing, None
            come_between()
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


def at_home(server: Server, namespace: str = "team") -> KubeBackend:
    home = KubeBackend(Settings.from_environ(os.environ), {}, Where("kubernetes", namespace=namespace))
    home._client_ = server
    return home


def with_direct(server: Server, spec: dict[str, Any]) -> None:
    labels = names.labels("demo", "dask")
    server.put(CONFIG_MAP, names.root("demo"), metadata={"labels": labels}, data=Intent(spec).data())


def with_operated(server: Server, spec: dict[str, Any]) -> None:
    server.put(COMPUTE_CLUSTER, "demo", spec=spec)


@pytest.mark.parametrize("made", [with_direct, with_operated])
def test_of_two_changes_at_once_none_is_lost(made: Callable[[Server, dict[str, Any]], None]) -> None:
    server = Server()
    made(server, GROUPS)
    mine, others = at_home(server), at_home(server)

    async def both() -> dict[str, int]:
        await others.mode("demo")

        def come_between() -> None:
            rival = others.scale("demo", 5, "b")
            with pytest.raises(StopIteration):  # nothing in it waits
                rival.send(None)

        server.before_writing = come_between
        await mine.scale("demo", 3, "a")
        return {group.name: group.replicas for group in (await mine.spec("demo")).workers}

    assert asyncio.run(both()) == {"a": 3, "b": 5}


def test_every_change_of_a_direct_cluster_has_a_generation_of_its_own() -> None:
    server = Server()
    with_direct(server, GROUPS)

    async def story() -> int:
        home = at_home(server)
        await home.scale("demo", 3, "a")
        await home.change("demo", (await home.spec("demo")).with_replicas("b", 4))
        return await home.generation("demo")

    assert asyncio.run(story()) == 3


def test_somebody_who_always_writes_first_is_told_of() -> None:
    class Busy(Server):
        async def patch(self, *_: Any, **__: Any) -> Object:
            raise ApiError(409, {"reason": "Conflict", "message": "the object has been modified"})

    server = Busy()
    with_direct(server, GROUPS)
    with pytest.raises(ApiError, match="modified"):
        asyncio.run(at_home(server).scale("demo", 3, "a"))


def test_its_own_namespace_goes_before_anyone_waits_for_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    with_direct(server, GROUPS)
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "demo"}})
    server.put(POD, "demo-head-1", metadata={"labels": names.pod_labels("demo")})
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.01)
    assert not asyncio.run(at_home(server).stop("demo", wait=0.05))
    assert server.deleted[-1] == ("Namespace", "team")


def test_a_namespace_of_others_stays() -> None:
    server = Server()
    with_direct(server, GROUPS)
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "another"}})
    assert asyncio.run(at_home(server).stop("demo", wait=1))
    assert ("Namespace", "team") in server.objects


def test_down_removes_a_namespace_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "demo"}})
    monkeypatch.setattr(backends, "kube_backend", lambda where, _: at_home(server, where.namespace))
    where = Where("kubernetes", namespace="team")
    assert isinstance(asyncio.run(down._stop("another", where, 1)), NotFound)
    with pytest.raises(NotFound):
        asyncio.run(lookup.report("demo", where))
    assert asyncio.run(down._stop("demo", where, 1)) is None
    assert server.deleted[-1] == ("Namespace", "team")
    assert isinstance(asyncio.run(down._stop("demo", where, 1)), NotFound)


@pytest.fixture(autouse=True)
def _no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
