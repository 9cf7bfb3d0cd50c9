"""The executor that all engines share, with a connection that runs calls in threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from oars.base.errors import ClusterLost, EngineMissing, EngineUnreachable
from oars.engines import executor, runner
from oars.engines.base import Access
from oars.engines.calls import Pickled, cloudpickled, make_run, pack, unpack, unpickle
from oars.engines.executor import Batch, CallLost, Connection, EngineExecutor, HeadDied, WorkerDied


@dataclass(eq=False)
class FakeEngine:
    """Counts connections and remembers the sizes of batches. `errors` end the next batches of at least `min_calls`."""

    workers: float = 1.0
    gate: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    min_calls: int = 1
    connect_errors: list[Exception] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    connections: list[FakeConnection] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def connect(self) -> FakeConnection:
        if self.connect_errors:
            raise self.connect_errors.pop(0)
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    def executor(self) -> EngineExecutor:
        return EngineExecutor(self.connect, cloudpickled)


class FakeConnection(Connection):
    access = Access("demo", "fake", "", "", {}, "team")
    task_seconds = 0.02

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.closed = 0

    def processors(self) -> float:
        return self.engine.workers

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.engine.in_flight += 1
            self.engine.most_in_flight = max(self.engine.most_in_flight, self.engine.in_flight)
            threading.Thread(target=self.run, args=(batch,), daemon=True).start()

    def run(self, batch: Batch) -> None:
        self.engine.gate.wait(20)
        self.engine.sizes.append(len(batch.calls))
        self.engine.in_flight -= 1
        if self.engine.errors and len(batch.calls) >= self.engine.min_calls:
            batch.end(batch, None, self.engine.errors.pop(0))
        else:
            batch.end(batch, runner.run(*batch.arguments, "cloudpickle"), None)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    fake = FakeEngine()
    fake.gate.set()
    yield fake
    fake.gate.set()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_idle(ex: EngineExecutor) -> bool:
    return ex._thread is None


class TestBatches:
    def test_many_short_calls_need_few_batches(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            assert list(ex.map(abs, range(-5000, 0), timeout=20)) == list(range(5000, 0, -1))
        assert len(engine.sizes) < 100 and engine.sizes[:2] == [1, 1]

    def test_a_batch_has_at_most_a_quarter_of_the_calls_seen(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            list(ex.map(abs, range(1000), timeout=20))
        seen = 0
        for size in engine.sizes:
            assert size <= max(1.0, seen / 4 + 1)
            seen += size

    def test_long_calls_are_sent_separately(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            list(ex.map(time.sleep, [0.03] * 20, timeout=20))
        assert engine.sizes == [1] * 20

    def test_calls_of_different_functions_are_not_sent_together(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            list(ex.map(abs, range(100), timeout=20))
            engine.sizes.clear()
            futures = [ex.submit((abs, hex)[n % 2], n) for n in range(20)]
            assert [f.result(10) for f in futures] == [(abs, hex)[n % 2](n) for n in range(20)]
        assert engine.sizes == [1] * 20

    def test_batch_that_takes_too_long_returns_its_remaining_calls(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(executor, "BATCH_SECONDS", 0.01)
        with engine.executor() as ex:
            list(ex.map(time.sleep, [0.0] * 100, timeout=20))
            engine.sizes.clear()
            futures = [ex.submit(time.sleep, 0.05) for _ in range(10)]
            assert [future.result(10) for future in futures] == [None] * 10
        assert 10 < sum(engine.sizes), "no call was sent again"

    def test_large_arguments_are_not_collected(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            list(ex.map(len, [b"x"] * 500, timeout=20))
            engine.sizes.clear()
            assert list(ex.map(len, [bytes(600_000)] * 8, timeout=20)) == [600_000] * 8
        assert max(engine.sizes) <= 2

    def test_chunks_of_a_map_count_as_one_call_each(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            assert list(ex.map(abs, range(10), chunksize=4)) == list(range(10))
        assert sum(engine.sizes) == 3


class TestWindow:
    def test_two_batches_per_processor_are_in_flight(self, engine: FakeEngine) -> None:
        engine.workers = 3.0
        engine.gate.clear()
        with engine.executor() as ex:
            futures = [ex.submit(abs, n) for n in range(20)]
            until(lambda: engine.in_flight == 6)
            assert [future.running() for future in futures] == [True] * 6 + [False] * 14
            engine.gate.set()
            wait(futures)
        assert engine.most_in_flight == 6

    def test_window_follows_the_cluster_while_all_calls_run(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(executor, "LOOK_UP_SECONDS", 0.02)
        engine.gate.clear()
        with engine.executor() as ex:
            futures = [ex.submit(abs, n) for n in range(20)]
            until(lambda: engine.in_flight == 2)
            engine.workers = 4.0
            until(lambda: engine.in_flight == 8)
            engine.gate.set()
            wait(futures)

    def test_without_workers_one_call_is_sent(self, engine: FakeEngine) -> None:
        """So that the engine shows work that waits."""
        engine.workers = 0.0
        engine.gate.clear()
        with engine.executor() as ex:
            futures = [ex.submit(abs, n) for n in range(5)]
            until(lambda: engine.in_flight == 1)
            engine.gate.set()
            assert [future.result(10) for future in futures] == list(range(5))

    def test_head_that_hangs_does_not_stop_results(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        hanging = threading.Event()
        monkeypatch.setattr(FakeConnection, "processors", lambda self: hanging.wait(20))
        with engine.executor() as ex:
            assert [ex.submit(abs, n).result(5) for n in range(5)] == list(range(5))
        hanging.set()


class TestDeadWorkers:
    def test_call_is_sent_again(self, engine: FakeEngine) -> None:
        engine.errors = [WorkerDied("killed"), WorkerDied("killed")]
        with engine.executor() as ex:
            assert ex.submit(abs, -1).result(10) == 1
        assert len(engine.sizes) == 3

    def test_call_is_given_up_after_three_attempts(self, engine: FakeEngine) -> None:
        engine.errors = [WorkerDied("Killed by signal 9.")] * 3
        with engine.executor() as ex:
            error = ex.submit(abs, -1).exception(10)
            assert ex.submit(abs, -1).result(10) == 1
        assert isinstance(error, BrokenExecutor) and isinstance(error, ClusterLost)
        assert "abs()" in str(error) and "Killed by signal 9." in str(error) and "oars why demo -n team" in str(error)

    def test_calls_of_a_batch_are_sent_again_separately(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            list(ex.map(abs, range(200), timeout=20))
            until(lambda: is_idle(ex))
            engine.sizes.clear()
            engine.gate.clear()
            futures = [ex.submit(abs, n) for n in range(40)]
            engine.errors, engine.min_calls = [WorkerDied("killed")], 2
            engine.gate.set()
            assert [future.result(10) for future in futures] == list(range(40))
        assert not engine.errors
        lost = next(place for place, size in enumerate(engine.sizes) if size > 1)
        assert engine.sizes[lost + 1 :].count(1) >= engine.sizes[lost]


class TestLostHead:
    def test_all_calls_fail_and_the_next_one_reconnects(self, engine: FakeEngine) -> None:
        engine.gate.clear()
        with engine.executor() as ex:
            futures = [ex.submit(abs, n) for n in range(10)]
            futures[-1].cancel()
            until(lambda: engine.in_flight)
            engine.errors = [HeadDied("The head is gone.")]
            engine.gate.set()
            errors = [future.exception(10) for future in futures[:-1]]
            assert any(isinstance(error, CallLost) and "The head is gone." in str(error) for error in errors)
            assert ex.submit(abs, -1).result(10) == 1
        until(lambda: [connection.closed for connection in engine.connections] == [1, 1])

    def test_calls_wait_for_the_cluster_to_come_back(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            engine.errors = [HeadDied("gone")]
            assert isinstance(ex.submit(abs, -1).exception(10), CallLost)
            engine.connect_errors = [EngineUnreachable("not yet"), ClusterLost("not yet")]
            assert ex.submit(abs, -1).result(10) == 1

    def test_calls_fail_if_it_does_not_come_back(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executor, "RECONNECT_SECONDS", 0.3)
        with engine.executor() as ex:
            engine.errors = [HeadDied("gone")]
            assert isinstance(ex.submit(abs, -1).exception(10), CallLost)
            engine.connect_errors = [EngineUnreachable("stopped")] * 1000
            assert isinstance(ex.submit(abs, -1).exception(10), EngineUnreachable)

    def test_shutdown_does_not_wait_for_it(self, engine: FakeEngine) -> None:
        ex = engine.executor()
        engine.errors = [HeadDied("gone")]
        assert isinstance(ex.submit(abs, -1).exception(10), CallLost)
        engine.connect_errors = [EngineUnreachable("stopped")] * 1000
        future = ex.submit(abs, -1)
        start = time.monotonic()
        ex.shutdown(cancel_futures=True)
        assert future.cancelled() and time.monotonic() - start < 5


class TestConnection:
    def test_first_call_connects(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            assert engine.connections == []
            ex.submit(abs, 1).result(10)
        assert [connection.closed for connection in engine.connections] == [1]

    def test_connect_raises_errors(self, engine: FakeEngine) -> None:
        engine.connect_errors = [EngineMissing("no toy"), EngineMissing("no toy")]
        with engine.executor() as ex:
            with pytest.raises(EngineMissing):
                ex.connect()
            assert isinstance(ex.submit(abs, 1).exception(10), EngineMissing)
            assert ex.submit(abs, 1).result(10) == 1

    def test_cluster_that_never_answered_is_not_waited_for(self, engine: FakeEngine) -> None:
        engine.connect_errors = [EngineUnreachable("no head")]
        with engine.executor() as ex:
            assert isinstance(ex.submit(abs, 1).exception(10), EngineUnreachable)

    def test_unused_executor_closes_its_connection(self, engine: FakeEngine) -> None:
        ex = engine.executor()
        ex.connect()
        ex.shutdown()
        ex.shutdown()
        assert [connection.closed for connection in engine.connections] == [1]
        engine.executor().shutdown()
        assert len(engine.connections) == 1

    def test_idle_executor_has_no_thread(self, engine: FakeEngine) -> None:
        with engine.executor() as ex:
            for _ in range(3):
                ex.submit(abs, 1).result(10)
                until(lambda: is_idle(ex))
        assert not [thread for thread in threading.enumerate() if thread.name == "oars-executor"]

    def test_error_of_the_engine_fails_the_calls(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(FakeConnection, "send", lambda self, batches: 1 // 0)
        with engine.executor() as ex:
            futures = [ex.submit(abs, n) for n in range(5)]
            assert all(isinstance(future.exception(10), ZeroDivisionError) for future in futures)

    def test_defect_of_the_executor_leaves_no_call_unsettled(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def defect(data: bytes) -> Any:
            raise RuntimeError("defect")

        monkeypatch.setattr(executor, "unpack", defect)
        ex = engine.executor()
        futures = [ex.submit(abs, n) for n in range(10)]
        assert all(isinstance(future.exception(10), RuntimeError) for future in futures)
        monkeypatch.undo()
        assert ex.submit(abs, -1).result(10) == 1
        ex.shutdown()


def test_runner_needs_no_oars_on_the_worker() -> None:
    payload = pack([Pickled(cloudpickled(abs), cloudpickled(((-n,), {}))) for n in range(3)])
    code = "import sys; sys.modules['oars'] = None\nimport pickle\n"
    code += "run, payload = pickle.load(sys.stdin.buffer)\nsys.stdout.buffer.write(run(payload, 10.0))"
    data = cloudpickled((make_run(), payload))
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True)
    answers, seconds = unpack(done.stdout)
    assert [unpickle(answer) for answer in answers] == [(0, None), (1, None), (2, None)] and seconds < 10


class TestExit:
    """Ray ends workers with SIGTERM, and raises SystemExit in the call that runs."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> BaseException | None:
        payload = pack([Pickled(cloudpickled(function), cloudpickled((arguments, {})))])
        (answer,), _ = unpack(runner.run(payload, 10.0, "cloudpickle"))
        return unpickle(answer)[1]

    @pytest.fixture(autouse=True)
    def terminated_worker(self) -> Iterator[None]:
        def on_sigterm(*_: object) -> None:
            sys.exit(1)

        before = signal.signal(signal.SIGTERM, on_sigterm)
        yield
        signal.signal(signal.SIGTERM, before)

    def test_call_that_exits_fails_with_its_exit_code(self) -> None:
        error = self.run(sys.exit, 7)
        assert isinstance(error, SystemExit) and error.code == 7

    def test_call_of_a_terminated_worker_is_not_answered(self) -> None:
        with pytest.raises(SystemExit):
            self.run(signal.raise_signal, signal.SIGTERM)


