"""Looking after a cluster from here: what is its own, and what happens when our own thinking breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.client.direct import Direct, Following
from oars.kube.client import Client, Listing
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Kind, Object
from oars.places.kube import names
from oars.places.kube.root import Intent

LABELS = names.labels("demo", "dask")
ROOT: Object = {
    "metadata": {"name": "demo-oars", "namespace": "n", "uid": "r", "resourceVersion": "1", "labels": LABELS},
    "data": Intent({"engine": "dask", "image": "i:1"}).data(),
}
OWNERS = [{"kind": "ConfigMap", "name": "demo-oars", "uid": "r"}]


def pod(name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1", "labels": {names.CLUSTER: "demo", **labels}}
    return {"metadata": metadata}


def deployment(name: str, owners: list[Object]) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1", "labels": LABELS, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"selector": {}}}


class Server:
    """Lists what it has; watches bring what is put into `events`. The Lease is another's."""

    def __init__(self, root: Object = ROOT, *others: tuple[Kind, Object]) -> None:
        self.listed = [(CONFIG_MAP, root), *others]
        self.events: dict[Kind, asyncio.Queue[tuple[str, Object]]] = {}

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        return Listing([obj for each, obj in self.listed if each is kind], "1")

    async def watch(self, kind: Kind, *_: object, **__: object) -> AsyncIterator[tuple[str, Object]]:
        queue = self.events.setdefault(kind, asyncio.Queue())
        while True:
            yield await queue.get()

    async def get(self, *_: object) -> Object:
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 1000}
        return {"metadata": {"resourceVersion": "1"}, "spec": spec}


def test_only_what_is_its_own_is_seen() -> None:
    member = pod("w", **{names.ROLE: "worker", names.GROUP: "default"})
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
        server.events.setdefault(POD, asyncio.Queue()).put_nowait(("ADDED", {"metadata": {}}))
        try:
            async for _ in direct.watch():
                pass
        finally:
            await direct.close()

    with pytest.raises(KeyError):
        asyncio.run(asyncio.wait_for(body(), 5))


def test_a_description_that_is_wrong_is_told() -> None:
    root: Any = {**ROOT, "data": Intent({"engine": "dask", "head": {"memory": "much"}}).data()}
    direct = Direct(cast(Client, Server(root)), "n", "demo", "me")
    with pytest.raises(OarsError) as told:
        direct._described(root)
    report = direct._troubled(told.value, Intent.of(root))
    assert report.status.reason == report.causes[0].reason == "InvalidSpec"
