"""A change that replaces the head is announced before it is made, and can be held back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from oars.model import Cause, LoopState, Observed
from oars.places.report import Report
from oars.plan.decide import decide
from oars.plan.status import status
from oars.spec.status import Phase
from tests.unit.places.clusters import cluster
from tests.unit.places.test_kube_observe import WAITING, pod
from tests.unit.places.world import World
from tests.unit.plan.clusters import view_of

RUNS = LoopState(head="uid-h:0")


def changed(world: World, **spec: Any) -> Observed:
    world.desired = cluster(workers=2, image="i:2", **spec)
    return observed(world)


def observed(world: World) -> Observed:
    world.writes.clear()
    return world.observe()


def reasons(causes: tuple[Cause, ...]) -> list[str]:
    return [cause.reason for cause in causes]


@pytest.fixture
def world() -> World:
    """A head that runs and is known to the loop, and two workers."""
    found = World(workers=("a", "b"))
    found.state = RUNS
    found.reopen()
    found.observe()
    return found


def publish(world: World, seen: Observed) -> Phase:
    """The pass records its report; the phase in it."""
    decision = decide(world.desired, seen, view_of(seen), 1.0)
    found = status(world.desired, seen, view_of(seen), seen.causes, {})
    asyncio.run(world.place.record(world.desired, decision.state, Report(found, seen.causes)))
    return found.phase


def test_change_is_announced_before_it_is_made(world: World) -> None:
    seen = changed(world)
    (cause,) = seen.causes
    assert cause.reason == "HeadReplacing" and "spec.containers[head].image" in cause.message
    assert "OnDelete" in cause.hint
    world.ensure_head()
    world.ensure("a", "b")
    assert "apply Deployment/demo-head" not in world.writes and "apply Deployment/demo-worker" not in world.writes
    assert publish(world, seen) is Phase.STARTING, "nobody may take it for ready with the new spec"

    seen = observed(world)
    assert reasons(seen.causes) != ["HeadReplacing"] and not seen.is_head_leaving
    assert not seen.members[0].incarnation, "it is being replaced"
    world.ensure_head()
    assert "apply Deployment/demo-head" in world.writes


def test_announcement_that_was_not_recorded_is_repeated(world: World) -> None:
    assert reasons(changed(world).causes) == ["HeadReplacing"]
    world.reopen()
    assert reasons(observed(world).causes) == ["HeadReplacing"]


def test_head_that_does_not_run_is_replaced_at_once(world: World) -> None:
    """It has no data; the change may be the correction of its image."""
    world.of_name["h"] = pod("h", "head", state=WAITING, ready=False)
    assert "HeadReplacing" not in reasons(changed(world).causes)
    world.ensure_head()
    assert "apply Deployment/demo-head" in world.writes


def test_change_is_held_back_until_the_head_is_gone(world: World) -> None:
    seen = changed(world, head={"update": "OnDelete"})
    (remark,) = seen.remarks
    assert (seen.causes, remark.reason, seen.is_head_leaving) == ((), "HeadOutdated", False)
    assert "kubectl delete pod" in remark.hint
    assert publish(world, seen) is Phase.READY
    observed(world)
    world.ensure_head()
    world.ensure("a", "b", "c")
    assert [each for each in world.writes if "Deployment" in each] == ["patch Deployment/demo-worker"]
    assert world.replicas == 3, "the number follows nevertheless"

    world.of_name["h"] = pod("h2", "head")  # its Deployment has started another
    seen = observed(world)
    assert seen.remarks == () and not seen.members[0].incarnation
    world.ensure_head()
    assert "apply Deployment/demo-head" in world.writes


def test_changes_in_place_are_not_held_back(world: World) -> None:
    changed(world, head={"update": "OnDelete"}, expose={"type": "NodePort"})
    world.ensure_head()
    assert "apply Service/demo-head" in world.writes and "apply Deployment/demo-head" not in world.writes


def test_update_alone_changes_no_pod(world: World) -> None:
    before = cluster(workers=2)
    after = cluster(workers=2, head={"update": "OnDelete"})
    assert replace(after, keeps_head=False) == before
