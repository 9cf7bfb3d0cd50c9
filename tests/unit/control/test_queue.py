"""The work queue: a key waits once, one worker at a time works on it, and failures back off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from oars.control.queue import FIRST_BACKOFF, LONGEST_BACKOFF, PER_TENANT, Queue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drive(scenario: Callable[[Queue[str], Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        async with asyncio.timeout(10):
            await scenario(Queue(clock), clock)

    asyncio.run(run())


async def nothing_to_take(queue: Queue[str]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.take()


def test_key_waits_once_and_at_its_earliest_time() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        queue.add("a", 5)
        queue.add("a", 1)
        queue.add("a", 9)
        assert len(queue) == 1 and queue.due == 0
        clock.now += 1
        assert queue.due == 1
        assert await queue.take() == "a"
        queue.done("a")
        clock.now += 60
        await nothing_to_take(queue)

    drive(scenario)


def test_keys_are_taken_in_the_order_in_which_they_are_due() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        for key, after in (("late", 3), ("soon", 1), ("now", 0), ("now too", 0)):
            queue.add(key, after)
        clock.now += 5
        assert [await queue.take() for _ in range(4)] == ["now", "now too", "soon", "late"]

    drive(scenario)


def test_only_one_worker_has_a_key_at_a_time() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        queue.add("a")
        assert await queue.take() == "a"
        queue.add("a")  # it changed while we work on it
        queue.add("b")
        assert await queue.take() == "b"
        await nothing_to_take(queue)
        queue.done("a")
        assert await queue.take() == "a"

    drive(scenario)


def test_waiting_workers_get_new_keys_at_once() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        waiting = [asyncio.create_task(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in "abc":
            queue.add(key)
        assert {await task for task in waiting} == {"a", "b", "c"}

    drive(scenario)


def test_worker_that_waits_for_a_later_key_gets_an_earlier_one() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        queue.add("later", 50)
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.add("now")
        assert await waiting == "now"

    drive(scenario)


def test_cancelled_worker_does_not_block_the_others() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        first, second = (asyncio.create_task(queue.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        queue.add("a")
        assert await second == "a"

    drive(scenario)


def test_backoff_grows_with_failures_and_success_resets_it() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        pauses = []
        for _ in range(12):
            pauses.append(queue.failed("a"))
            clock.now += pauses[-1]
            assert await queue.take() == "a"
            queue.done("a")
        assert pauses[:3] == [FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF]
        assert pauses == sorted(pauses) and pauses[-1] == LONGEST_BACKOFF
        queue.succeeded("a")
        assert queue.failed("a") == FIRST_BACKOFF

    drive(scenario)


def test_key_that_is_due_soon_is_known() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        queue.add("a", 5)
        assert queue.is_due_within("a", 5) and not queue.is_due_within("a", 4)
        assert not queue.is_due_within("b", 1000)
        assert "a" in queue and "b" not in queue

    drive(scenario)


def test_backoff_stays_finite_after_thousands_of_failures() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        for _ in range(5000):
            pause = queue.failed("a")
        assert pause == LONGEST_BACKOFF

    drive(scenario)


def tenant(key: str) -> str:
    return key.partition("/")[0]


def test_tenants_take_turns() -> None:
    async def scenario() -> None:
        queue: Queue[str] = Queue(clock := Clock(), tenant=tenant)
        for number in range(4):
            queue.add(f"large/{number}")
        assert await queue.take() == "large/0"
        queue.add("small/0", 1)
        queue.add("other/0", 1)
        clock.now += 1
        taken = [await queue.take() for _ in range(5)]
        assert taken == ["large/1", "small/0", "other/0", "large/2", "large/3"]

    asyncio.run(scenario())


def test_tenant_has_a_limited_number_of_keys_under_work() -> None:
    async def scenario() -> None:
        queue: Queue[str] = Queue(Clock(), tenant=tenant)
        for number in range(PER_TENANT + 1):
            queue.add(f"large/{number}")
        taken = [await queue.take() for _ in range(PER_TENANT)]
        await nothing_to_take(queue)
        queue.add("small/0")
        assert await queue.take() == "small/0"
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.done(taken[0])
        assert await waiting == f"large/{PER_TENANT}"

    asyncio.run(scenario())


def test_outdated_entry_with_the_same_time_is_ignored() -> None:
    async def scenario(queue: Queue[str], clock: Clock) -> None:
        queue.add("a", 5)
        queue.add("a", 3)
        clock.now += 3
        assert await queue.take() == "a"
        queue.done("a")
        queue.add("a", 2)  # due at the time of the first entry
        clock.now += 2
        assert await queue.take() == "a"
        queue.done("a")
        await nothing_to_take(queue)

    drive(scenario)
