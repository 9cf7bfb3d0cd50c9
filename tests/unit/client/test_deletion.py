"""Stopping a cluster on Kubernetes, in particular if another one has taken its name."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from oars.base.errors import Denied, NotFound, OarsError, Replaced
from oars.base.settings import Settings
from oars.client import deletion
from oars.client.backend import CreateOptions, Location, LogOptions
from oars.client.handles import scale
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.kube.client import Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SELF_SUBJECT_ACCESS_REVIEW,
    Kind,
    Object,
    kind_of,
)
from oars.model import HEAD
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.root import dump_intent
from oars.service import Service
from oars.spec.load import build
from tests.unit.client.test_kube_backend import GROUPS, Server, handle_on, put_direct, put_operated, put_own_namespace
from tests.unit.places.test_kube_observe import created_by

MODES = ["direct", "operator"]
ROOTS = {"direct": (CONFIG_MAP, names.root("demo")), "operator": (COMPUTE_CLUSTER, "demo")}
MEMBER = created_by("demo-head", names.pod_labels("demo"))


class Shared(Server):
    """Objects created through it have other UIDs than those put there."""

    async def create(self, obj: Object, kind: Kind | None = None, *, dry_run: bool = False) -> Object:
        kind = kind_of(obj)
        if kind == SELF_SUBJECT_ACCESS_REVIEW:
            return {**obj, "status": {"allowed": True}}
        name = str(obj["metadata"]["name"])
        self.put(kind, name, **{**obj, "metadata": {**obj["metadata"], "uid": f"my {name}"}})
        return await self.get(kind, name)


Stop = Callable[[KubeHandle], None]


def stop(handle: KubeHandle) -> None:
    assert asyncio.run(handle.stop(1))


def stop_at_exit(handle: KubeHandle) -> None:
    handle.stop_at_exit()


def stop_twice(handle: KubeHandle) -> None:
    stop(handle)
    stop(handle)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deletion, "FORCE_AFTER", 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The API server of all backends, including the one that stop_at_exit() makes. Clusters are not reconciled."""

    async def no_reconciler(*_: object) -> None:
        """Reconcile nothing."""

    server = Shared()
    monkeypatch.setattr(KubeBackend, "client", server)
    monkeypatch.setattr(KubeHandle, "_reconciler", no_reconciler)
    return server


def create(mode: str, job: str = "") -> KubeHandle:
    """Create a cluster in a namespace of its own."""
    backend = KubeBackend(Settings.from_environ(os.environ), {}, Location("kubernetes", namespace="team", mode=mode))
    spec = build({**GROUPS, "image": "i:1", "namespace": {"create": True}}).spec
    return asyncio.run(backend.create("demo", spec, CreateOptions(tied=True, job=job)))


@pytest.mark.parametrize("mode", MODES)
def test_root_names_its_job_and_its_namespace(server: Shared, mode: str) -> None:
    create(mode, job="a-mark")
    kind, name = ROOTS[mode]
    annotations = server.objects[kind.kind, name]["metadata"]["annotations"]
    expected = {names.INSTANCE: "a-mark", names.CREATED_NAMESPACE: "my team"}
    assert {key: value for key, value in annotations.items() if key != names.OWNER} == expected
    assert (names.OWNER in annotations) is (mode == "operator"), "the first renewal"


def replace_cluster(server: Server, mode: str) -> list[Any]:
    """Replace the cluster by another of the same name; the objects of that one."""
    server.objects = {key: obj for key, obj in server.objects.items() if key[0] == "Namespace"}
    (put_direct if mode == "direct" else put_operated)(server, GROUPS)
    server.put(POD, "theirs", metadata=MEMBER)
    return list(server.objects)


@pytest.mark.parametrize("stop_it", [stop, stop_at_exit, stop_twice])
@pytest.mark.parametrize("their", MODES)
@pytest.mark.parametrize("my", MODES)
def test_cluster_that_took_the_name_is_not_stopped(server: Shared, my: str, their: str, stop_it: Stop) -> None:
    """As after a laptop slept. Its objects are neither deleted nor waited for."""
    handle = create(my)
    theirs = replace_cluster(server, their)
    stop_it(handle)
    assert list(server.objects) == theirs


@pytest.mark.parametrize("my", MODES)
def test_second_stop_does_not_affect_a_newer_cluster(server: Shared, my: str) -> None:
    handle = create(my)
    stop(handle)
    theirs = replace_cluster(server, my)
    stop(handle)
    assert list(server.objects) == theirs


@pytest.mark.parametrize("stop_it", [stop, stop_at_exit])
@pytest.mark.parametrize("my", MODES)
def test_own_namespace_is_deleted(server: Shared, my: str, stop_it: Stop) -> None:
    stop_it(create(my))
    assert not {(kind.kind, name) for kind, name in (*ROOTS.values(), (NAMESPACE, "team"))} & set(server.objects)


