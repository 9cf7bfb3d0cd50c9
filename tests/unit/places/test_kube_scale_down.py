"""Removing drained workers from a Deployment: a ReplicaSet takes pods that are not ready first, so Oars waits."""

from __future__ import annotations

import pytest

from oars.places.kube.scale_down import UNREADY_SECONDS
from tests.unit.places.world import World


@pytest.fixture
def world() -> World:
    return World()


def test_scale_down_proceeds_if_all_others_are_ready(world: World) -> None:
    world.remove("c")
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_replicas_are_not_lowered_while_workers_retire(world: World) -> None:
    """A watch that lags shows fewer than there are; two of four are to go."""
    world.deployment["spec"]["replicas"] = 4
    world.ensure("a", "b", "c")
    assert world.replicas == 4
    world.ensure("a", "b", "c", "d", "e")
    assert world.replicas == 5


def test_replicas_raised_by_hand_are_lowered_by_collect_only(world: World) -> None:
    del world.of_name["c"]
    world.ensure("a", "b")
    assert world.replicas == 3
    world.collect()
    assert world.replicas == 2


def test_interrupted_scale_down_is_finished_by_collect_only(world: World) -> None:
    """The loop died between its two writes."""
    world.remove("c")
    world.deployment["spec"]["replicas"] = 3
    world.reopen()
    world.set_ready("b", False)
    world.ensure("a", "b")
    world.collect()
    assert world.replicas == 3, "the ReplicaSet would take b"
    world.set_ready("b", True)
    world.ensure("a", "b")
    assert world.replicas == 3
    world.writes.clear()
    world.collect()
    assert (world.replicas, world.leaving) == (2, ["c"])
    assert world.writes == ["apply Deployment/demo-worker"]


def test_replicas_are_not_lowered_before_all_pods_are_observed(world: World) -> None:
    """The ReplicaSet might take them, with all that they hold."""
    world.deployment["status"] = {"replicas": 4}
    world.ensure("a", "b")
    assert world.remove("c") == ["c is removed as soon as all pods of demo-worker have been observed."]
    assert (world.replicas, world.leaving) == (3, [])
    world.of_name["d"] = world.worker("d")
    world.remove("c")
    assert world.leaving == ["c"]


def test_force_lowers_replicas_before_all_pods_are_observed(world: World) -> None:
    world.deployment["status"] = {"replicas": 4}
    world.remove("c", force=True)
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_slow_drain_still_waits_for_unready_pods(world: World) -> None:
    world.set_ready("b", False)
    world.remove("c")
    world.now += UNREADY_SECONDS
    assert world.remove("c") == ["c is removed as soon as b is ready."]
    assert (world.replicas, world.leaving) == (3, [])
    world.set_ready("b", True)
    world.remove("c")
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_one_that_does_not_start_is_not_waited_for_for_ever(world: World) -> None:
    world.keep_from_starting("b")
    world.remove("c")
    assert (world.replicas, world.leaving) == (3, [])
    world.now += UNREADY_SECONDS + 1
    world.remove("c")
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_one_that_runs_and_does_not_answer_is_not_lost_but_by_force(world: World) -> None:
    """The ReplicaSet would take it first, with all that it holds."""
    world.set_ready("b", False)
    world.remove("c")
    world.now += 10 * UNREADY_SECONDS
    assert world.remove("c") == ["c is removed as soon as b is ready."]
    assert (world.replicas, world.leaving) == (3, [])
    world.remove("c", force=True)
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_finished_wait_is_forgotten(world: World) -> None:
    world.keep_from_starting("b")
    world.remove("c")
    world.now += UNREADY_SECONDS - 1
    del world.of_name["c"]  # it died, and another one came
    world.of_name["d"] = world.worker("d")
    world.now += 2
    world.remove("d")
    assert (world.replicas, world.leaving) == (3, [])
    world.now += UNREADY_SECONDS + 1
    world.remove("d")
    assert (world.replicas, world.leaving) == (2, ["d"])


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
def test_wait_does_not_depend_on_the_wall_clock(world: World, step: float) -> None:
    world.keep_from_starting("b")
    world.remove("c")
    world.clock_step = step
    world.now += UNREADY_SECONDS - 1
    world.remove("c")
    assert (world.replicas, world.leaving) == (3, [])
    world.now += 2
    world.remove("c")
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_drained_pod_is_not_deleted_while_kubernetes_would_replace_it(world: World) -> None:
    """The marks were made, but the number was not lowered, and the watch still shows a pod that has been marked as
    staying: a deleted pod would come back, and the next scale-down might take one with data."""
    world.remove("c")
    world.deployment["spec"]["replicas"] = 4
    world.reopen()
    world.writes.clear()
    world.collect()
    assert not [each for each in world.writes if each.startswith("delete")]
