"""Whatever sequence of crashes, scalings, steps of the clock and deaths of the loop itself: decide converges, never has
more active workers than desired, never removes a live worker that was not drained, and writes nothing at rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plan.worlds import PodWorld, ProcessWorld, World

Events = list[tuple[str, int]]

FLAGS = ("refuse drains", "engine silent", "stuck", "force")
COMMON = [
    st.tuples(st.just("scale"), st.integers(0, 6)),
    st.tuples(st.just("crash"), st.integers(0, 9)),
    st.tuples(st.just("crash head"), st.just(0)),
    st.tuples(st.sampled_from(FLAGS), st.integers(0, 1)),
    st.tuples(st.just("time passes"), st.integers(0, 90)),
    st.tuples(st.just("clock steps"), st.sampled_from([-86400, -3600, -61, -5, 5, 61, 3600, 86400])),
    st.tuples(st.just("loop dies"), st.integers(0, 3)),
    st.tuples(st.just("loop dies after a drain"), st.just(0)),
    st.tuples(st.just("serve again"), st.just(0)),
    st.tuples(st.just("nothing"), st.just(0)),
]
ON_PODS = [
    st.tuples(st.just("new revision"), st.just(0)),
    st.tuples(st.just("evict head"), st.just(0)),
    st.tuples(st.just("evict"), st.integers(0, 9)),
]
process_worlds = st.tuples(st.builds(ProcessWorld), st.lists(st.one_of(COMMON), max_size=30))
pod_worlds = st.tuples(st.builds(PodWorld), st.lists(st.one_of(COMMON + ON_PODS), max_size=30))


def run_events(world: World, events: Events) -> None:
    """Every event is followed by a pass, in which all safety properties are checked."""
    for event, value in events:
        world.happen(event, value)
        world.step()


def assert_converges(world: World) -> None:
    for flag in FLAGS:
        world.happen(flag, 0)
    for _ in range(80):
        world.step()
        if world.settled():
            break
        world.now += 2.0  # past any back-off in a few passes
    assert world.settled(), world
    world.step()  # what was learnt in the last pass is recorded
    before = world.writes
    for _ in range(3):
        world.step()
        world.now += 1.0
    assert world.writes == before, "something is written at rest"


@settings(max_examples=200, deadline=None)
@given(process_worlds)
def test_processes_converge_and_no_live_worker_is_removed_undrained(given_world: tuple[World, Events]) -> None:
    world, events = given_world
    run_events(world, events)
    assert_converges(world)


@settings(max_examples=200, deadline=None)
@given(pod_worlds)
def test_pods_converge_and_no_live_worker_is_removed_undrained(given_world: tuple[World, Events]) -> None:
    world, events = given_world
    run_events(world, events)
    assert_converges(world)


@settings(max_examples=100, deadline=None)
@given(st.one_of(process_worlds, pod_worlds))
def test_stop_ends_empty(given_world: tuple[World, Events]) -> None:
    world, events = given_world
    run_events(world, events)
    world.wanted = replace(world.wanted, running=False)
    for _ in range(3):
        decision = world.step()
    assert not world.members
    assert decision.steps == ()


@pytest.mark.parametrize("make", [ProcessWorld, PodWorld])
def test_death_of_the_loop_has_an_effect(make: type[World]) -> None:
    """The worlds contain what they claim: a drain under way is forgotten, and asked for again."""
    world = make()
    assert_converges(world)
    world.happen("scale", 2)
    world.step()
    (victim,) = world.draining
    world.happen("loop dies after a drain", 0)
    assert victim in world.drained and not world.replies
    world.step()
    assert world.draining == {victim}
    assert_converges(world)
    assert victim not in world.members


@pytest.mark.parametrize("make", [ProcessWorld, PodWorld])
def test_worker_that_was_drained_before_the_loop_died_is_replaced_when_more_are_wanted(make: type[World]) -> None:
    """Nobody knows any more that it was drained, but the engine gives it no work."""
    world = make()
    assert_converges(world)
    world.happen("scale", 2)
    world.step()
    (victim,) = world.draining
    world.happen("loop dies after a drain", 0)
    world.happen("scale", 3)
    assert_converges(world)
    assert victim not in world.members
