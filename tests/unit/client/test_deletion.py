"""The end of a cluster: whose it is that has the name, and which pods are waited for."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oars.base.errors import Denied, NotFound
from oars.base.settings import Settings
from oars.cli import down
from oars.client import backends, deletion
from oars.client.backend import Making, Reading
from oars.client.backends import Where
from oars.client.kubernetes import KubeBackend
from oars.kube.client import Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, NAMESPACE, POD, Kind, Object, of
from oars.model import HEAD
from oars.places.kube import names
from oars.places.kube.state.root import Intent
from oars.spec.load import build
from tests.unit.client.test_kube_backend import GROUPS, Server, at_home, with_direct, with_operated

MODES = ["direct", "operator"]
ROOTS = {"direct": (CONFIG_MAP, names.root("demo")), "operator": (COMPUTE_CLUSTER, "demo")}
MEMBER = names.pod_labels("demo")


class Shared(Server):
    """What is made through it has another uid than what is put there."""

    async def create(self, obj: Object, kind: Kind | None = None) -> Object:
        kind, name = of(obj), str(obj["metadata"]["name"])
        self.put(kind, name, **{**obj, "metadata": {**obj["metadata"], "uid": f"my {name}"}})
        return await self.get(kind, name)


Stop = Callable[[KubeBackend], None]


def stopped(home: KubeBackend) -> None:
    assert asyncio.run(home.stop("demo", wait=1))


def stopped_at_exit(home: KubeBackend) -> None:
    home.stop_at_exit("demo")


def stopped_twice(home: KubeBackend) -> None:
    stopped(home)
    stopped(home)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deletion, "FORCE_AFTER", 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Shared:
    """The one that every home speaks to, also those that are made at the end. Nobody looks after clusters."""

    async def no_run(*_: object) -> None:
        pass

    server = Shared()
    monkeypatch.setattr(KubeBackend, "_client", server)
    monkeypatch.setattr(KubeBackend, "_run", no_run)
    return server


def made(mode: str) -> KubeBackend:
    """A cluster of ours in a namespace of its own."""
    home = KubeBackend(Settings.from_environ(os.environ), {}, Where("kubernetes", namespace="team", mode=mode))
    spec = build({**GROUPS, "image": "i:1", "namespace": {"create": True}}).spec
    asyncio.run(home.create("demo", spec, Making(True, lambda _: None)))
    return home


def replaced(server: Server, mode: str) -> list[Any]:
    """A colleague's cluster has the name now; what is theirs."""
    server.objects = {key: obj for key, obj in server.objects.items() if key[0] == "Namespace"}
    (with_direct if mode == "direct" else with_operated)(server, GROUPS)
    server.put(POD, "theirs", metadata={"labels": MEMBER})
    return list(server.objects)


@pytest.mark.parametrize("stop", [stopped, stopped_at_exit, stopped_twice])
@pytest.mark.parametrize("their", MODES)
@pytest.mark.parametrize("my", MODES)
def test_a_cluster_that_has_the_name_of_mine_stays(server: Shared, my: str, their: str, stop: Stop) -> None:
    """Mine was removed while a laptop slept. What is theirs is neither deleted nor waited for."""
    home = made(my)
    theirs = replaced(server, their)
    stop(home)
    assert list(server.objects) == theirs


@pytest.mark.parametrize("my", MODES)
def test_a_second_stop_leaves_what_came_after_the_first(server: Shared, my: str) -> None:
    home = made(my)
    stopped(home)
    theirs = replaced(server, my)
    stopped(home)
    assert list(server.objects) == theirs


@pytest.mark.parametrize("stop", [stopped, stopped_at_exit])
@pytest.mark.parametrize("my", MODES)
def test_mine_goes_with_its_namespace(server: Shared, my: str, stop: Stop) -> None:
    stop(made(my))
    assert not {(kind.kind, name) for kind, name in (*ROOTS.values(), (NAMESPACE, "team"))} & set(server.objects)


@pytest.mark.parametrize("my", MODES)
def test_a_namespace_that_was_left_of_mine_goes(server: Shared, my: str) -> None:
    """The helper beside the head has removed the rest."""
    home = made(my)
    kind, name = ROOTS[my]
    del server.objects[kind.kind, name]
    stopped(home)
    assert ("Namespace", "team") not in server.objects


@pytest.mark.parametrize("their", MODES)
def test_whoever_names_a_cluster_stops_it_whoever_made_it(server: Shared, their: str) -> None:
    made(their)
    stopped(at_home(server))
    kind, name = ROOTS[their]
    assert (kind.kind, name) not in server.objects


Use = Callable[[KubeBackend], Coroutine[Any, Any, object]]


async def follow(home: KubeBackend) -> list[str]:
    return [line async for line in home.lines("demo", HEAD, Reading(follow=True))]


