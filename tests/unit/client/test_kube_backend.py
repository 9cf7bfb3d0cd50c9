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
from oars.client.handles import scale
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, SERVICE, Kind, Object
from oars.kube.target import Target
from oars.operator.owners import orphan_limit
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.root import dump_intent
from oars.service import Service
from oars.spec.cluster import ClusterSpec, Lifetime
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

    async def list(self, kind: Kind, namespace: str | None = None, *, labels: str = "", **_: Any) -> Listing:
        wanted = {tuple(each.split("=", 1)) for each in labels.split(",") if "=" in each}
        found = [obj for (known, _), obj in self.objects.items() if known == kind.kind]
        return Listing(
            [copy.deepcopy(obj) for obj in found if wanted <= {*obj["metadata"].get("labels", {}).items()}], "1"
        )

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


def put_own_namespace(server: Server, cluster: str = "demo") -> None:
    """As the call that created the cluster left it."""
    server.put(NAMESPACE, "team", metadata={"annotations": {names.CREATED_FOR: cluster}})
    for key in (("ConfigMap", names.root("demo")), ("ComputeCluster", "demo")):
        if key in server.objects:
            server.objects[key]["metadata"]["annotations"] = {names.CREATED_NAMESPACE: "Namespace team"}


@pytest.mark.parametrize("put", [put_direct, put_operated])
def test_concurrent_changes_are_both_applied(put: Callable[[Server, dict[str, Any]], None]) -> None:
    server = Server()
    put(server, GROUPS)
    mine, theirs = handle_on(server), handle_on(server)

    async def both() -> dict[str, int]:
        await theirs.mode()

        def write_first() -> None:
            rival = scale(theirs, 5, "b")
            with pytest.raises(StopIteration):  # it never awaits anything that blocks
                rival.send(None)

        server.before_writing = write_first
        await scale(mine, 3, "a")
        return {group.name: group.replicas for group in (await mine.spec()).workers}

    assert asyncio.run(both()) == {"a": 3, "b": 5}


def test_every_change_of_a_direct_cluster_increments_its_generation() -> None:
    server = Server()
    put_direct(server, GROUPS)

    async def change_twice() -> int:
        handle = handle_on(server)
        await scale(handle, 3, "a")
        await handle.apply((await handle.spec()).with_group("b", replicas=4))
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


def test_address_is_that_of_the_node_with_the_running_head() -> None:
    """Not of a worker's node, nor of the node where an earlier head was."""
    server = Server()
    put_direct(server, {**GROUPS, "expose": {"type": "NodePort"}})
    ports = [{"port": 8786, "nodePort": 30001}, {"port": 8787, "nodePort": 30002}]
    server.put(SERVICE, names.head("demo"), spec={"type": "NodePort", "clusterIP": "10.0.0.1", "ports": ports})

    def put_pod(name: str, created: int, node: str, creator: str, group: str) -> None:
        metadata = created_by(creator, names.pod_labels("demo", group))
        metadata["creationTimestamp"] = f"2026-01-01T00:00:0{created}Z"
        server.put(POD, name, metadata=metadata, spec={}, status={"phase": "Running", "hostIP": node})

    put_pod("worker", 3, "192.168.0.1", names.workers("demo", "a"), "a")
    put_pod("head-1", 1, "192.168.0.2", names.head("demo"), "head")
    handle = handle_on(server)
    assert asyncio.run(handle.address(5)) == "tls://192.168.0.2:30001"
    put_pod("head-2", 2, "192.168.0.3", names.head("demo"), "head")
    server.objects["Pod", "head-1"]["status"]["phase"] = "Failed"
    assert asyncio.run(handle.address(5)) == "tls://192.168.0.3:30001"


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
        asyncio.run(scale(handle_on(server), 3, "a"))


def test_head_is_a_pod_of_the_clusters_own_deployment() -> None:
    """Clients send their credentials to it."""
    server = Server()
    put_direct(server, GROUPS)
    for name, creator, created in (("ours", "demo-head", "2026-11-16"), ("theirs", "mine", "2026-11-17")):
        metadata = {"creationTimestamp": created, **created_by(creator, names.pod_labels("demo"))}
        server.put(POD, name, metadata=metadata, status={"phase": "Running"})
    head = asyncio.run(handle_on(server)._running_head())
    assert head is not None and head["metadata"]["name"] == "ours"


