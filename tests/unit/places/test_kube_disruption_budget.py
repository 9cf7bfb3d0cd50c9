"""When a head gets its budget."""

from __future__ import annotations

import pytest

from oars.places.kube.disruption_budget import GUARD_AFTER, GUARD_LATEST, BudgetTimer


class Budget:
    """What the watches say of it."""

    is_there = False

    def is_lost(self, _: tuple[str, str]) -> bool:
        return not self.is_there


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget() -> Budget:
    return Budget()


def guard(budget: Budget, clock: Clock, *, told: bool = True, ready: bool = False) -> BudgetTimer:
    return BudgetTimer("demo", budget, clock, told=told, ready=ready)  # type: ignore[arg-type]


def test_only_when_it_has_been_ready_for_a_while(budget: Budget, clock: Clock) -> None:
    one = guard(budget, clock)
    assert not one.is_due(ready=True)
    clock.now += GUARD_AFTER - 1
    assert not one.is_due(ready=False), "and without a break"
    clock.now += 1
    assert not one.is_due(ready=True)
    clock.now += GUARD_AFTER
    assert one.is_due(ready=True)


def test_while_many_others_start_it_can_wait(budget: Budget, clock: Clock) -> None:
    busy = True
    one = BudgetTimer("demo", budget, clock, told=True, ready=False, is_busy=lambda: busy)  # type: ignore[arg-type]
    assert not one.is_due(ready=True)
    clock.now += GUARD_AFTER
    assert not one.is_due(ready=True)
    busy = False
    assert not one.is_due(ready=True), "the last of them are still on their way"
    clock.now += GUARD_AFTER
    assert one.is_due(ready=True)


def test_not_for_ever(budget: Budget, clock: Clock) -> None:
    one = BudgetTimer("demo", budget, clock, told=True, ready=False, is_busy=lambda: True)  # type: ignore[arg-type]
    assert not one.is_due(ready=True)
    clock.now += GUARD_LATEST - 1
    assert not one.is_due(ready=True)
    clock.now += 1
    assert one.is_due(ready=True)


def test_one_that_was_ready_before_we_looked_waits_no_longer(budget: Budget, clock: Clock) -> None:
    assert guard(budget, clock, ready=True).is_due(ready=True)


def test_not_again_while_it_is_there(budget: Budget, clock: Clock) -> None:
    one = guard(budget, clock, ready=True)
    one.asked()
    budget.is_there = True
    assert not one.is_due(ready=True)
    budget.is_there = False
    assert one.is_due(ready=True), "somebody deleted it"


def test_another_description_asks_again(budget: Budget, clock: Clock) -> None:
    one = guard(budget, clock, ready=True)
    budget.is_there = True
    assert not one.is_due(ready=True)
    one.renew()
    assert one.is_due(ready=True)


def test_without_watches_whoever_takes_over_asks_once(budget: Budget, clock: Clock) -> None:
    budget.is_there = True  # as of all that is not watched
    one = guard(budget, clock, told=False, ready=True)
    assert one.is_due(ready=True)
    one.asked()
    assert not one.is_due(ready=True)