USES: dict[str, Use] = {
    "spec": lambda home: home.spec("demo"),
    "generation": lambda home: home.generation("demo"),
    "status": lambda home: home.report("demo"),
    "scale": lambda home: home.scale("demo", 3, "a"),
    "force": lambda home: home.scale("demo", 3, "a", force=True),
    "change": lambda home: home.change("demo", build(GROUPS).spec),
    "members": lambda home: home.members("demo"),
    "logs": follow,
    "open": lambda home: home.open("demo"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("their", MODES)
@pytest.mark.parametrize("my", MODES)
@pytest.mark.parametrize("found", [False, True], ids=["made", "found"])
def test_whoever_uses_a_cluster_that_is_gone_hears_that_another_has_its_name(
    server: Shared, found: bool, my: str, their: str, use: Use
) -> None:
    home = made(my)
    if found:
        home = at_home(server)
        assert asyncio.run(home.spec("demo")).engine == "dask"
    replaced(server, their)
    theirs = copy.deepcopy(server.objects)
    with pytest.raises(NotFound, match="The cluster 'demo' is gone, and another one has its name"):
        asyncio.run(use(home))
    assert server.objects == theirs


@pytest.mark.parametrize("their", MODES)
def test_one_that_takes_the_name_while_it_is_scaled_is_not(server: Shared, their: str) -> None:
    home = made(their)
    server.before_writing = lambda: replaced(server, their).clear()
    with pytest.raises(NotFound, match="another one has its name"):
        asyncio.run(home.scale("demo", 3, "a"))
    stranger = at_home(server)
    assert [group.replicas for group in asyncio.run(stranger.spec("demo")).workers] == [1, 1]


@pytest.mark.parametrize("my", MODES)
def test_one_that_is_merely_gone_is_told_so(server: Shared, my: str) -> None:
    home = made(my)
    kind, name = ROOTS[my]
    del server.objects[kind.kind, name]
    with pytest.raises(NotFound, match="There is no cluster 'demo' in the namespace team"):
        asyncio.run(home.spec("demo"))
    assert asyncio.run(home.members("demo")) == [], "pods that are left of it could still be seen"


@pytest.mark.parametrize("my", MODES)
def test_one_that_was_found_is_stopped_and_no_other(server: Shared, my: str) -> None:
    made(my)
    home = at_home(server)
    asyncio.run(home.spec("demo"))
    theirs = replaced(server, my)
    stopped(home)
    assert list(server.objects) == theirs


def test_only_members_are_waited_for(server: Shared) -> None:
    """Whoever may label a pod can give it a cluster's name."""
    home = made("direct")
    server.put(POD, "odd", metadata={"labels": {names.CLUSTER: "demo"}})
    server.put(POD, "demo-head-1", metadata={"labels": MEMBER})
    stopped(home)
    assert [name for kind, name in server.objects if kind == "Pod"] == ["odd"]


def test_an_operators_cluster_that_one_may_not_delete_keeps_its_files() -> None:
    class Refusing(Server):
        async def delete(self, kind: Kind, name: str, *_: Any, **how: Any) -> bool:
            if kind is COMPUTE_CLUSTER:
                raise ApiError(403, {"reason": "Forbidden", "message": "no"})
            return await super().delete(kind, name, *_, **how)

    server = Refusing()
    with_operated(server, GROUPS)
    server.put(CONFIG_MAP, names.root("demo"), data={"dask.yaml": ""})
    with pytest.raises(Denied):
        asyncio.run(at_home(server).stop("demo", wait=1))
    assert ("ConfigMap", "demo-oars") in server.objects
    del server.objects["ComputeCluster", "demo"]
    server.put(CONFIG_MAP, names.root("demo"), data=Intent(GROUPS).data())
    assert asyncio.run(at_home(server).stop("demo", wait=1))
    assert not server.objects


@pytest.mark.parametrize("command", [True, False], ids=["oars down", "stop"])
def test_an_operators_cluster_that_one_may_not_even_see_keeps_its_files(
    monkeypatch: pytest.MonkeyPatch, command: bool
) -> None:
    """Its namespace, which was made for it, is why `oars down` comes so far."""

    class Hiding(Server):
        async def get(self, kind: Kind, *which: Any) -> Object:
            return await super().get(_shown(kind), *which)

        async def list(self, kind: Kind, *which: Any, **how: Any) -> Listing:
            return await super().list(_shown(kind), *which, **how)

        async def delete(self, kind: Kind, *which: Any, **how: Any) -> bool:
            return await super().delete(_shown(kind), *which, **how)

    server = Hiding()
    with_operated(server, GROUPS)
    owners = [{"kind": "ComputeCluster", "name": "demo", "uid": "ComputeCluster demo"}]
    server.put(CONFIG_MAP, names.root("demo"), metadata={"ownerReferences": owners}, data={"dask.yaml": ""})
    server.put(NAMESPACE, "team", metadata={"labels": {names.CLUSTER: "demo"}})
    before = copy.deepcopy(server.objects)
    monkeypatch.setattr(backends, "kube_backend", lambda *_: at_home(server))
    if command:
        error = asyncio.run(down._stop("demo", Where("kubernetes", namespace="team"), 1))
        assert isinstance(error, Denied) and "The cluster 'demo' is an operator's." in error.message
    else:
        with pytest.raises(Denied):
            asyncio.run(at_home(server).stop("demo", wait=1))
    assert server.objects == before


def _shown(kind: Kind) -> Kind:
    if kind is COMPUTE_CLUSTER:
        raise ApiError(403, {"reason": "Forbidden", "message": "no"})
    return kind