def test_own_namespace_is_deleted_before_waiting_for_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    put_direct(server, GROUPS)
    put_own_namespace(server)
    server.put(POD, "demo-head-1", metadata=created_by("demo-head", names.pod_labels("demo")))
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.01)
    assert not asyncio.run(handle_on(server).stop(0.05))
    assert server.deleted[-1] == ("Namespace", "team")


def test_namespace_of_another_cluster_is_kept() -> None:
    server = Server()
    put_direct(server, GROUPS)
    put_own_namespace(server, "another")
    assert asyncio.run(handle_on(server).stop(1))
    assert ("Namespace", "team") in server.objects


def test_stop_removes_a_leftover_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    put_own_namespace(server)
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


def test_missing_cluster_error_says_where_oars_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(KubeBackend, "client", Server(target=Target("https://k", namespace="team", context="lab")))
    environ = {"OARS_STATE_DIR": str(tmp_path), "KUBECONFIG": "somewhere"}
    with pytest.raises(NotFound) as raised:
        asyncio.run(Service(environ).get("kd"))
    assert raised.value.message == (
        "There is no cluster 'kd' on this machine, nor in namespace 'team' of context 'lab'."
    )
    assert raised.value.hint == "Run `oars ls -A` to look in all namespaces."


def test_rendered_cluster_is_not_tracked_and_the_error_says_how_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.put(DEPLOYMENT, "demo-head", metadata={"labels": names.labels("demo", "ray")})
    monkeypatch.setattr(KubeBackend, "client", server)
    service = Service({}, Location("kubernetes", namespace="team"))
    with pytest.raises(NotFound, match="'demo' in namespace 'team' was made from rendered manifests") as raised:
        asyncio.run(service.get("demo"))
    assert "kubectl -n team get pods -l oars.dev/cluster=demo" in raised.value.hint
    server.put(DEPLOYMENT, "demo-head", metadata={"labels": {names.CLUSTER: "demo"}, "ownerReferences": [{}]})
    with pytest.raises(NotFound, match="There is no cluster 'demo' in namespace 'team'"):
        asyncio.run(service.get("demo"))


@pytest.mark.parametrize(
    ("may_patch", "tied", "orphaned"),
    [(True, True, 600.0), (False, True, 600.0), (True, False, 600.0), (True, True, 0.0)],
)
def test_tied_cluster_is_created_with_its_owner_if_that_may_renew(may_patch: bool, tied: bool, orphaned: float) -> None:
    """A program that is killed before its first renewal leaves nothing."""
    created: list[Object] = []

    class Api(Server):
        async def create(self, obj: Object, *_: Any, **__: Any) -> Object:
            if obj["kind"] == "SelfSubjectAccessReview":
                assert obj["spec"]["resourceAttributes"]["verb"] == "patch" and not obj["metadata"]
                return {**obj, "status": {"allowed": may_patch}}
            created.append(copy.deepcopy(obj))
            self.put(COMPUTE_CLUSTER, "demo", spec=obj["spec"])
            return await self.get(COMPUTE_CLUSTER, "demo")

    async def run() -> None:
        handle = handle_on(Api())
        spec = ClusterSpec(engine="dask", lifetime=Lifetime(orphaned=orphaned))
        await handle.create("operator", spec, {}, tied=tied)
        await handle.close()

    asyncio.run(run())
    (made,) = created
    is_owned = may_patch and tied and orphaned > 0
    assert (names.OWNER in made["metadata"].get("annotations", {})) is is_owned
    assert orphan_limit(made) == (600.0 if is_owned else 0.0)


def test_missing_namespace_is_named_with_what_to_do() -> None:
    class Empty(Server):
        async def create(self, obj: Object, *_: Any, **__: Any) -> Object:
            raise ApiError(404, {"reason": "NotFound", "message": 'namespaces "team" not found'})

    with pytest.raises(NotFound, match="Namespace team does not exist") as raised:
        asyncio.run(handle_on(Empty()).create("direct", ClusterSpec(engine="dask"), {}, tied=False))
    assert "kubectl create namespace team" in raised.value.hint and "create: true" in raised.value.hint
