"""How many members autoscaling wants: single decisions, and whole loads in a simulation beside Dask's and Ray's own."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from bench import autoscale as bench
from bench import autoscale_reference
from bench.autoscale import POLICIES, RESULTS, WITH_DASK, WITH_RAY
from bench.autoscale_world import Figures
from hypothesis import given
from hypothesis import strategies as st

from oars.model import Autoscale, Demand, Group, Limit, Placement, Process, Resources, Role
from oars.plan.autoscale import LOOK, Memory, Scaling, Situation, Supply, targets

POLICY = Autoscale(enabled=True)
CPU, GPU = {"cpu": 1.0}, {"cpu": 1.0, "gpu": 1.0}
THREE = """
from types import SimpleNamespace
Memory = Group = SimpleNamespace
Ask = Have = lambda *figures: figures
def targets(groups, have, asks, floor, memory, now):
    return {group.name: 3 for group in groups}, [], memory
"""


def group(name: str = "cpu", least: int = 0, most: int = 10, **offers: float) -> Group:
    return Group(name, Role.WORKER, 0, Process(()), min=least, max=most, offers={"cpu": 4.0, **offers})


def sized(name: str, cpu: float, priority: int = 0) -> Group:
    """A group whose members take the processors that they offer."""
    return replace(group(name, cpu=cpu), resources=Resources(cpu=cpu), priority=priority)


def settled(
    groups: Sequence[Group], demand: Sequence[Demand] | None, limits: Sequence[Limit] = (), **supply: Supply
) -> tuple[Scaling, int]:
    """The decision after three seconds of the same demand, and the number of changes on the way."""
    memory, changes, now, before = Memory(), 0, 1000.0, None
    while now < 1003.0:
        result = targets(Situation(groups, supply, demand, limits), POLICY, memory, now)
        chosen = {name: each.target for name, each in result.groups.items()}
        changes += before is not None and chosen != before
        memory, before, now = result.memory, chosen, now + min(0.5, result.next_look)
    return result, changes


def numbers(result: Scaling) -> dict[str, int]:
    return {name: each.target for name, each in result.groups.items()}


def test_burst_from_zero_is_one_change() -> None:
    result, changes = settled([group(most=100)], [Demand(CPU, 200)])
    assert numbers(result) == {"cpu": 50} and changes == 1
    assert result.groups["cpu"].reason == "ScaledUp" or "50" in result.groups["cpu"].message


def test_silent_engine_changes_nothing() -> None:
    result, changes = settled([group()], None, cpu=Supply(ready=3))
    assert (numbers(result), changes) == ({"cpu": 3}, 0)


def test_gpu_work_grows_the_gpu_group_only() -> None:
    groups = [group(), group("gpu", gpu=1.0)]
    result, _ = settled(groups, [Demand(GPU, 3), Demand(CPU, 8)])
    assert numbers(result)["gpu"] == 3
    assert numbers(settled(groups, [Demand(CPU, 8)])[0]) == {"cpu": 2, "gpu": 0}


@pytest.mark.parametrize("present", [0, 2, 9])
def test_group_of_a_fixed_size_is_not_looked_at_more_often(present: int) -> None:
    """It has other members than it should have when autoscaling begins: they start, or leave."""
    fixed = replace(group("fixed"), replicas=4, min=None, max=None)
    work = [Demand(CPU, 100, running=8)]
    result, changes = settled([group(most=2), fixed], work, cpu=Supply(ready=2), fixed=Supply(ready=present))
    assert result.next_look == LOOK
    assert (numbers(result), changes) == ({"cpu": 2, "fixed": 4}, 0)


def test_gang_is_placed_whole_or_not_at_all() -> None:
    gang = Demand({"cpu": 4.0}, 5, gang="a", placement=Placement.SPREAD)
    assert numbers(settled([group(most=5)], [gang])[0]) == {"cpu": 5}
    assert numbers(settled([group(most=4)], [gang])[0]) == {"cpu": 0}


def test_demand_that_no_group_can_serve_is_named() -> None:
    result, _ = settled([group()], [Demand({"cpu": 8.0}, 1)])
    assert numbers(result) == {"cpu": 0}
    (unservable,) = result.unservable
    assert unservable.demand.needs == {"cpu": 8.0} and unservable.message


def test_members_that_cannot_start_leave_one_probe() -> None:
    stuck = Supply(ready=1, stuck=9, stuck_since=1000.0 - POLICY.patience, stuck_reason="no node has room")
    result, _ = settled([group()], [Demand(CPU, 40, running=4)], cpu=stuck)
    assert numbers(result) == {"cpu": 2}
    assert "no node has room" in result.groups["cpu"].message


def test_members_that_start_stay_although_others_cannot() -> None:
    """A quota allows 30 of 100 pods; none of them is ready yet."""
    supply = Supply(starting=30, stuck=70, stuck_reason="the quota is used up")
    result, changes = settled([group(most=100)], [Demand(CPU, 400)], cpu=supply)
    assert (numbers(result), changes) == ({"cpu": 30}, 0)
    assert "the quota is used up" in result.groups["cpu"].message
    assert numbers(settled([group(most=100)], [Demand(CPU, 400)], cpu=replace(supply, ready=30, starting=0))[0]) == {
        "cpu": 31
    }


def test_each_block_in_a_row_lasts_longer() -> None:
    """The probe starts, all that is needed is asked for again, and again nothing has room."""
    groups, demand = [group()], [Demand(CPU, 40)]
    memory, now, pauses = Memory(), 1000.0, []
    for _ in range(7):
        stuck = Supply(stuck=10, stuck_since=now - POLICY.patience, stuck_reason="no node has room")
        result = targets(Situation(groups, {"cpu": stuck}, demand), POLICY, memory, now)
        assert result.groups["cpu"].reason == "Blocked" and numbers(result) == {"cpu": 1}
        memory, since = result.memory, now
        while memory.groups["cpu"].is_blocked:  # the probe is not stuck any more
            now += 1.0
            memory = targets(Situation(groups, {"cpu": Supply(starting=1)}, demand), POLICY, memory, now).memory
        pauses.append(now - since)
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


@pytest.mark.parametrize(
    ("held", "needed"),
    [(0.0, 1), (0.55, 4), (0.61, 5), (0.9, 8)],  # as a share of the memory of four members
)
def test_data_needs_members_too(held: float, needed: int) -> None:
    """Above 60 % of the memory the group grows until 50 % is used; it does not shrink to more than 60 %."""
    sized = replace(group(), resources=Resources(cpu=4.0, memory=2**30))
    supply = Supply(ready=4, holding=4, held=int(held * 4 * 2**30))
    result, _ = settled([sized], [Demand(CPU, 1, running=1)], cpu=supply)
    assert result.groups["cpu"].need == needed
    assert numbers(result) == {"cpu": max(4, needed)}


def test_work_of_a_blocked_group_is_served_by_another() -> None:
    groups = [group("big", cpu=16.0), group("small", cpu=4.0)]
    stuck = Supply(stuck=1, stuck_since=1000.0 - POLICY.patience, stuck_reason="no node has room")
    demand = [Demand(CPU, 40)]
    assert numbers(settled(groups, demand, small=stuck)[0]) == {"big": 3, "small": 1}


def test_node_autoscaler_gets_its_time() -> None:
    stuck = Supply(stuck=9, stuck_since=1000.0 - POLICY.patience, has_node_autoscaler=True)
    assert numbers(settled([group()], [Demand(CPU, 36)], cpu=stuck)[0]) == {"cpu": 9}
    late = replace(stuck, stuck_since=1000.0 - POLICY.patience_node_autoscaler)
    assert numbers(settled([group()], [Demand(CPU, 36)], cpu=late)[0]) == {"cpu": 1}


def test_full_machine_limits_what_is_added() -> None:
    limit = Limit("this machine has 8 processors", "cpu", 8.0)
    result, _ = settled([sized("cpu", 4.0)], [Demand(CPU, 40)], (limit,))
    assert numbers(result) == {"cpu": 2}
    assert result.groups["cpu"].reason == "Limited" and "this machine has 8 processors" in result.groups["cpu"].message


def test_full_machine_leaves_work_to_members_that_still_fit() -> None:
    """A machine of 6 processors: one member with 4 fits, and two with 1."""
    groups = [sized("large", 4.0, priority=1), sized("small", 1.0)]
    limit = Limit("this machine has 6 processors", "cpu", 6.0)
    result, changes = settled(groups, [Demand(CPU, 40)], (limit,))
    assert (numbers(result), changes) == ({"large": 1, "small": 2}, 1)
    for each in result.groups.values():
        assert each.reason == "Limited" and "this machine has 6 processors" in each.message


@pytest.mark.parametrize("ready", [0, 2])
def test_groups_elsewhere_serve_the_work_for_which_one_machine_has_no_room(ready: int) -> None:
    groups = [sized("here", 4.0, priority=1), sized("there", 4.0)]
    limit = Limit("this machine has 8 processors", "cpu", 8.0, frozenset({"here"}))
    supply = {"here": Supply(ready=ready)}
    result, _ = settled(groups, [Demand(CPU, 28, running=4 * ready)], (limit,), **supply)
    assert numbers(result) == {"here": 2, "there": 5}
    assert numbers(settled(groups, [Demand(CPU, 8)], (limit,), **supply)[0]) == {"here": 2, "there": 0}


@given(
    waiting=st.integers(0, 10**6), running=st.integers(0, 100), ready=st.integers(0, 12), least=st.integers(0, 5),
    most=st.integers(5, 12), seconds=st.none() | st.floats(0.001, 1000.0),
)  # fmt: skip
def test_number_is_within_its_bounds(
    waiting: int, running: int, ready: int, least: int, most: int, seconds: float | None
) -> None:
    demand = [Demand(CPU, waiting + running, running, seconds)]
    result, _ = settled([group(least=least, most=most)], demand, cpu=Supply(ready=ready))
    assert least <= numbers(result)["cpu"] <= most


REFERENCE = {row["load"]: row for row in json.loads((RESULTS / "autoscale_reference.json").read_text())["rows"]}
ROWS = {(row["load"], row["policy"]): row for row in json.loads((RESULTS / "autoscale.json").read_text())["rows"]}


def figures(load: str, policy: str) -> Figures:
    """Medians of many runs, from the file of results."""
    return Figures(**{each.name: ROWS[load, policy][each.name] for each in fields(Figures)})


@pytest.mark.parametrize("load", REFERENCE)
def test_file_of_results_is_of_the_present_code(load: str) -> None:
    assert {row[0] for row in ROWS} == REFERENCE.keys() == {name for _, name in bench.LOADS}
    for policy, make in POLICIES.items():
        assert bench.run(load, make, 0) == ROWS[load, policy]["first"], "run `python -m bench autoscale`"


@pytest.mark.long
@pytest.mark.parametrize("load", REFERENCE)
@pytest.mark.parametrize("policy", POLICIES)
def test_medians_in_the_file_of_results_are_of_the_present_code(policy: str, load: str) -> None:
    runs = [bench.run(load, POLICIES[policy], seed) for seed in bench.SEEDS]
    assert bench.figures(runs) == asdict(figures(load, policy)), "run `python -m bench autoscale`"


@pytest.mark.parametrize("load", ["square", "flapping", "notebook"])
def test_tasks_wait_no_longer_than_with_dask_adaptive_at_a_third_of_its_churn(load: str) -> None:
    oars, adaptive = figures(load, WITH_DASK), figures(load, "Dask Adaptive")
    assert oars.wait <= adaptive.wait and not oars.left
    assert oars.writes <= 0.35 * adaptive.writes and oars.starts <= 0.35 * adaptive.starts
    assert oars.reversals <= 0.25 * adaptive.reversals


@pytest.mark.parametrize("load", REFERENCE)
def test_known_durations_cost_no_more_waiting_than_ray(load: str) -> None:
    """On "GPU blocked", Ray has little idle time because work for processors waits there: its limit is another."""
    oars, ray = figures(load, WITH_DASK), figures(load, "Ray v2, no launch limit")
    assert oars.wait <= min(ray.wait + 2.0, 1.25 * ray.wait) and not oars.left
    if load in ("square", "flapping", "CPU and GPU", "trickle"):
        assert oars.idle <= 0.55 * ray.idle
    elif load == "GPU blocked":
        assert oars.idle <= 0.7 * ray.idle and oars.wait <= 0.25 * ray.wait


@pytest.mark.parametrize("load", REFERENCE)
def test_with_the_signals_of_ray_it_is_as_good_as_ray_without_its_launch_limit(load: str) -> None:
    oars, ray = figures(load, WITH_RAY), figures(load, "Ray v2, no launch limit")
    assert oars.wait <= 1.05 * ray.wait and not oars.left
    assert oars.idle <= 1.15 * ray.idle and oars.writes <= 1.3 * ray.writes


def test_it_beats_the_reference_function_on_most_loads() -> None:
    """By the geometric mean of the ratios of idle time and waiting time."""
    scores = {}
    for load, row in REFERENCE.items():
        oars = figures(load, WITH_DASK)
        scores[load] = math.sqrt(oars.idle / row["idle"] * oars.wait / row["wait"])
    assert max(scores.values()) <= 1.05, scores
    assert sum(score < 1.0 for score in scores.values()) >= 5, scores


def test_another_function_is_simulated_with_the_same_signals(tmp_path: Path) -> None:
    """As a row of the reference is made: here by a function that always wants three workers."""
    file = tmp_path / "function.py"
    file.write_text(THREE)
    module = autoscale_reference.load_module(str(file))
    found = bench.run("square", lambda: autoscale_reference.Reference(module), 0)
    assert (found["writes"], found["starts"], found["peak"]) == (1, 3, 3) and found["wait"] > 0
