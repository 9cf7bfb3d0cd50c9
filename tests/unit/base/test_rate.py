from __future__ import annotations

import pytest

from oars.base.rate import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_burst_is_available_at_once_and_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3.0, clock)
    assert [bucket.reserve() for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.5, 1.0])
    clock.now += 1.5
    assert [bucket.reserve() for _ in range(2)] == pytest.approx([0.0, 0.5])


def test_long_rest_saves_no_more_than_the_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3.0, clock)
    clock.now += 3600
    assert [bucket.reserve() for _ in range(100)].count(0.0) == 3


def test_reservations_are_spread_at_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 2.0, clock)
    assert [bucket.reserve() for _ in range(5)] == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.3])
    assert bucket.backlog == pytest.approx(0.4)
    clock.now += 0.3
    assert bucket.reserve() == pytest.approx(0.1), "a reserved token must not be reserved twice"
