"""Removing drained workers from a Deployment: a ReplicaSet takes pods that are not ready first, so Oars waits."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oars import engines
from oars.kube.client import Client
from oars.kube.kinds import DEPLOYMENT, POD, Kind
from oars.model import Cause, Ensure, LoopState, MemberId, Remove, Retiring
from oars.places.kube import names
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render import objects
from oars.places.kube.render.describe import describe, desired
from oars.places.kube.wire import Reach
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Status
from tests.unit.places.test_kube_observe import Object, pod

TIMEOUT = 60.0
CHOSEN_LONG_AGO = Retiring(0.0, drained=True)


class World:
    """Three workers of one Deployment, as an API server has them; it is also the root of the cluster."""

    was_ready = True

    def __init__(self) -> None:
        self.owner: Object = {"kind": "ConfigMap", "name": "demo-oars", "uid": "root"}
        self.now = 10_000.0
        self.notes = LoopState()
        spec = ClusterSpec.model_validate({"engine": "dask", "image": "i:1", "workers": 2})
        self.cluster = describe("demo", "lab", spec, engines.get("dask"))
        (group,) = self.cluster.shape.workers
        made = objects.managed_worker_deployment(self.cluster, group, 3, "demo-worker", self.revision, 0)
        made["metadata"] |= {"uid": "d", "resourceVersion": "1", "generation": 1}
        self.deployment = made
        self.of_name = {name: self.worker(name) for name in ("a", "b", "c")}
        client = cast(Client, self)
        setting = Setting(client, self, self, Reach(client, "lab"), "direct")
        self.place = KubePlace(setting, self.cluster, lambda: self.now)

    @property
    def revision(self) -> str:
        return objects.revision_of(self.cluster, self.cluster.shape.workers[0])

    def worker(self, name: str) -> Object:
        return pod(name, revision=self.revision, metadata={"resourceVersion": "1"})

    def set_ready(self, name: str, ready: bool) -> None:
        (condition,) = self.of_name[name]["status"]["conditions"]
        condition["status"] = str(ready)

    def keep_from_starting(self, name: str) -> None:
        self.set_ready(name, False)
        self.of_name[name]["status"]["containerStatuses"] = []

    # as Seen

    def pods(self) -> list[Object]:
        return list(self.of_name.values())

    def deployments(self) -> list[Object]:
        return [self.deployment]

    def has(self, kind: str, name: str) -> bool:
        return True

    # as the root

    async def save(self, notes: LoopState, status: Status | None, causes: tuple[Cause, ...]) -> None:
        self.notes = notes

    async def settle(self) -> None:
        raise AssertionError("it has not been ready for long")

    # as a client

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        if kind is DEPLOYMENT:
            self.deployment["spec"] |= body["spec"]
            return self.deployment
        assert kind is POD
        self.of_name[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]
        return self.of_name[name]

    async def apply(self, obj: Object) -> Object:
        kept = {key: self.deployment["metadata"][key] for key in ("uid", "resourceVersion", "generation")}
        self.deployment = {**self.deployment, **obj, "metadata": {**obj["metadata"], **kept}}
        return self.deployment

    # the story

    def remove(self, *victims: str, force: bool = False) -> None:
        """A pass of the loop that finds them drained."""
        chosen = tuple(MemberId(victim) for victim in victims)

        async def one_pass() -> None:
            await self.place.record(LoopState(retiring=dict.fromkeys(chosen, CHOSEN_LONG_AGO)))
            wanted = desired(self.cluster, force=force, generation=1)
            await self.place.remove(wanted, Remove(chosen, "no longer wanted"))

        asyncio.run(one_pass())

    def ensure(self, *members: str) -> None:
        """A pass of the loop that sees these, those on their way out among them."""
        (group,) = self.cluster.shape.workers
        step = Ensure(group, tuple(map(MemberId, members)))
        asyncio.run(self.place.ensure(desired(self.cluster, force=False, generation=1), step))

    @property
    def replicas(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    @property
    def going(self) -> list[str]:
        return [name for name, each in self.of_name.items() if names.GOING in each["metadata"]["annotations"]]

    def causes(self) -> list[str]:
        found: Any = asyncio.run(self.place.observe())
        return [cause.message for cause in found.causes]


@pytest.fixture
def world() -> World:
    return World()


def test_where_all_are_ready_it_goes_at_once(world: World) -> None:
    world.remove("c")
    assert (world.replicas, world.going) == (2, ["c"])


def test_it_is_never_lowered_by_what_was_seen_while_workers_are_on_their_way_out(world: World) -> None:
    """A watch that lags shows fewer than there are; two of four are to go."""
    world.deployment["spec"]["replicas"] = 4
    world.ensure("a", "b", "c")
    assert world.replicas == 4
    world.ensure("a", "b", "c", "d", "e")
    assert world.replicas == 5
    world.ensure("a", "b")  # nobody is on the way out any more
    assert world.replicas == 2


def test_pods_that_a_lagging_watch_has_not_shown_keep_it_from_being_lowered(world: World) -> None:
    """The ReplicaSet might take them, with all that they hold."""
    world.deployment |= {"status": {"replicas": 4}}
    world.ensure("a", "b")
    world.remove("c")
    assert (world.replicas, world.going) == (3, [])
    assert "c goes as soon as all pods of demo-worker have been seen." in world.causes()
    world.of_name["d"] = world.worker("d")
    world.remove("c")
    assert world.going == ["c"]


def test_pods_that_were_not_seen_are_lost_by_force(world: World) -> None:
    world.deployment |= {"status": {"replicas": 4}}
    world.remove("c", force=True)
    assert (world.replicas, world.going) == (2, ["c"])


def test_a_worker_that_took_long_to_drain_still_waits_for_the_others(world: World) -> None:
    world.set_ready("b", False)
    world.remove("c")
    world.now += TIMEOUT
    world.remove("c")
    assert (world.replicas, world.going) == (3, [])
    assert "c goes as soon as b is ready." in world.causes()
    world.set_ready("b", True)
    world.remove("c")
    assert (world.replicas, world.going) == (2, ["c"])


def test_one_that_does_not_start_is_not_waited_for_for_ever(world: World) -> None:
    world.keep_from_starting("b")
    world.remove("c")
    assert (world.replicas, world.going) == (3, [])
    world.now += TIMEOUT + 1
    world.remove("c")
    assert (world.replicas, world.going) == (2, ["c"])


def test_one_that_runs_and_does_not_answer_is_not_lost_but_by_force(world: World) -> None:
    """The ReplicaSet would take it first, with all that it holds."""
    world.set_ready("b", False)
    world.remove("c")
    world.now += 10 * TIMEOUT
    world.remove("c")
    assert (world.replicas, world.going) == (3, [])
    assert "c goes as soon as b is ready." in world.causes()
    world.remove("c", force=True)
    assert (world.replicas, world.going) == (2, ["c"])


def test_a_wait_that_has_ended_is_forgotten(world: World) -> None:
    world.keep_from_starting("b")
    world.remove("c")
    world.now += TIMEOUT - 1
    del world.of_name["c"]  # it died, and another one came
    world.of_name["d"] = world.worker("d")
    assert world.causes() and not world.causes()  # told of the last pass, no longer of the next
    world.now += 2
    world.remove("d")
    assert (world.replicas, world.going) == (3, [])
    world.now += TIMEOUT + 1
    world.remove("d")
    assert (world.replicas, world.going) == (2, ["d"])
