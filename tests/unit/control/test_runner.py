"""The runner: no exception stops reconciliation, failures back off and are reported, polls share a token bucket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from oars.base.errors import OarsError
from oars.control import queue
from oars.control import runner as module
from oars.control.runner import Runner
from oars.model import Cause, Pause
from oars.places.base import PlaceError

ERRORS = [
    KeyError("name"),
    ValueError("wrong"),
    TimeoutError(),
    TimeoutError(),
    OSError("disk"),
    OarsError("The engine does not answer."),
    PlaceError(Cause("QuotaExceeded", "The quota is used up.")),
    AssertionError(),
    RecursionError(),
    asyncio.CancelledError(),  # of a task that the pass waited for
]


class Toy:
    """A reconciler that does what `passes` says, and counts."""

    def __init__(self, one_pass: Callable[[str], Awaitable[Pause | None]]) -> None:
        self.one_pass = one_pass
        self.passes: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.reported: list[tuple[str, Exception]] = []
        self.report_error: BaseException | None = None
        self.running: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    async def reconcile(self, key: str) -> Pause | None:
        self.passes[key] += 1
        self.times.setdefault(key, []).append(time.monotonic())
        self.running[key] += 1
        await asyncio.sleep(0)  # a real pass waits for something
        self.most_at_once[key] = max(self.most_at_once[key], self.running[key])
        try:
            return await self.one_pass(key)
        finally:
            self.running[key] -= 1

    async def report_failure(self, key: str, error: Exception) -> None:
        self.reported.append((key, error))
        if self.report_error is not None:
            raise self.report_error


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FIRST_BACKOFF", 0.02)


def run(runner: Runner[str], seconds: float | None = None) -> None:
    """Until nothing is left to do; with `seconds`, for that long."""

    async def within() -> None:
        try:
            async with asyncio.timeout(seconds or 20):
                await runner.run(until_empty=seconds is None)
        except TimeoutError:
            assert seconds is not None, "the runner did not end"

    asyncio.run(within())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pass_that_raises_is_logged_reported_and_retried(
    error: BaseException, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.log, "propagate", True)

    async def one_pass(key: str) -> Pause | None:
        if key == "bad" and toy.passes[key] < 4:
            raise error
        return Pause(0.01) if toy.passes[key] < 5 else None

    failed = []
    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, observe_pass=lambda seconds, has_failed: failed.append(has_failed))
    runner.wake("bad")
    runner.wake("good")
    with caplog.at_level(logging.WARNING):
        run(runner)
    assert toy.passes == {"bad": 5, "good": 5}
    assert [key for key, _ in toy.reported] == ["bad"] * 3
    assert all(isinstance(reported, Exception) for _, reported in toy.reported)
    assert sum("pass failed" in record.message for record in caplog.records) == 3
    assert Counter(failed) == {True: 3, False: 7}
    first, second, third = (b - a for a, b in zip(toy.times["bad"][:3], toy.times["bad"][1:4], strict=True))
    assert first >= 0.02 and second >= 0.04 and third >= 0.08, "the back-off does not grow"


@pytest.mark.parametrize("error", [KeyError("status"), OarsError("conflict"), asyncio.CancelledError()])
def test_failure_that_cannot_be_reported_is_survived(error: BaseException) -> None:
    async def one_pass(key: str) -> Pause | None:
        if toy.passes[key] < 3:
            raise ValueError
        return None

    toy = Toy(one_pass)
    toy.report_error = error
    runner: Runner[str] = Runner(toy)
    runner.wake("a")
    run(runner)
    assert toy.passes["a"] == 3 and len(toy.reported) == 2


def test_one_key_that_always_fails_does_not_delay_another() -> None:
    async def one_pass(key: str) -> Pause | None:
        if key == "bad":
            raise KeyError
        return Pause(0.01)

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, longest_backoff=0.05)
    runner.wake("bad")
    runner.wake("good")
    run(runner, 2.0)
    assert toy.passes["good"] > toy.passes["bad"] >= 4


def test_run_can_be_cancelled_during_a_pass_and_a_report() -> None:
    async def one_pass(key: str) -> Pause | None:
        await asyncio.sleep(60)
        return None

    for fails in (False, True):
        toy = Toy(one_pass)

        async def stuck(key: str, error: Exception) -> None:
            await asyncio.sleep(60)

        if fails:
            toy.one_pass = lambda key: _fail()
            toy.report_failure = stuck  # type: ignore[method-assign]
        runner: Runner[str] = Runner(toy)
        runner.wake("a")
        start = time.monotonic()
        run(runner, 0.1)
        assert time.monotonic() - start < 10 and toy.passes["a"] == 1


async def _fail() -> Pause | None:
    raise ValueError


def test_key_woken_during_its_pass_is_reconciled_again() -> None:
    async def one_pass(key: str) -> Pause | None:
        if toy.passes[key] == 1:
            runner.wake(key)
        return None

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy)
    runner.wake("a")
    run(runner)
    assert toy.passes["a"] == 2


def test_none_ends_a_key_and_the_runner_when_it_was_the_last() -> None:
    async def one_pass(key: str) -> Pause | None:
        return None if toy.passes[key] >= len(key) else Pause(0.0)

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, workers=2)
    for key in ("a", "bb", "ccc"):
        runner.wake(key)
    run(runner)
    assert toy.passes == {"a": 1, "bb": 2, "ccc": 3}
    assert runner.due == 0


def test_key_is_never_reconciled_by_two_workers_at_a_time() -> None:
    active: set[str] = set()
    together: list[set[str]] = []

    async def one_pass(key: str) -> Pause | None:
        active.add(key)
        for _ in range(2):
            if toy.passes[key] < 5:
                runner.wake(key)
            await asyncio.sleep(0.01)
            together.append(set(active))
        active.discard(key)
        return None

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, workers=4)
    for key in "ab":
        runner.wake(key)
    run(runner)
    assert toy.most_at_once == {"a": 1, "b": 1}
    assert toy.passes == {"a": 5, "b": 5}
    assert {"a", "b"} in together, "the two keys are not reconciled side by side"


@pytest.fixture
def few_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLLS_PER_SECOND", 40.0)
    monkeypatch.setattr(module, "POLL_BURST", 5.0)


@pytest.mark.usefixtures("few_polls")
def test_polls_of_all_keys_share_a_token_bucket() -> None:
    async def one_pass(key: str) -> Pause | None:
        return Pause(0.0, limited=True)

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, workers=2)
    keys = [f"key-{number}" for number in range(50)]
    for key in keys:
        runner.wake(key)
    start = time.monotonic()
    run(runner, 1.0)
    elapsed = time.monotonic() - start
    polls = sum(toy.passes.values()) - len(keys)
    assert 10 <= polls <= 5 + 40 * elapsed + 1
    assert min(toy.passes.values()) >= 1, "a key starves"


@pytest.mark.usefixtures("few_polls")
def test_looks_for_new_work_do_not_wait_for_polls() -> None:
    async def one_pass(key: str) -> Pause | None:
        return Pause(0.05, limited=True, is_look=key == "elastic")

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy, workers=2)
    for key in ["elastic", *(f"key-{number}" for number in range(100))]:
        runner.wake(key)
    run(runner, 1.0)
    assert toy.passes["elastic"] >= 5
    assert max(passes for key, passes in toy.passes.items() if key != "elastic") <= 2


@pytest.mark.usefixtures("few_polls")
def test_urgent_wakes_and_short_pauses_are_not_limited() -> None:
    async def one_pass(key: str) -> Pause | None:
        if key == "urgent":
            return Pause(0.0)
        if toy.passes[key] < 300:
            runner.wake(key)
        return Pause(60.0, limited=True)

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy)
    runner.wake("urgent")
    runner.wake("woken")
    run(runner, 1.0)
    assert toy.passes["urgent"] > 100
    assert toy.passes["woken"] == 300


@pytest.mark.usefixtures("few_polls")
def test_urgent_wakes_do_not_use_up_the_polls_of_other_keys() -> None:
    """Each pass of a woken key would otherwise reserve another token, and polls would wait for minutes."""

    async def one_pass(key: str) -> Pause | None:
        if key == "busy" and toy.passes[key] < 400:
            runner.wake(key)
        return Pause(0.0, limited=True)

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy)
    runner.wake("busy")
    runner.wake("quiet")
    run(runner, 1.0)
    assert toy.passes["busy"] >= 400
    assert toy.passes["quiet"] >= 5


@pytest.mark.usefixtures("few_polls")
def test_limited_wake_waits_for_its_turn_and_does_not_reserve_twice() -> None:
    async def one_pass(key: str) -> Pause | None:
        return None

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy)
    for _ in range(3):
        for number in range(25):
            runner.wake(f"key-{number}", Pause(0.0, limited=True))
    start = time.monotonic()
    run(runner)
    elapsed = time.monotonic() - start
    assert sum(toy.passes.values()) == 25, "a key that waits already is added again"
    assert elapsed >= (25 - 5) / 40 - 0.1


def test_pass_that_waits_for_somebody_else_leaves_its_worker_to_other_keys() -> None:
    answered = asyncio.Event()

    async def one_pass(key: str) -> Pause | None:
        if key == "silent":
            async with runner.waiting():
                await answered.wait()
        else:
            answered.set()
        return None

    toy = Toy(one_pass)
    runner: Runner[str] = Runner(toy)
    runner.wake("silent")
    runner.wake("healthy")
    run(runner)
    assert toy.passes == {"silent": 1, "healthy": 1}


def test_passes_that_wait_do_not_exceed_the_workers_afterwards() -> None:
    active, most = 0, 0

    async def one_pass(key: str) -> Pause | None:
        nonlocal active, most
        async with runner.waiting():
            await asyncio.sleep(0.01)
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.005)
        active -= 1
        return None

    runner: Runner[str] = Runner(Toy(one_pass), workers=2)
    for number in range(12):
        runner.wake(str(number))
    run(runner)
    assert most == 2
