"""Looking after a cluster from here: what is its own, for how long, and what happens when our own thinking breaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from oars.base.errors import NotFound, OarsError
from oars.client.direct import Direct, Following
from oars.control.loop import Loop
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Kind, Object
from oars.kube.lease import Elector
from oars.model import LoopState
from oars.places.kube import names
from oars.places.kube.place import KubePlace
from oars.places.kube.render.pod import Cluster
from oars.places.kube.state.root import NOTES, Intent

LABELS = names.labels("demo", "dask")
ROOT: Object = {
    "metadata": {"name": "demo-oars", "namespace": "n", "uid": "r", "resourceVersion": "1", "labels": LABELS},
    "data": Intent({"engine": "dask", "image": "i:1"}).data(),
}
THEIRS: Object = {**ROOT, "metadata": {**ROOT["metadata"], "uid": "another", "resourceVersion": "2"}}
OWNERS = [{"kind": "ConfigMap", "name": "demo-oars", "uid": "r"}]


def pod(name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1", "labels": {names.CLUSTER: "demo", **labels}}
    return {"metadata": metadata}


def deployment(name: str, owners: list[Object]) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1", "labels": LABELS, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"selector": {}}}


class Server:
    """Lists what it has; watches bring what is told. The Lease is another's, unless it is let go."""

    def __init__(self, root: Object = ROOT, *others: tuple[Kind, Object]) -> None:
        self.root = root
        self.listed = [(CONFIG_MAP, root), *others]
        self.events: dict[Kind, asyncio.Queue[tuple[str, Object]]] = {}
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 1000}
        self.lease: Object = {"metadata": {"resourceVersion": "1"}, "spec": spec}

    def tell(self, kind: Kind, what: str, obj: Object) -> None:
        self.events.setdefault(kind, asyncio.Queue()).put_nowait((what, obj))

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        return Listing([obj for each, obj in self.listed if each is kind], "1")

    async def watch(self, kind: Kind, *_: object, **__: object) -> AsyncIterator[tuple[str, Object]]:
        queue = self.events.setdefault(kind, asyncio.Queue())
        while True:
            yield await queue.get()

    async def get(self, kind: Kind, *_: object) -> Object:
        return self.root if kind is CONFIG_MAP else self.lease

    async def replace(self, lease: Object) -> Object:
        self.lease = lease
        return lease


class Noting(Direct):
    """Has nothing to do in a pass but to note what was to be remembered of those before."""

    def __init__(self, server: Server) -> None:
        super().__init__(cast(Client, server), "n", "demo", "me")
        self.passes: asyncio.Queue[int] = asyncio.Queue()

    async def _once(self, intent: Intent, cluster: Cluster, place: KubePlace, loop: Loop) -> float:
        self.passes.put_nowait((await place.observe()).notes.head_changes)
        return 1000

    async def heard_of_its_end(self) -> None:
        async for _ in self.watch():
            pass


def test_only_what_is_its_own_is_seen() -> None:
    member = pod("w", **{names.GROUP: "default"})
    server = Server(
        ROOT,
        (POD, member),
        (POD, pod("odd")),
        (DEPLOYMENT, deployment("demo-head", OWNERS)),
        (DEPLOYMENT, deployment("theirs", [])),
    )

    async def body() -> Following:
        following = Following(cast(Client, server), "n", "demo", asyncio.Event())
        await following.start()
        await following.close()
        return following

    seen = asyncio.run(body())
    assert [each["metadata"]["name"] for each in (*seen.pods(), *seen.deployments())] == ["w", "demo-head"]
    assert (seen.has("Deployment", "demo-head"), seen.has("Deployment", "theirs")) == (True, False)
    assert (seen.has("ConfigMap", "demo-oars"), seen.has("Service", "demo-head")) == (True, None)


def test_whoever_waits_hears_of_a_mistake_of_ours() -> None:
    """A watch that has ended leaves us with what was; and the cluster has not been deleted."""
    server = Server()

    async def body() -> None:
        direct = Direct(cast(Client, server), "n", "demo", "me")
        await direct.start()
        await asyncio.sleep(0)
        server.tell(POD, "ADDED", {"metadata": {}})
        try:
            async for _ in direct.watch():
                pass
        finally:
            await direct.close()

    with pytest.raises(KeyError):
        asyncio.run(asyncio.wait_for(body(), 5))


