"""Nodes that are about to end, and pods that node autoscalers must spare."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.model import HEAD, Ensure, LoopState, Member, MemberId, MemberState, Retiring, Role
from oars.places.kube import names
from oars.places.kube.state.nodes import Departure, NodeWatch, departing, departure
from tests.unit.places.world import World


def node(name: str = "n1", *taints: str, cordoned: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {"unschedulable": True} if cordoned else {}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {**spec, "taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (node(), None),
        ({"metadata": {"name": "n1"}}, None),
        (node("n1", "node.kubernetes.io/not-ready", "nvidia.com/gpu"), None),
        (node("n1", "DeletionCandidateOfClusterAutoscaler"), None),  # it may change its mind
        (node("n1", "node.kubernetes.io/unschedulable", cordoned=True), Departure("n1 is cordoned", False)),
        (node("n1", "ToBeDeletedByClusterAutoscaler"), Departure("cluster-autoscaler removes n1", True)),
        (node("n1", "karpenter.sh/disrupted", cordoned=True), Departure("Karpenter removes n1", True)),
        (node("n1", "aws-node-termination-handler/spot-itn"), Departure("n1 got a termination notice", True)),
        (node("n1", "cloud.google.com/impending-node-termination"), Departure("n1 got a termination notice", True)),
    ],
)
def test_departure_of_a_node(given: dict[str, Any], expected: Departure | None) -> None:
    assert departure(given) == expected


def test_workers_of_a_departing_node_leave_and_the_head_stays() -> None:
    members = (
        Member(HEAD, Role.HEAD, "head", MemberState.RUNNING),
        *(Member(MemberId(name), Role.WORKER, "default", MemberState.RUNNING) for name in ("a", "b", "c")),
    )
    places = {"head-pod": "n1", "a": "n1", "b": "n2", "c": ""}
    pods = [{"metadata": {"name": name}, "spec": {"nodeName": where}} for name, where in places.items()]
    found = departing(members, pods, {"n1": Departure("n1 is cordoned", False)})
    assert [(m.id, m.departing) for m in found if m.departing] == [("a", "n1 is cordoned")]
    assert departing(members, pods, {}) is members


class Denying:
    """An API server that lets us read no nodes."""

    def __init__(self) -> None:
        self.requests = 0
        self.asked = asyncio.Event()

    async def list(self, *_: object, **__: object) -> None:
        self.requests += 1
        self.asked.set()
        raise ApiError(403, {"reason": "Forbidden", "message": "nodes is forbidden"})


def test_missing_right_to_read_nodes_is_no_error() -> None:
    async def scenario() -> int:
        client = Denying()
        watch = NodeWatch(cast(Client, client), lambda _: None)
        task = asyncio.create_task(watch.run())
        await client.asked.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done() and watch.departing == {}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return client.requests

    assert asyncio.run(scenario()) == 1


def test_watch_announces_nodes_that_enter_and_leave() -> None:
    announced: list[str] = []
    watch = NodeWatch(cast(Client, None), announced.append)
    for given in (node("n1"), node("n1", cordoned=True), node("n1", "other", cordoned=True), node("n1")):
        watch._changed(("", "n1"), None, given)
    assert announced == ["n1", "n1"] and not watch.departing
    watch._changed(("", "n2"), None, node("n2", cordoned=True))
    watch._changed(("", "n2"), node("n2"), None)
    assert announced == ["n1", "n1", "n2", "n2"] and not watch.departing


class TestProtection:
    def ensure(self, world: World, **holding: bool) -> None:
        group = world.desired.shape.workers[0]
        members = tuple(MemberId(name) for name in ("a", "b", "c"))
        step = Ensure(group, members, holding={MemberId(name): holds for name, holds in holding.items()})
        asyncio.run(world.place.ensure(world.desired, step))

    def protected(self, world: World) -> list[str]:
        found = {name: pod["metadata"].get("annotations") or {} for name, pod in world.of_name.items()}
        return [name for name, each in found.items() if each.get("karpenter.sh/do-not-disrupt") == "true"]

    def test_pod_that_holds_data_is_annotated_until_it_is_empty(self) -> None:
        world = World()
        self.ensure(world, b=True)
        assert self.protected(world) == ["b"]
        assert (
            world.of_name["b"]["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        )
        world.writes.clear()
        self.ensure(world, a=False, b=True)
        assert world.writes == [], "nothing is written at rest"
        self.ensure(world)
        assert world.writes == [], "another loop, which does not know yet what the pod holds"
        self.ensure(world, b=False)
        assert world.writes == ["patch Pod/b"] and self.protected(world) == []

    def test_annotation_of_the_user_stays(self) -> None:
        world = World()
        world.of_name["b"]["metadata"].setdefault("annotations", {}).update({next(iter(names.PROTECTION)): "true"})
        self.ensure(world, b=True)
        assert world.writes == []


def test_successor_of_a_worker_that_leaves_is_not_surplus() -> None:
    """It has been asked for, but no watch has shown its pod yet: lowering the number might take an undrained pod."""
    world = World(workers=("a", "b"))
    world.state = LoopState(retiring={MemberId("a"): Retiring(0.0, reason="n1 is cordoned")})
    world.reopen()
    world.ensure("b", "new", "a")
    assert world.replicas == 3
    world.collect()
    assert world.replicas == 3
