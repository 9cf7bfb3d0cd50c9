from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator

import pytest

from oars.base.batching_selector import MOMENT, PROMPT, SAVED, BatchingSelector, event_loop


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def gathering(clock: Time) -> Iterator[BatchingSelector]:
    with BatchingSelector(lambda: clock.now, clock.sleep) as found:
        yield found


def test_a_few_things_are_heard_at_once_and_no_end_of_them_together(gathering: BatchingSelector, clock: Time) -> None:
    for _ in range(int(SAVED)):
        gathering.select(1e-9)
    assert clock.slept == []
    gathering.select(1e-9)
    assert len(clock.slept) == 1
    for _ in range(1000):
        clock.now += 0.001  # work between two waits
        gathering.select(1.0e-9)
    assert len(clock.slept) > 900  # but for a few that time has given back
    clock.now += SAVED / PROMPT
    before = len(clock.slept)
    gathering.select(1e-9)
    assert len(clock.slept) == before


def test_it_waits_no_longer_than_was_asked_for(gathering: BatchingSelector, clock: Time) -> None:
    while not clock.slept:
        gathering.select(1e-9)
    clock.slept.clear()
    gathering.select(MOMENT / 4)
    assert clock.slept == [MOMENT / 4]


def test_work_that_is_there_does_not_wait(gathering: BatchingSelector, clock: Time) -> None:
    for _ in range(int(SAVED) * 2):
        gathering.select(0)
    assert clock.slept == []


def test_what_came_meanwhile_comes_in_one_piece(gathering: BatchingSelector, clock: Time) -> None:
    here, there = socket.socketpair()
    with here, there:
        gathering.register(here, selectors.EVENT_READ)
        while not clock.slept:
            gathering.select(1e-9)
        there.send(b"a")
        there.send(b"b")
        [(key, _)] = gathering.select(None)
        assert key.fileobj is here
        assert here.recv(10) == b"ab"


def test_a_loop_of_it_runs_what_others_run() -> None:
    async def work() -> str:
        async with asyncio.timeout(5):
            for _ in range(20):
                await asyncio.sleep(0.001)
            return await asyncio.to_thread(str.upper, "done")

    with asyncio.Runner(loop_factory=event_loop) as runner:
        assert runner.run(work()) == "DONE"