@pytest.mark.parametrize(
    ("kind", "what", "obj"),
    [(CONFIG_MAP, "DELETED", ROOT), (CONFIG_MAP, "MODIFIED", THEIRS), (POD, "ADDED", {"metadata": {}})],
    ids=["deleted", "another has its name", "a mistake of ours"],
)
def test_what_nobody_looks_after_any_more_is_not_led(kind: Kind, what: str, obj: Object) -> None:
    """A watch that broke may show another root without ever showing that ours is gone."""
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""

    async def body() -> Object:
        direct = Noting(server)
        await direct.start()
        await direct.passes.get()
        assert server.lease["spec"]["holderIdentity"] == "me"
        server.tell(kind, what, obj)
        with contextlib.suppress(KeyError):
            await direct.heard_of_its_end()
        found = server.lease
        await direct.close()
        assert server.lease is found, "all was said before"
        return found

    assert asyncio.run(asyncio.wait_for(body(), 5))["spec"]["holderIdentity"] == ""


def test_a_cluster_that_is_known_is_no_other_of_its_name() -> None:
    async def body() -> None:
        direct = Direct(cast(Client, Server(THEIRS)), "n", "demo", "me", "r")
        with pytest.raises(NotFound):
            await direct.start()

    asyncio.run(body())


def test_a_root_of_others_is_not_begun_with() -> None:
    """It has our root's name already, and our watch lags."""
    server = Server()

    async def body() -> None:
        direct = Noting(server)
        server.root = THEIRS
        with pytest.raises(NotFound) as told:
            await direct._begin(ROOT, direct._described(ROOT))
        assert await direct._failed(told.value, Intent.of(ROOT)) < 1, "the watch will show it"
        assert direct.report is None, "it is no trouble of the cluster's"

    asyncio.run(body())


def test_a_root_of_others_is_not_written_to() -> None:
    """It got our root's name since we began, and our watch lags. That is no trouble of the cluster's."""

    class Conflicting(Server):
        async def patch(self, *_: object, **__: object) -> Object:
            raise ApiError(409, {"reason": "Conflict"})

    class Writing(Noting):
        async def _once(self, intent: Intent, cluster: Cluster, place: KubePlace, loop: Loop) -> float:
            await super()._once(intent, cluster, place, loop)
            await place.record(LoopState(head_changes=1))
            raise AssertionError("it was written")

    server = Conflicting()

    async def body() -> None:
        direct = Writing(server)
        assert await direct._pass(ROOT) < 1, "the watch will show it"
        assert direct.passes.get_nowait() == 0 and direct.report is None
        await direct._let_go()

    asyncio.run(body())


class Elected:
    """As it is told."""

    def __init__(self) -> None:
        self.leads, self.error = True, None
        self.about: Object = {}

    async def lead(self) -> bool:
        return await asyncio.Event().wait()

    async def release(self) -> None:
        self.leads = False


def test_whoever_leads_again_begins_with_what_others_noted() -> None:
    server = Server()

    async def body() -> list[int]:
        direct, elected = Noting(server), Elected()
        direct._elector = cast(Elector, elected)
        await direct.start()
        seen = [await direct.passes.get()]
        for leads in (False, True):
            elected.leads = leads
            server.root = {**ROOT, "data": {**ROOT["data"], NOTES: json.dumps({"headChanges": 7})}}
            direct.poke()
            await asyncio.sleep(0.01)
        seen.append(await direct.passes.get())
        await direct.close()
        return seen

    assert asyncio.run(asyncio.wait_for(body(), 5)) == [0, 7]


def test_a_description_that_is_wrong_is_told() -> None:
    root: Any = {**ROOT, "data": Intent({"engine": "dask", "head": {"memory": "much"}}).data()}
    direct = Direct(cast(Client, Server(root)), "n", "demo", "me")
    with pytest.raises(OarsError) as told:
        direct._described(root)
    report = direct._troubled(told.value, Intent.of(root))
    assert report.status.reason == report.causes[0].reason == "InvalidSpec"
