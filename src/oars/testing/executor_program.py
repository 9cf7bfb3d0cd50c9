"""Checks of a concurrent.futures.Executor, as a program: what the standard library documents, and what must happen when
workers die. It runs in the environment of an engine, where neither Oars nor pytest is installed, so it imports the
standard library only.

    python executor_program.py 'from oars import executor as make'

The argument is source that defines `make`, which makes an executor with two workers, and possibly `held`. The program
reads names of checks from stdin, one per line, and writes "passed NAME" or a traceback and "failed NAME"."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    as_completed,
    wait,
)
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds until a call must have ended, whatever happened to it
WORKERS = 2  # processes or threads that run calls
ATTEMPTS = 8  # of a call that kills its worker
AHEAD = 4  # calls that an executor may regard as running although they wait for a worker

make: Callable[[], Executor]
held: Callable[[], int]  # results and calls that the engine keeps
root: str  # for the files of checks


# What runs on workers.


def add(a: int, b: int = 0) -> int:
    return a + b


def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def fail(text: str) -> None:
    raise LookupError(text)


class Picky(Exception):
    """Cannot be unpickled: pickle calls it with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def fail_badly(with_lock: bool) -> None:
    raise LookupError("first", "second", threading.Lock()) if with_lock else Picky("first", "second")


def append(items: list[int]) -> int:
    items.append(1)
    return len(items)