@pytest.mark.parametrize("my", MODES)
def test_leftover_namespace_is_deleted(server: Shared, my: str) -> None:
    """The helper in the head's pod has removed the rest."""
    handle = create(my)
    kind, name = ROOTS[my]
    del server.objects[kind.kind, name]
    stop(handle)
    assert ("Namespace", "team") not in server.objects


def put_cluster(server: Server, mode: str) -> None:
    (put_direct if mode == "direct" else put_operated)(server, GROUPS)


def is_kept(server: Server) -> bool:
    return ("Namespace", "team") in server.objects


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metadata", [{"labels": names.labels("demo", "dask")}, {}], ids=["labels", "nothing"])
def test_namespace_that_existed_before_is_kept(server: Shared, mode: str, metadata: Object) -> None:
    """`oars render --create-namespace | kubectl apply -f -` used to label a shared namespace."""
    server.put(NAMESPACE, "team", metadata=metadata)
    put_cluster(server, mode)
    stop(handle_on(server))
    assert list(server.objects) == [("Namespace", "team")]
    assert not asyncio.run(handle_on(server).has_leftovers())


@pytest.mark.parametrize("mode", MODES)
def test_namespace_created_for_an_earlier_cluster_of_the_name_is_kept(server: Shared, mode: str) -> None:
    """Somebody created the second one in the namespace that was left."""
    put_own_namespace(server)
    put_cluster(server, mode)
    stop(handle_on(server))
    assert is_kept(server)


