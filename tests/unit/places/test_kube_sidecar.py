"""A cluster that shall go with its owner, where its owner may or may not make the Role for that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from oars import engines
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.model import Cause, Desired, Ensure, LoopState, MemberId, Observed, View
from oars.places.kube import names
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render import sidecar
from oars.places.kube.render.describe import describe, desired
from oars.places.kube.why.evidence import Evidence
from oars.places.kube.wire import Reach
from oars.plan.why import explain
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Status
from tests.unit.places.test_kube_observe import Object

FORBIDDEN = {"message": "forbidden", "details": {"group": "rbac.authorization.k8s.io", "kind": "roles"}}
SPEC = ClusterSpec.model_validate({"engine": "dask", "image": "i:1", "workers": 0})


class World:
    """An API server, and the root of the cluster."""

    was_ready = False

    def __init__(self, *, roles: bool) -> None:
        self.owner: Object = {"kind": "ConfigMap", "name": "demo-oars", "uid": "root"}
        self.notes = LoopState()
        self.roles = roles
        self.applied: list[Object] = []
        self.head: Object | None = None

    def client(self, spec: ClusterSpec = SPEC) -> KubePlace:
        """One that takes over, with a cluster of that description."""
        cluster = describe("demo", "lab", spec, engines.get("dask"), watched=True)
        client = cast(Client, self)
        place = KubePlace(Setting(client, self, self, Reach(client, "lab"), "direct", watched=True), cluster)
        place._token = "known"
        return place

    async def ensure(self, place: KubePlace) -> None:
        wanted: Desired = desired(place._cluster, force=False, generation=1)
        await place.ensure(wanted, Ensure(wanted.shape.head, (MemberId("head"),)))

    def pods(self) -> list[Object]:
        return []

    def deployments(self) -> list[Object]:
        return [self.head] if self.head else []

    def has(self, kind: str, name: str) -> bool:
        return True

    async def save(self, notes: LoopState, status: Status | None, causes: tuple[Cause, ...]) -> None:
        """Nothing is kept."""

    async def settle(self) -> None:
        """Nothing is kept."""

    async def get(self, *_: Any) -> Object:
        raise ApiError(404, {"reason": "NotFound"})

    async def apply(self, obj: Object) -> Object:
        if obj["kind"].startswith("Role") and not self.roles:
            raise ApiError(403, FORBIDDEN)
        self.applied.append(obj)
        if obj["kind"] == "Deployment":
            known = {"uid": "h", "resourceVersion": str(len(self.applied)), "generation": 1}
            self.head = {**obj, "metadata": {**obj["metadata"], **known}, "status": {}}
            return self.head
        return obj

    @property
    def heads(self) -> int:
        return sum(obj["kind"] == "Deployment" for obj in self.applied)

    def lease(self) -> list[str]:
        assert self.head is not None
        containers = self.head["spec"]["template"]["spec"]["containers"]
        return [v["value"] for c in containers for v in c["env"] if v["name"] == "OARS_LEASE"]


@pytest.fixture(autouse=True)
def _no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> tuple[Cause, ...]:
        return ()

    monkeypatch.setattr(Evidence, "causes", nothing)


def remarks(place: KubePlace) -> tuple[Cause, ...]:
    return asyncio.run(place.observe()).remarks


def test_what_nobody_watches_is_remarked_for_as_long_as_it_is_so() -> None:
    world = World(roles=False)
    place = world.client()
    asyncio.run(world.ensure(place))
    assert (world.heads, world.lease()) == (1, [])
    assert remarks(place) == remarks(place) == (sidecar.UNWATCHED,)


def test_what_is_watched_is_not_remarked_upon() -> None:
    world = World(roles=True)
    place = world.client()
    asyncio.run(world.ensure(place))
    assert (world.heads, world.lease()) == (1, ["lab/demo-oars"])
    assert remarks(place) == ()


def test_whoever_takes_over_with_more_rights_leaves_the_head_alone() -> None:
    world = World(roles=False)
    asyncio.run(world.ensure(world.client()))
    world.roles = True
    later = world.client()
    asyncio.run(world.ensure(later))
    assert world.heads == 1, "another head would lose all work"
    assert remarks(later) == (sidecar.UNWATCHED,)


def test_another_time_to_live_without_an_owner_leaves_the_head_alone() -> None:
    world = World(roles=True)
    place = world.client()
    asyncio.run(world.ensure(place))
    for orphaned in (600.0, 0.0):
        lifetime = SPEC.lifetime.model_copy(update={"orphaned": orphaned})
        later = world.client(SPEC.model_copy(update={"lifetime": lifetime}))
        asyncio.run(world.ensure(later))
        place.describe(later._cluster)
        asyncio.run(world.ensure(place))
    assert world.heads == 1
    changed = world.client(SPEC.model_copy(update={"image": "i:2"}))
    asyncio.run(world.ensure(changed))
    assert world.heads == 2 and world.head is not None
    assert names.APPLIED in world.head["metadata"]["annotations"]


def test_a_remark_comes_after_what_is_wrong() -> None:
    cluster = describe("demo", "lab", SPEC, engines.get("dask"))
    wanted = desired(cluster, force=False, generation=1)
    wrong = Cause("Image", "No image.")
    seen = Observed(causes=(wrong,), remarks=(sidecar.UNWATCHED,))
    assert explain(wanted, seen, View()) == (wrong, sidecar.UNWATCHED)
    assert explain(wanted, replace(seen, causes=()), View()) == (sidecar.UNWATCHED,)
