"""How long members take to start, measured by the looks of the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oars.model import Autoscale, Demand, Desired, LoopState, MemberState, Observed, View
from oars.plan.autoscale import Memory
from oars.plan.scale import Scaled, scale
from oars.plan.starts import LAST, LONGEST, UNKNOWN, Starts, observe
from tests.unit.plan.clusters import desired, head, view_of, worker


def looks(*seen: tuple[float, dict[str, bool]]) -> Starts:
    """After these looks: the time, and which members are ready."""
    starts = Starts()
    for now, members in seen:
        starts = observe(starts, ((member, "cpu", is_ready) for member, is_ready in members.items()), now)
    return starts


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([], UNKNOWN),
        ([(0.0, {"a": True})], UNKNOWN),  # it was ready before the loop began
        ([(0.0, {"a": False}), (30.0, {"a": False})], UNKNOWN),
        ([(0.0, {"a": False}), (30.0, {"a": True})], 30.0),
        ([(0.0, {"a": True}), (1.0, {"a": False}), (2.0, {"a": True})], UNKNOWN),  # it has not started again
        ([(0.0, {"a": False}), (10.0, {"a": True, "b": False}), (40.0, {"a": True, "b": True})], 20.0),
        ([(0.0, {"a": False}), (10.0, {"a": True}), (11.0, {}), (20.0, {"a": False}), (60.0, {"a": True})], 25.0),
        ([(0.0, {"a": False}), (9000.0, {"a": True})], LONGEST),
    ],
)
def test_typical_start_is_the_median_of_what_was_seen(
    seen: list[tuple[float, dict[str, bool]]], seconds: float
) -> None:
    assert looks(*seen).typical("cpu") == seconds
    assert looks(*seen).typical("gpu") == UNKNOWN


def test_only_the_last_starts_count() -> None:
    slow = [(0.0, {f"s{n}": False for n in range(9)}), (100.0, {f"s{n}": True for n in range(9)})]
    quick = [(200.0, {f"q{n}": False for n in range(LAST)}), (202.0, {f"q{n}": True for n in range(LAST)})]
    assert looks(*slow, *quick).typical("cpu") == 2.0


def elastic() -> Desired:
    wanted = desired(0)
    (group,) = wanted.shape.workers
    shape = replace(wanted.shape, workers=(replace(group, min=0, max=100),))
    return replace(wanted, shape=shape, autoscale=Autoscale(enabled=True))


def test_group_that_starts_slowly_gets_fewer_workers_for_short_work() -> None:
    """Short work may take longer if workers take longer: it would be done before they are ready."""
    numbers = {seconds: target_after_a_start_of(seconds) for seconds in (2.0, 120.0)}
    assert numbers == {2.0: 77, 120.0: 6}


def target_after_a_start_of(seconds: float) -> int:
    memory, now, state = Memory(), 1000.0, LoopState(head="1")

    def look(state_of_worker: MemberState, tasks: int) -> Scaled:
        observed = Observed((head(), worker(0, state_of_worker)), state)
        work = (Demand({"cpu": 1.0}, tasks, seconds=1.0),)
        return scale(elastic(), observed, View(True, members=view_of(observed).members, demand=work), memory, now)

    while now < 1000.0 + seconds:
        memory, now = look(MemberState.WAITING, 1).memory, now + 1.0
    for _ in range(6):
        found = look(MemberState.RUNNING, 100)
        memory, state, now = found.memory, replace(state, scaling=found.state.scaling), now + 1.0
    assert memory.starts.typical("default") == seconds
    return found.groups["default"].need