def test_callback_that_exits_does_not_end_the_executor(engine: FakeEngine) -> None:
    with engine.executor() as ex:
        engine.gate.clear()
        future = ex.submit(abs, 1)
        future.add_done_callback(lambda _: sys.exit(1))
        engine.gate.set()
        assert future.result(10) == 1 and ex.submit(abs, 2).result(10) == 2


def test_name_of_a_call_is_that_of_the_function(engine: FakeEngine) -> None:
    named: list[str] = []

    def send(batches: Sequence[Batch]) -> None:
        named.extend(batch.name for batch in batches)
        for batch in batches:
            batch.end(batch, runner.run(*batch.arguments, "cloudpickle"), None)

    connection = engine.connect()
    connection.send = send  # type: ignore[method-assign]
    with EngineExecutor(lambda: connection, cloudpickled) as ex:
        futures: list[Future[Any]] = [ex.submit(partial(pow, 2), 3), ex.submit(complex, 1), ex.submit([].append, 1)]
        assert [future.exception(10) for future in futures] == [None] * 3
    assert named == ["pow", "complex", "append"]


class TestShutdown:
    @pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
    @pytest.mark.parametrize("waits", [True, False])
    def test_submit_that_races_with_it_is_settled(self, engine: FakeEngine, delay: float, waits: bool) -> None:
        engine.workers = 4.0
        ex = engine.executor()
        futures: list[Future[int]] = []

        def submit() -> None:
            while True:
                try:
                    futures.append(ex.submit(abs, -1))
                except RuntimeError:  # after shutdown
                    return

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(delay)  # the moment of the shutdown varies
        ex.shutdown(wait=waits, cancel_futures=True)
        for thread in threads:
            thread.join(10)
        assert not wait(futures, 10).not_done
        assert all(future.cancelled() or future.result() == 1 for future in futures)
        until(lambda: all(connection.closed for connection in engine.connections))
        assert sum(connection.closed for connection in engine.connections) == len(engine.connections), "closed once"

    def test_many_pending_calls_are_cancelled(self, engine: FakeEngine) -> None:
        engine.gate.clear()
        ex = engine.executor()
        futures = [ex.submit(abs, -number) for number in range(2_000)]
        until(lambda: engine.in_flight)
        ex.shutdown(wait=False, cancel_futures=True)
        engine.gate.set()
        assert not wait(futures, 10).not_done
        finished = [future for future in futures if not future.cancelled()]
        assert 1 <= len(finished) < 100, "the calls that were sent"
        assert {future.result() for future in finished} == set(range(len(finished)))
