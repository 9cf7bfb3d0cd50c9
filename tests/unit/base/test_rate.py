from __future__ import annotations

from oars.base.rate import PollSpread, TokenBucket


def test_some_at_once_then_as_time_goes() -> None:
    now = [100.0]
    ration = TokenBucket(each_second=2.0, saved=3.0, clock=lambda: now[0])
    assert [ration.take() for _ in range(5)] == [True, True, True, False, False]
    now[0] += 0.5
    assert [ration.take() for _ in range(2)] == [True, False]


def test_a_long_rest_saves_up_no_more_than_was_said() -> None:
    now = [100.0]
    ration = TokenBucket(each_second=2.0, saved=3.0, clock=lambda: now[0])
    now[0] += 3600
    assert sum(ration.take() for _ in range(100)) == 3


def test_the_more_wait_the_longer_each() -> None:
    crowd = PollSpread(each_second=10.0)
    assert [crowd.pause(name, 0.2) for name in "aabcd"] == [0.2, 0.2, 0.2, 0.3, 0.4]
    crowd.end("a")
    crowd.end("a")
    assert crowd.pause("b", 0.2) == 0.3
