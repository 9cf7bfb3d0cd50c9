"""The place of bare pods: the contract, and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from oars.kube.errors import ApiError
from oars.kube.kinds import POD
from oars.model import HEAD, Desired, Ensure, Member, MemberId, MemberState, MemberView, Observed, Remove, Role, View
from oars.places.base import Place, PlaceError
from oars.places.kube import names
from oars.places.kube.pods import observe
from oars.plan.decide import decide
from oars.testing import PlaceContract
from oars.testing.place import workers
from tests.unit.places.pod_world import World, cluster


class TestContract(PlaceContract):
    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        self.world = World()
        yield self.world.place, cluster()

    async def reopen(self, place: Place) -> Place:
        return self.world.open()

    async def kill(self, place: Place, member: Member) -> None:
        self.world.end(self.world.head() if member.id == HEAD else member.id, 137)

    async def inventory(self, place: Place) -> Mapping[str, str]:
        found = {
            f"{kind} {name}": obj["metadata"]["resourceVersion"] for (kind, name), obj in self.world.objects.items()
        }
        return {**found, "recorded": ""}


@pytest.fixture
def world() -> World:
    return World()


def start(world: World, desired: Desired | None = None) -> Observed:
    """Ensure everything until it exists."""
    desired = desired or cluster()
    group = desired.shape.workers[0]

    async def run() -> Observed:
        observed = await world.place.observe(desired)
        existing = [member.id for member in workers(observed)]
        missing = [MemberId(f"worker-{number}") for number in range(group.replicas - len(existing))]
        await world.place.ensure(desired, Ensure(desired.shape.head, (HEAD,)))
        await world.place.ensure(desired, Ensure(group, (*existing, *missing)))
        await world.place.collect(desired)
        return await world.place.observe(desired)

    return asyncio.run(run())


def look(world: World) -> Observed:
    return asyncio.run(world.place.observe(cluster()))


def test_head_owns_everything(world: World) -> None:
    start(world)
    root = world.objects["Pod", world.head()]["metadata"]["uid"]
    others = [obj for obj in world.objects.values() if obj["metadata"]["uid"] != root]
    assert sorted(obj["kind"] for obj in others) == ["Pod", "Pod", "PodDisruptionBudget", "Service"]
    owners = [obj["metadata"]["ownerReferences"] for obj in others]
    assert all([owner["uid"] for owner in each] == [root] for each in owners)
    assert not any("controller" in owner for each in owners for owner in each)


def test_deleting_the_head_pod_deletes_the_cluster(world: World) -> None:
    start(world)
    asyncio.run(world.delete(POD, world.head()))
    assert world.objects == {}


def test_dead_worker_gets_a_successor_and_is_then_deleted(world: World) -> None:
    victim = workers(start(world))[0].id
    world.end(victim, 1)
    member = look(world).member(victim)
    assert member is not None and (member.state, member.exit_code) == (MemberState.EXITED, 1)
    after = start(world)
    assert len(workers(after)) == 2 and victim not in {member.id for member in after.members}
    assert ("Pod", victim) not in world.objects
    assert all(member.state is MemberState.RUNNING for member in after.members)


def test_deaths_of_predecessors_count_for_the_back_off(world: World) -> None:
    """Each pod of a crash loop has a new name; without the count it would be started again at once for ever."""
    start(world, cluster(workers=1))
    pauses = []
    for _ in range(4):
        victim = workers(look(world))[0].id
        world.end(victim, 1)
        observed = look(world)
        decision = decide(cluster(workers=1), observed, View(up=True), world.now)
        pauses.append(decision.state.failures[victim].until - world.now)
        start(world, cluster(workers=1))
    assert pauses == [0.0, 1.0, 2.0, 4.0]


def test_worker_that_ran_well_before_it_died_is_not_in_a_crash_loop(world: World) -> None:
    start(world, cluster(workers=1))
    world.end(workers(look(world))[0].id, 1)
    start(world, cluster(workers=1))
    world.end(workers(look(world))[0].id, 1, after=100.0)
    observed = look(world)
    assert observe.deaths_before_successor(world.pods()[-1], world.now) == 0
    start(world, cluster(workers=1))
    world.end(workers(look(world))[0].id, 1)
    (death,) = look(world).deaths.values()
    assert death.count == 1 and observed.deaths


def test_failed_head_is_replaced_and_the_service_stays(world: World) -> None:
    """Its pod stays too, as the owner: another Service would have another address."""
    start(world)
    first, service = world.head(), world.objects["Service", "demo"]["metadata"]["uid"]
    world.end(first, 1)
    observed = start(world)
    head = observed.member(HEAD)
    assert head is not None and head.state is MemberState.RUNNING and world.head() != first
    assert world.objects["Service", "demo"]["metadata"]["uid"] == service
    assert ("Pod", first) in world.objects


def test_service_of_a_deleted_head_is_created_again(world: World) -> None:
    start(world)
    before = world.objects["Service", "demo"]["metadata"]["uid"]
    asyncio.run(world.delete(POD, world.head()))
    start(world)
    assert world.objects["Service", "demo"]["metadata"]["uid"] != before
    assert look(world).member(HEAD) is not None and len(workers(look(world))) == 2


def test_service_that_an_earlier_head_owns_is_replaced(world: World) -> None:
    start(world)
    service = world.objects["Service", "demo"]
    service["metadata"]["ownerReferences"][0]["uid"] = "gone"
    asyncio.run(world.place.ensure(cluster(), Ensure(cluster().shape.head, (HEAD,))))
    assert ("Service", "demo") in world.objects, "ensure removes nothing"
    start(world)
    start(world)
    assert world.objects["Service", "demo"]["metadata"]["uid"] != service["metadata"]["uid"]


def test_deleted_service_is_created_again(world: World) -> None:
    start(world)
    del world.objects["Service", "demo"]
    place = world.open()  # without the memory of its own writes
    asyncio.run(place.ensure(cluster(), Ensure(cluster().shape.head, (HEAD,))))
    assert ("Service", "demo") in world.objects


def test_name_of_another_cluster_is_refused_before_anything_is_created(world: World) -> None:
    other = {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": "demo", "labels": {names.INSTANCE: "xyz"}, "uid": "u"},
    }
    world.store(other)
    with pytest.raises(PlaceError) as refused:
        start(world)
    assert refused.value.cause.reason == "NameTaken" and world.writes == []


def test_refused_pod_is_explained(world: World) -> None:
    world.refusal = ApiError(403, {"message": 'pods is forbidden: User "ann" cannot create resource "pods" in API '
                                              'group "" in the namespace "lab"'})  # fmt: skip
    with pytest.raises(PlaceError) as refused:
        start(world)
    assert refused.value.cause.reason == "RightMissing"


def test_stopped_cluster_leaves_nothing(world: World) -> None:
    victim = workers(start(world))[0].id
    world.end(victim, 1)
    stopped = replace(cluster(), running=False)
    everyone = tuple(member.id for member in look(world).members)
    asyncio.run(world.place.remove(stopped, Remove(everyone, "stop")))
    asyncio.run(world.place.collect(stopped))
    assert world.objects == {}


def test_head_elsewhere_needs_no_pod() -> None:
    world = World()
    elsewhere = Member(HEAD, Role.HEAD, HEAD, MemberState.RUNNING, "local", address="10.9.9.9")
    world.place = world.open(head=elsewhere)
    observed = start(world)
    assert observed.member(HEAD) == elsewhere and len(workers(observed)) == 2
    assert {obj["kind"] for obj in world.objects.values()} == {"Pod"} and len(world.objects) == 2
    assert not any(obj["metadata"].get("ownerReferences") for obj in world.objects.values())


def test_nothing_but_creation_and_deletion_is_asked_for(world: World) -> None:
    """The client has no other method here: a patch would raise AttributeError."""
    observed = start(world)
    view = View(up=True, members={member.id: MemberView(True) for member in observed.members})
    fewer = cluster(workers=1)
    decision = decide(fewer, observed, view, world.now)
    assert {kind.split()[0] for kind in world.writes} == {"create"}
    assert len(decision.state.retiring) == 1
