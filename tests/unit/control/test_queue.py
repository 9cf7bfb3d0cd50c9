"""The queue of names: merged, one worker per name, later after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from oars.control.queue import FIRST_BACK_OFF, LONGEST_BACK_OFF, Queue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drive(story: Callable[[Queue[str], Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        async with asyncio.timeout(10):
            await story(Queue(clock), clock)

    asyncio.run(run())


async def nothing_to_take(queue: Queue[str]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.take()


def test_the_same_name_waits_once_and_at_its_earliest_time() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        queue.add("a", 5)
        queue.add("a", 1)
        queue.add("a", 9)
        assert len(queue) == 1 and queue.ready == 0
        clock.now += 1
        assert queue.ready == 1
        assert await queue.take() == "a"
        queue.done("a")
        clock.now += 60
        await nothing_to_take(queue)

    drive(story)


def test_names_come_in_the_order_in_which_they_are_due() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        for name, after in (("late", 3), ("soon", 1), ("now", 0), ("now too", 0)):
            queue.add(name, after)
        clock.now += 5
        assert [await queue.take() for _ in range(4)] == ["now", "now too", "soon", "late"]

    drive(story)


def test_one_works_on_a_name_at_a_time() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        queue.add("a")
        assert await queue.take() == "a"
        queue.add("a")  # it changed while we work on it
        queue.add("b")
        assert await queue.take() == "b"
        await nothing_to_take(queue)
        queue.done("a")
        assert await queue.take() == "a"

    drive(story)


def test_who_waits_hears_of_a_name_at_once() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        waiting = [asyncio.create_task(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        for name in "abc":
            queue.add(name)
        assert {await task for task in waiting} == {"a", "b", "c"}

    drive(story)


def test_who_waits_for_a_later_name_hears_of_an_earlier_one() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        queue.add("later", 50)
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.add("now")
        assert await waiting == "now"

    drive(story)


def test_one_who_gives_up_waiting_keeps_nobody_from_it() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        first, second = (asyncio.create_task(queue.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        queue.add("a")
        assert await second == "a"

    drive(story)


def test_failures_wait_longer_and_success_forgets_them() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        pauses = []
        for _ in range(12):
            pauses.append(queue.failed("a"))
            clock.now += pauses[-1]
            assert await queue.take() == "a"
            queue.done("a")
        assert pauses[:3] == [FIRST_BACK_OFF, 2 * FIRST_BACK_OFF, 4 * FIRST_BACK_OFF]
        assert pauses == sorted(pauses) and pauses[-1] == LONGEST_BACK_OFF
        queue.succeeded("a")
        assert queue.failed("a") == FIRST_BACK_OFF

    drive(story)


def test_a_forgotten_name_is_not_taken() -> None:
    async def story(queue: Queue[str], clock: Clock) -> None:
        queue.add("a")
        queue.forget("a")
        await nothing_to_take(queue)

    drive(story)