OTHERS: dict[str, tuple[Kind, str, Object]] = {
    "pod": (POD, "notebook", {"labels": {"app": "notebook"}}),
    "another cluster": (COMPUTE_CLUSTER, "other", {}),
    "another direct cluster": (CONFIG_MAP, "other-oars", {"labels": names.labels("other", "dask")}),
    "data": (PERSISTENT_VOLUME_CLAIM, "data", {}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("mode", MODES)
def test_namespace_with_other_objects_is_kept_with_a_message(
    server: Shared, mode: str, other: tuple[Kind, str, Object]
) -> None:
    handle = create(mode)
    kind, name, metadata = other
    server.put(kind, name, metadata=metadata)
    server.put(CONFIG_MAP, "kube-root-ca.crt")
    with pytest.raises(OarsError, match=f"is stopped. Namespace 'team' .* contains {kind.kind} {name}\\.") as raised:
        asyncio.run(handle.stop(1))
    assert "`kubectl delete namespace team`" in raised.value.hint
    root, root_name = ROOTS[mode]
    assert (root.kind, root_name) not in server.objects, "the cluster itself is gone"
    assert is_kept(server) and (kind.kind, name) in server.objects
    del server.objects[kind.kind, name]
    stop(handle_on(server))
    assert not is_kept(server)


def test_kinds_that_one_may_not_list_do_not_keep_a_namespace(server: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    list_all = server.list

    async def list_some(kind: Kind, *which: Any, **how: Any) -> Listing:
        if kind in (POD, CONFIG_MAP):
            return await list_all(kind, *which, **how)
        raise ApiError(403, {"reason": "Forbidden"})

    monkeypatch.setattr(server, "list", list_some)
    stop(create("direct"))
    assert not is_kept(server)


@pytest.mark.parametrize("their", MODES)
def test_cluster_of_another_client_can_be_stopped_by_name(server: Shared, their: str) -> None:
    create(their)
    stop(handle_on(server))
    kind, name = ROOTS[their]
    assert (kind.kind, name) not in server.objects


Use = Callable[[KubeHandle], Coroutine[Any, Any, object]]


async def follow(handle: KubeHandle) -> list[str]:
    return [line async for line in handle.logs(HEAD, LogOptions(follow=True))]


USES: dict[str, Use] = {
    "spec": lambda handle: handle.spec(),
    "generation": lambda handle: handle.generation(),
    "status": lambda handle: handle.report(),
    "scale": lambda handle: scale(handle, 3, "a"),
    "force": lambda handle: scale(handle, 3, "a", force=True),
    "apply": lambda handle: handle.apply(build(GROUPS).spec),
    "members": lambda handle: handle.members(),
    "logs": follow,
    "open": lambda handle: handle.open(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("their", MODES)
@pytest.mark.parametrize("my", MODES)
@pytest.mark.parametrize("found", [False, True], ids=["created", "found"])
def test_using_a_replaced_cluster_raises_and_changes_nothing(
    server: Shared, found: bool, my: str, their: str, use: Use
) -> None:
    handle = create(my)
    if found:
        handle = handle_on(server)
        assert asyncio.run(handle.spec()).engine == "dask"
    replace_cluster(server, their)
    theirs = copy.deepcopy(server.objects)
    with pytest.raises(Replaced):
        asyncio.run(use(handle))
    assert server.objects == theirs


@pytest.mark.parametrize("their", MODES)
def test_cluster_replaced_during_scale_is_not_scaled(server: Shared, their: str) -> None:
    handle = create(their)
    server.before_writing = lambda: replace_cluster(server, their).clear()
    with pytest.raises(Replaced):
        asyncio.run(scale(handle, 3, "a"))
    assert [group.replicas for group in asyncio.run(handle_on(server).spec()).workers] == [1, 1]


@pytest.mark.parametrize("my", MODES)
def test_deleted_cluster_is_not_found(server: Shared, my: str) -> None:
    handle = create(my)
    kind, name = ROOTS[my]
    del server.objects[kind.kind, name]
    with pytest.raises(NotFound, match="There is no cluster 'demo' in namespace 'team'"):
        asyncio.run(handle.spec())
    assert asyncio.run(handle.members()) == [], "pods that outlive the cluster would be listed"


@pytest.mark.parametrize("my", MODES)
def test_found_cluster_is_stopped_but_not_its_successor(server: Shared, my: str) -> None:
    create(my)
    handle = handle_on(server)
    asyncio.run(handle.spec())
    theirs = replace_cluster(server, my)
    stop(handle)
    assert list(server.objects) == theirs


def test_stop_waits_for_members_only(server: Shared) -> None:
    """Anyone who may label a pod can give it the label of a cluster."""
    handle = create("direct")
    server.put(POD, "odd", metadata={"labels": {names.CLUSTER: "demo"}})
    server.put(POD, "demo-head-1", metadata={**MEMBER, "deletionTimestamp": "2026-01-01T00:00:00Z"})
    stop(handle)
    assert [name for kind, name in server.objects if kind == "Pod"] == ["odd"]


def test_pod_that_would_be_replaced_is_left_to_kubernetes(server: Shared) -> None:
    """A pod whose ReplicaSet still exists comes back, and would end after its whole grace period."""
    server.put(POD, "demo-head-1", metadata=MEMBER)
    assert not asyncio.run(deletion.await_end(cast(Any, server), "demo", "team", 0.1))
    assert ("Pod", "demo-head-1") in server.objects


def test_denied_deletion_of_a_compute_cluster_keeps_its_config_map() -> None:
    class Refusing(Server):
        async def delete(self, kind: Kind, name: str, *_: Any, **how: Any) -> bool:
            if kind is COMPUTE_CLUSTER:
                raise ApiError(403, {"reason": "Forbidden", "message": "no"})
            return await super().delete(kind, name, *_, **how)

    server = Refusing()
    put_operated(server, GROUPS)
    server.put(CONFIG_MAP, names.root("demo"), data={"dask.yaml": ""})
    with pytest.raises(Denied):
        asyncio.run(handle_on(server).stop(1))
    assert ("ConfigMap", "demo-oars") in server.objects
    del server.objects["ComputeCluster", "demo"]
    server.put(CONFIG_MAP, names.root("demo"), data=dump_intent(Intent(GROUPS)))
    assert asyncio.run(handle_on(server).stop(1))
    assert not server.objects


@pytest.mark.parametrize("by_service", [True, False], ids=["service", "handle"])
def test_unreadable_compute_cluster_keeps_its_config_map(monkeypatch: pytest.MonkeyPatch, by_service: bool) -> None:
    """The service finds the cluster by its namespace, which was created for it."""

    class Hiding(Server):
        async def get(self, kind: Kind, *which: Any) -> Object:
            return await super().get(_readable(kind), *which)

        async def list(self, kind: Kind, *which: Any, **how: Any) -> Listing:
            return await super().list(_readable(kind), *which, **how)

        async def delete(self, kind: Kind, *which: Any, **how: Any) -> bool:
            return await super().delete(_readable(kind), *which, **how)

    server = Hiding()
    put_operated(server, GROUPS)
    owners = [{"kind": "ComputeCluster", "name": "demo", "uid": "ComputeCluster demo"}]
    server.put(CONFIG_MAP, names.root("demo"), metadata={"ownerReferences": owners}, data={"dask.yaml": ""})
    put_own_namespace(server)
    before = copy.deepcopy(server.objects)
    monkeypatch.setattr(KubeBackend, "client", server)
    if by_service:
        service = Service({}, Location("kubernetes", namespace="team"))
        error = asyncio.run(service.stop(["demo"], 1))["demo"]
        assert isinstance(error, Denied) and "Cluster 'demo' belongs to an operator." in error.message
    else:
        with pytest.raises(Denied):
            asyncio.run(handle_on(server).stop(1))
    assert server.objects == before


def _readable(kind: Kind) -> Kind:
    if kind is COMPUTE_CLUSTER:
        raise ApiError(403, {"reason": "Forbidden", "message": "no"})
    return kind