def touch(path: str) -> str:
    """Record a run of this call, and the process."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return path


def hold(path: str) -> str:
    """Run until the file `end` exists beside the path, or `end of` this one. A path that ends with `fails` fails."""
    touch(path)
    if path.endswith("fails"):
        raise LookupError(path)
    at = Path(path)
    while not at.with_name("end").exists() and not at.with_name(f"end of {at.name}").exists():
        time.sleep(0.01)
    return path


def die_if_odd(path: str, number: int) -> int:
    if number % 2:
        touch(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def act(action: str, process: int = 0) -> None:
    if process in (0, os.getpid()):
        if action == "exit":
            os._exit(3)
        raise {"raise": LookupError, "leave": SystemExit, "interrupt": KeyboardInterrupt}[action](action)


class OnPickle:
    """Acts when it is pickled."""

    def __init__(self, action: str) -> None:
        self.action = action

    def __reduce__(self) -> Any:
        act(self.action)


class OnUnpickle:
    """Acts when it is unpickled, in any process or in one."""

    def __init__(self, action: str, process: int = 0) -> None:
        self.action, self.process = action, process

    def __reduce__(self) -> Any:
        return act, (self.action, self.process)


class Item(list[int]):
    """A list that can be referenced weakly."""


# Results, errors, waiting.


def check_arguments_and_results() -> None:
    with make() as ex:
        assert ex.submit(add, 1, b=2).result(LIMIT) == 3
        assert ex.submit(pow, 2, 10).result(LIMIT) == 1024
        assert len(ex.submit(bytes, 3_000_000).result(LIMIT)) == 3_000_000
        assert ex.submit(len, bytes(3_000_000)).result(LIMIT) == 3_000_000


def check_keyword_arguments_of_any_name() -> None:
    names = (
        "self fn args kwargs function func key keys name timeout workers resources pure retries priority actor fifo "
        "allow_other_workers asynchronous callback num_cpus num_returns max_retries runtime_env payload calls limit "
        "expect_worker gpu session future executor chunksize wait"
    )
    values = {name: number for number, name in enumerate(names.split())}
    with make() as ex:
        assert ex.submit(echo, 1, **values).result(LIMIT) == ((1,), values)
        expect(TypeError, lambda: ex.submit())  # type: ignore[call-arg]
        expect(TypeError, lambda: ex.submit(fn=abs))  # type: ignore[call-arg]


def check_exceptions_have_type_arguments_and_remote_traceback() -> None:
    with make() as ex:
        error = ex.submit(fail, "text").exception(LIMIT)
        assert type(error) is LookupError and error.args == ("text",), repr(error)
        assert "in fail" in "".join(traceback.format_exception(error))
        raised = ex.submit(sys.exit, 7).exception(LIMIT)
        assert isinstance(raised, SystemExit) and raised.code == 7, repr(raised)
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_callback_exceptions_are_logged_and_others_run() -> None:
    records: list[str] = []
    called: list[object] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("concurrent.futures")
    logger.addHandler(handler)
    try:
        with make() as ex:
            future = ex.submit(time.sleep, 0.2)
            future.add_done_callback(called.append)
            future.add_done_callback(lambda _: fail("in a callback"))
            future.add_done_callback(lambda _: called.append("last"))
            future.result(LIMIT)
        future.add_done_callback(lambda _: called.append("late"))
        assert called == [future, "last", "late"], called
        assert any("exception calling callback" in text for text in records), records
    finally:
        logger.removeHandler(handler)


def check_callback_may_submit() -> None:
    second: list[Future[int]] = []
    submitted = threading.Event()

    def submit(first: Future[int]) -> None:
        second.append(ex.submit(add, first.result(), 10))
        submitted.set()

    with make() as ex:
        ex.submit(add, 1).add_done_callback(submit)
        assert submitted.wait(LIMIT)
        assert second[0].result(LIMIT) == 11


def check_wait_and_as_completed() -> None:
    with make() as ex, directory() as at:
        held_up: Future[Any] = ex.submit(hold, at("a"))
        quick: Future[Any] = ex.submit(add, 1)
        failing: Future[Any] = ex.submit(fail, "x")
        assert wait([held_up, quick], LIMIT, FIRST_COMPLETED).done == {quick}
        done, pending = wait([held_up, failing], LIMIT, FIRST_EXCEPTION)
        assert (done, pending) == ({failing}, {held_up})
        expect(TimeoutError, lambda: list(as_completed([held_up], 0.2)))
        expect(TimeoutError, lambda: held_up.result(0.2))
        expect(TimeoutError, lambda: held_up.exception(0.2))
        at.end()
        assert set(as_completed([held_up, quick, failing], LIMIT)) == {held_up, quick, failing}


def check_event_loop_can_await_calls() -> None:
    async def use() -> None:
        loop, ticks = asyncio.get_running_loop(), 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.02)
                ticks += 1

        ticker = asyncio.create_task(tick())
        try:
            assert await loop.run_in_executor(ex, add, 1, 2) == 3
            await loop.run_in_executor(ex, time.sleep, 0.5)
            assert ticks > 5, "the event loop was blocked"
            futures = [loop.run_in_executor(ex, add, n) for n in range(20)]
            assert await asyncio.gather(*futures) == list(range(20))
            (error,) = await asyncio.gather(loop.run_in_executor(ex, fail, "x"), return_exceptions=True)
            assert isinstance(error, LookupError)
        finally:
            ticker.cancel()

    with make() as ex:
        asyncio.run(use())


# map.


def check_map_is_ordered_and_stops_at_the_shortest() -> None:
    with make() as ex:
        assert list(ex.map(add, range(5), [10, 20, 30])) == [10, 21, 32]
        assert list(ex.map(add, [])) == []
        assert list(ex.map(abs, range(-300, 0), timeout=LIMIT)) == list(range(300, 0, -1))


def check_map_consumes_arguments_at_once_and_yields_results_as_they_come() -> None:
    with make() as ex, directory() as at:
        quick, slow = at.released("quick"), at("slow")
        arguments = iter([quick, slow])
        results = ex.map(hold, arguments, timeout=LIMIT)
        assert next(arguments, None) is None
        assert next(results) == quick
        at.end()
        assert next(results) == slow
        expect(StopIteration, lambda: next(results))


def check_map_sends_chunks() -> None:
    """Items of a chunk are pickled together, as by ProcessPoolExecutor: they can share an object."""
    with make() as ex:
        for size in (1, 2, 7, 100):
            assert list(ex.map(add, range(20), range(20), chunksize=size)) == list(range(0, 40, 2))
        shared: list[int] = []
        assert list(ex.map(append, [shared] * 4, chunksize=4, timeout=LIMIT)) == [1, 2, 3, 4]
        expect(ValueError, lambda: ex.map(abs, [1], chunksize=0))


def check_calls_do_not_share_pickled_arguments() -> None:
    with make() as ex:
        shared: list[int] = []
        assert list(ex.map(append, [shared] * 8, timeout=LIMIT)) == [1] * 8
        futures = [ex.submit(append, shared) for _ in range(40)]
        assert [future.result(LIMIT) for future in futures] == [1] * 40
        assert shared == []


def check_map_timeout_counts_from_the_call_and_cancels_the_rest() -> None:
    with make() as ex, directory() as at:
        start = time.monotonic()
        results = ex.map(hold, [at(n) for n in range(30)], timeout=1.0)
        expect(TimeoutError, lambda: next(results))
        assert 0.9 < time.monotonic() - start < 10
        expect(StopIteration, lambda: next(results))
        at.end()
    assert len(at.ran) <= WORKERS + AHEAD, at.ran


def check_map_raises_in_place_and_cancels_the_rest() -> None:
    with make() as ex, directory() as at:
        results = ex.map(hold, [at.released("a"), at("fails"), *(at(n) for n in range(30))], timeout=LIMIT)
        assert next(results) == at.released("a")
        expect(LookupError, lambda: next(results))
        expect(StopIteration, lambda: next(results))
        at.end()
    assert len(at.ran) <= 2 + WORKERS + AHEAD, at.ran  # two have ended


def check_closed_map_cancels_the_rest() -> None:
    with make() as ex, directory() as at:
        results = ex.map(hold, [at.released("first"), *(at(n) for n in range(30))], timeout=LIMIT)
        assert next(results) == at.released("first")
        results.close()  # type: ignore[attr-defined]
        at.end()
    assert len(at.ran) <= 1 + WORKERS + AHEAD, at.ran  # one has ended


# cancel and shutdown.


def check_pending_calls_can_be_cancelled() -> None:
    with make() as ex, directory() as at:
        futures = [ex.submit(hold, at(n)) for n in range(30)]
        called: list[object] = []
        last = futures[-1]
        last.add_done_callback(called.append)
        assert last.cancel() and last.cancel() and last.cancelled() and last.done() and not last.running()
        assert called == [last]
        expect(CancelledError, lambda: last.result(1))
        until(lambda: at.ran)
        cancelled = [future for future in futures if future.cancel()]
        assert len(cancelled) >= 30 - WORKERS - AHEAD, len(cancelled)
        at.end()
        assert wait(futures, LIMIT).not_done == set()
        kept = [future for future in futures if future not in cancelled]
        assert {future.result() for future in kept} == {at(n) for n in range(len(kept))}
    assert len(at.ran) == len(kept), "a cancelled call has run"


def check_running_calls_cannot_be_cancelled() -> None:
    with make() as ex, directory() as at:
        future = ex.submit(hold, at("a"))
        until(lambda: at.ran)
        assert future.running() and not future.done()
        assert not future.cancel() and not future.cancelled()
        at.end()
        assert future.result(LIMIT) == at("a") and not future.cancel() and not future.running()


def check_cancelled_calls_do_not_hold_up_results() -> None:
    with make() as ex, directory() as at:
        ex.submit(add, 1).result(LIMIT)
        blockers = [ex.submit(hold, at(f"blocker{n}")) for n in range(WORKERS + AHEAD)]
        until(lambda: at.ran)
        futures = [ex.submit(add, n) for n in range(20)]
        last = ex.submit(add, 7)
        assert all(future.cancel() for future in futures)
        at.end()
        assert wait(blockers, LIMIT).not_done == set()
        start = time.monotonic()
        assert last.result(LIMIT) == 7
        assert time.monotonic() - start < 1.0
        assert wait(futures, 5).not_done == set()
        assert set(as_completed(futures, 5)) == set(futures)


def check_shutdown_waits_for_pending_calls() -> None:
    with directory() as at:
        at.end()
        with make() as ex:
            futures = [ex.submit(hold, at(n)) for n in range(12)]
        assert all(future.done() for future in futures) and len(at.ran) == 12
        ex.shutdown()
        expect(RuntimeError, lambda: ex.submit(add, 1))
        expect(RuntimeError, lambda: ex.map(add, [1]))


def check_shutdown_without_waiting_lets_pending_calls_finish() -> None:
    ex = make()
    with directory() as at:
        futures = [ex.submit(hold, at(n)) for n in range(12)]
        ex.shutdown(wait=False)
        expect(RuntimeError, lambda: ex.submit(add, 1))
        at.end()
        assert [future.result(LIMIT) for future in futures] == [at(n) for n in range(12)]
        ex.shutdown()


def check_shutdown_cancels_pending_calls_and_lets_running_ones_finish() -> None:
    ex = make()
    with directory() as at:
        futures = [ex.submit(hold, at(n)) for n in range(30)]
        until(lambda: at.ran)
        ex.shutdown(wait=False, cancel_futures=True)
        at.end()
        until(lambda: all(future.done() for future in futures))
        finished = [future for future in futures if not future.cancelled()]
        assert 1 <= len(finished) <= WORKERS + AHEAD, len(finished)
        assert {future.result() for future in finished} == {at(name) for name in at.ran}


def check_submit_that_races_with_shutdown_is_settled() -> None:
    for number in range(3):
        ex = make()
        futures: list[Future[int]] = []
        ex.submit(add, 1).result(LIMIT)

        def submit(ex: Executor = ex, futures: list[Future[int]] = futures) -> None:
            with contextlib.suppress(RuntimeError):
                while True:
                    futures.append(ex.submit(add, 1))

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01 * number)
        ex.shutdown(wait=number == 0, cancel_futures=True)
        for thread in threads:
            thread.join(LIMIT)
        for future in futures:
            with contextlib.suppress(CancelledError):  # by the shutdown, perhaps only now
                assert future.result(LIMIT) == 1
        ex.shutdown()


def check_interpreter_waits_for_pending_calls_at_exit() -> None:
    with directory() as at:
        command = [sys.executable, __file__, sys.argv[1], at("a")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0 and at.ran == ["a"], (done.returncode, at.ran, done.stdout, done.stderr)


def check_arguments_and_results_are_released() -> None:
    with make() as ex:
        item = Item([1])
        references = [weakref.ref(item)]
        future = ex.submit(len, item)
        del item
        assert future.result(LIMIT) == 1
        until(lambda: gc.collect() >= 0 and references[-1]() is None)
        for result in ex.map(Item, [[1], [2], [3]], timeout=LIMIT):
            references.append(weakref.ref(result))
            del result
            until(lambda: gc.collect() >= 0 and references[-1]() is None)


def check_engine_keeps_nothing_after_results_are_delivered() -> None:
    """The futures still exist: their results are in this process."""
    before = held()
    with make() as ex:
        futures: list[Future[Any]] = [ex.submit(bytes, 1_000_000) for _ in range(6)]
        futures += [ex.submit(fail, "x"), ex.submit(add, 1)]
        wait(futures, LIMIT)
        until(lambda: held() <= before)
        assert len(futures[0].result()) == 1_000_000


# Failures.


def check_call_that_cannot_be_pickled_fails_alone() -> None:
    with make() as ex:
        bad = [ex.submit(echo, argument) for argument in (threading.Lock(), OnPickle("raise"), nested(100_000))]
        good = ex.submit(add, 1)
        assert all(isinstance(future.exception(LIMIT), Exception) for future in bad)
        assert good.result(LIMIT) == 1


def check_result_that_cannot_be_pickled_fails_its_call() -> None:
    with make() as ex:
        calls: list[tuple[Any, ...]] = [(threading.Lock,), (OnPickle, "raise"), (nested, 100_000)]
        futures = [ex.submit(*call) for call in calls]
        assert all(isinstance(future.exception(LIMIT), Exception) for future in futures)
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_exception_that_cannot_be_pickled_is_described() -> None:
    with make() as ex:
        for with_lock in (False, True):
            error = ex.submit(fail_badly, with_lock).exception(LIMIT)
            described = "".join(traceback.format_exception(error))
            assert error is not None and "second" in described and "in fail_badly" in described, described
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_argument_that_cannot_be_unpickled_fails_its_call() -> None:
    with make() as ex:
        for action in ("raise", "leave", "interrupt"):
            error = ex.submit(echo, OnUnpickle(action)).exception(LIMIT)
            assert isinstance(error, BaseException) and not isinstance(error, BrokenExecutor), repr(error)
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_result_that_cannot_be_unpickled_fails_its_call() -> None:
    with make() as ex:
        futures = [ex.submit(OnUnpickle, action, os.getpid()) for action in ("raise", "leave", "interrupt")]
        for future in futures:
            assert isinstance(future.exception(LIMIT), BaseException)
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_call_that_kills_workers_is_given_up() -> None:
    """Other calls succeed, even if they were sent together with it."""
    with make() as ex, directory() as at:
        for _ in range(200):
            ex.submit(die_if_odd, at("a"), 0)
        futures = {n: ex.submit(die_if_odd, at("a"), n) for n in [*range(0, 100, 2), 101, *range(102, 200, 2)]}
        assert isinstance(futures[101].exception(LIMIT), BrokenExecutor)
        assert 1 <= len(Path(at("a")).read_text().splitlines()) <= ATTEMPTS
        assert all(future.result(LIMIT) == n for n, future in futures.items() if n != 101)
        assert ex.submit(add, 1).result(LIMIT) == 1


def check_pickling_that_kills_workers_is_given_up() -> None:
    """Of an argument or of a result."""
    calls: list[tuple[Any, ...]] = [(echo, OnUnpickle("exit")), (OnPickle, "exit")]
    for call in calls:
        with make() as ex:
            error = ex.submit(*call).exception(LIMIT)
            assert isinstance(error, BrokenExecutor), repr(error)


# Tools.


class Directory:
    """Where calls record that they run. They end when the file `end` exists."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __call__(self, name: object) -> str:
        return str(self.path / str(name))

    def released(self, name: str) -> str:
        """A path whose call ends at once."""
        (self.path / f"end of {name}").mkdir(exist_ok=True)
        return self(name)

    def end(self) -> None:
        (self.path / "end").mkdir(exist_ok=True)

    @property
    def ran(self) -> list[str]:
        return [path.name for path in self.path.iterdir() if path.is_file()]


@contextlib.contextmanager
def directory() -> Iterator[Directory]:
    """Is kept until the program ends: a check looks at it after its executor is shut down."""
    made = Directory(tempfile.mkdtemp(dir=root))
    try:
        yield made
    finally:
        made.end()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.02)


def expect(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        value = call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, got {value!r}")


def main() -> None:
    global make, held, root
    scope: dict[str, Any] = {}
    exec(sys.argv[1], scope)
    make, held = scope["make"], scope.get("held", int)
    if len(sys.argv) > 2:
        make().submit(touch, sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as root:
        print("ready", flush=True)  # noqa: T201 (the parent process reads it)
        for name in map(str.strip, sys.stdin):
            try:
                globals()[name]()
            except BaseException:  # noqa: BLE001 (reported)
                print(traceback.format_exc(), f"failed {name}", sep="\n", flush=True)  # noqa: T201
            else:
                print(f"passed {name}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
