"""A tied cluster whose client may or may not create the Role by which the helper watches the owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import SECRET, Kind
from oars.model import HEAD, Cause, Desired, Ensure, LoopState, Observed, View
from oars.places.kube import names
from oars.places.kube.evidence import Evidence
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render import sidecar
from oars.places.kube.wire import Reach
from oars.places.report import Report
from oars.plan.why import explain
from tests.unit.places.clusters import cluster
from tests.unit.places.test_kube_observe import Object

FORBIDDEN = {"message": "forbidden", "details": {"group": "rbac.authorization.k8s.io", "kind": "roles"}}
DESIRED = cluster(workers=0, tied=True)
UNWATCHED = sidecar.unwatched(DESIRED)


class World:
    """An API server, and the root of the cluster."""

    def __init__(self, *, roles: bool) -> None:
        self.owner: Object = {"kind": "ConfigMap", "name": "demo-oars", "uid": "root"}
        self.state = LoopState()
        self.roles = roles
        self.applied: list[Object] = []
        self.head: Object | None = None
        self.secret: Object | None = None

    def take_over(self) -> KubePlace:
        """Another client."""
        client = cast(Client, self)
        place = KubePlace(Setting(client, self, self, Reach(client, "lab")), "lab")
        return place

    def ensure(self, place: KubePlace, desired: Desired = DESIRED) -> None:
        asyncio.run(place.ensure(desired, Ensure(desired.shape.head, (HEAD,))))

    def pods(self) -> list[Object]:
        return []

    def deployments(self) -> list[Object]:
        return [self.head] if self.head else []

    def has(self, kind: str, name: str) -> bool:
        return True

    async def save(self, state: LoopState, report: Report | None) -> None:
        self.state = state

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if kind is SECRET and self.secret is not None:
            return self.secret
        raise ApiError(404, {"reason": "NotFound"})

    async def create(self, obj: Object) -> Object:
        self.secret = {**obj, "metadata": {**obj["metadata"], "uid": "s", "resourceVersion": "1"}}
        return self.secret

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
    return asyncio.run(place.observe(DESIRED)).remarks


def test_unwatched_cluster_has_a_remark_in_every_pass() -> None:
    world = World(roles=False)
    place = world.take_over()
    world.ensure(place)
    assert (world.heads, world.lease()) == (1, [])
    assert remarks(place) == remarks(place) == (UNWATCHED,)


def test_watched_cluster_has_no_remark() -> None:
    world = World(roles=True)
    place = world.take_over()
    world.ensure(place)
    assert (world.heads, world.lease()) == (1, ["lab/demo-oars"])
    assert remarks(place) == ()


def test_client_with_more_rights_does_not_replace_the_head() -> None:
    world = World(roles=False)
    world.ensure(world.take_over())
    world.roles = True
    later = world.take_over()
    world.ensure(later)
    assert world.heads == 1, "another head would lose all work"
    assert remarks(later) == (UNWATCHED,)


def test_change_of_the_orphan_timeout_does_not_replace_the_head() -> None:
    world = World(roles=True)
    place = world.take_over()
    world.ensure(place)
    for orphaned in (600.0, 0.0):
        changed = cluster(workers=0, tied=True, lifetime={"orphaned": orphaned})
        world.ensure(world.take_over(), changed)
        world.ensure(place, changed)
    assert world.heads == 1
    world.ensure(world.take_over(), cluster(workers=0, tied=True, image="i:2"))
    assert world.heads == 2 and world.head is not None
    assert names.APPLIED in world.head["metadata"]["annotations"]


def test_remark_names_complete_commands() -> None:
    assert "`oars down demo -n lab`" in UNWATCHED.hint and "`oars rbac -n lab`" in UNWATCHED.hint


def test_remarks_come_after_causes() -> None:
    wrong = Cause("Image", "No image.")
    seen = Observed(causes=(wrong,), remarks=(UNWATCHED,))
    assert explain(DESIRED, seen, View()) == (wrong, UNWATCHED)
    assert explain(DESIRED, replace(seen, causes=()), View()) == (UNWATCHED,)
