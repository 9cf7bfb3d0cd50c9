"""concurrent.futures on any engine. Imports no engine: an engine's session gives it a function that connects.

Calls wait in this process, and only as many are sent as the workers can run soon, so that a call that waits can be
cancelled and one that runs cannot, as in the standard library. One thread, which lives while there are calls, sends
them and delivers their results."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from oars.base.errors import ClusterLost, EngineUnreachable
from oars.base.log import get_logger
from oars.engines.base import Access
from oars.engines.calls import Pickled, pack, unpack, unpickle

LOGGER = get_logger(__name__)
AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"  # as the executors of the standard library
AHEAD = 2  # batches in flight per processor: one runs, one is on its way
LOOK_UP_SECONDS = 1.0  # after which the number of processors is looked up again
RECONNECT_SECONDS = 60.0  # for which new calls wait for a lost cluster to come back
RETRY_SECONDS = 0.2
BATCH_SECONDS = 0.25  # target duration of a batch; one that takes four times as long returns its remaining calls
BATCH_CALLS = 2000
BATCH_BYTES = 1_000_000
KINDS = 1000  # of calls, whose durations are remembered


class CallLost(ClusterLost, BrokenExecutor):
    """A call ended without a result because its worker or the head died. The executor can be used again."""


class WorkerDied(Exception):
    """The worker died while it ran a batch. The calls of the batch may have run."""


class HeadDied(Exception):
    """The connection is of no more use. The calls in flight may have run."""


class CallFuture(Future[Any]):
    """A future whose cancel() wakes wait() and as_completed() at once, not when its turn would have come."""

    _lock = threading.RLock()
    _is_notified = False

    def begin(self) -> bool:
        """set_running_or_notify_cancel(), which may be called once only."""
        with self._lock:
            if self._is_notified:
                return False
            is_running = self.set_running_or_notify_cancel()
            self._is_notified = not is_running
            return is_running

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self.begin()
        return True


@dataclass(eq=False, slots=True)
class Call:
    future: CallFuture
    name: str  # of the function, for messages and dashboards
    pickled: Pickled
    attempts: int = 0  # that ended with the death of a worker
    has_begun: bool = False

    @property
    def kind(self) -> object:
        """Calls of one kind are assumed to take equally long."""
        return self.pickled.function, self.pickled.is_chunk

    def begin(self) -> bool:
        self.has_begun = self.has_begun or self.future.begin()
        return self.has_begun


class Pace(NamedTuple):
    """Recent seconds per call, and the number of calls seen."""

    seconds: float
    calls: int


@dataclass(eq=False, frozen=True)
class Batch:
    """Calls that are sent together. The connection ends it once, from any thread: end(batch, data, None) with what
    run() returned, or end(batch, None, error) with WorkerDied, HeadDied or any other error."""

    calls: Sequence[Call]
    end: Callable[[Batch, bytes | None, BaseException | None], None]

    @property
    def name(self) -> str:
        return self.calls[0].name

    @property
    def arguments(self) -> tuple[bytes, float]:
        """Of run()."""
        return pack([call.pickled for call in self.calls]), 4 * BATCH_SECONDS


class Connection(ABC):
    """An engine's part of an executor."""

    access: Access
    task_seconds: float  # that the engine needs for a task; shorter calls are sent together
    max_attempts = 3  # of a call whose worker dies
    max_batches = 10_000  # in flight

    @abstractmethod
    def processors(self) -> float:
        """The processors of all workers. May block and raise any error."""

    @abstractmethod
    def send(self, batches: Sequence[Batch]) -> None:
        """Start run(*batch.arguments) on a worker for each batch, without waiting for it."""

    @abstractmethod
    def close(self) -> None: ...


class EngineExecutor(Executor):
    """connect: opens a connection; raises OarsError. dumps: pickles functions and arguments."""

    def __init__(self, connect: Callable[[], Connection], dumps: Callable[[Any], bytes]) -> None:
        self._connect = connect
        self._dumps = dumps
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[Call] = deque()
        self._ended: deque[tuple[Batch, bytes | None, BaseException | None]] = deque()
        self._in_flight: set[Batch] = set()
        self._thread: threading.Thread | None = None
        self._is_shut = False
        self._connection: Connection | None = None
        self._was_lost = False
        self._processors = 0.0
        self._next_look_up = 0.0
        self._paces: dict[object, Pace] = {}  # by kind of call

    def connect(self) -> None:
        """Connect now and raise errors. Otherwise the first call connects, and its future has the error."""
        with self._changed:
            if self._connection is None and self._thread is None and not self._is_shut:
                self._connection = self._connect()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._submit(_name(fn), partial(self._dumps, fn), (args, kwargs))

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As ProcessPoolExecutor.map."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        deadline = None if timeout is None else monotonic() + timeout
        name, function, items = _name(fn), cache(partial(self._dumps, fn)), zip(*iterables, strict=False)
        if chunksize == 1:
            return _results([self._submit(name, function, (item, {})) for item in items], deadline)
        chunks = iter(lambda: list(islice(items, chunksize)), [])
        return _flat(_results([self._submit(name, function, chunk, is_chunk=True) for chunk in chunks], deadline))

    def _submit(
        self, name: str, function: Callable[[], bytes], arguments: object, *, is_chunk: bool = False
    ) -> Future[Any]:
        future = CallFuture()
        try:
            call = Call(future, name, Pickled(function(), self._dumps(arguments), is_chunk))
        except Exception as error:  # noqa: BLE001 (any pickling error belongs to the future)
            future.set_exception(error)
            return future
        with self._changed:
            if self._is_shut:
                raise RuntimeError(AFTER_SHUTDOWN)
            self._queue.append(call)
            self._wake()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._is_shut = True
            if self._thread is not None or self._connection is not None:
                self._wake()
            thread, queue = self._thread, list(self._queue)
        if cancel_futures:
            for call in queue:
                call.future.cancel()
        if wait and thread not in (None, threading.current_thread()):
            thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            # The interpreter waits for it before it ends, as for the threads of the standard library's executors.
            self._thread = threading.Thread(target=self._work, name="oars-executor", daemon=False)
            self._thread.start()
        self._changed.notify()

    def _end(self, batch: Batch, data: bytes | None, error: BaseException | None) -> None:
        with self._changed:
            self._ended.append((batch, data, error))
            self._changed.notify()

    # The rest runs in the executor's thread.

    def _work(self) -> None:
        try:
            while self._wait():
                while self._ended:
                    self._settle(*self._ended.popleft())
                self._send()
            if self._thread is threading.current_thread() and self._connection is not None:
                self._connection.close()
                self._connection = None
        except BaseException as error:  # a defect; no call may wait forever
            LOGGER.exception("the executor failed")
            with self._changed:
                self._thread = None
                calls = self._take_all()
            _fail(calls, error)

    def _wait(self) -> bool:
        """Wait until there is something to do. False: there are no calls. Then the thread ends; after shutdown it
        closes the connection before."""
        with self._changed:
            while not self._ended and not (self._queue and len(self._in_flight) < self._window):
                if not self._queue and not self._in_flight:
                    if not self._is_shut:
                        self._thread = None
                    return False
                if not self._changed.wait(LOOK_UP_SECONDS if self._queue else None):
                    return True
            return True

    def _settle(self, batch: Batch, data: bytes | None, error: BaseException | None) -> None:
        if batch not in self._in_flight:
            return  # failed with its connection
        if data is not None:
            self._deliver(batch, data)
        elif isinstance(error, HeadDied):
            self._lose(error)
        elif isinstance(error, WorkerDied):
            self._retry(batch, error)
        else:
            _fail(batch.calls, error)
        self._in_flight.discard(batch)

    def _deliver(self, batch: Batch, data: bytes) -> None:
        answers, seconds = unpack(data)
        self._learn(batch.calls[0].kind, seconds, len(answers))
        self._return(batch.calls[len(answers) :])
        for call, answer in zip(batch.calls, answers, strict=False):
            _set(call.future, *unpickle(answer))

    def _learn(self, kind: object, seconds: float, calls: int) -> None:
        """Follow a longer duration at once and a shorter one gradually."""
        if len(self._paces) >= KINDS:
            self._paces.clear()
        pace, old = seconds / calls, self._paces.get(kind, Pace(0.0, 0))
        self._paces[kind] = Pace(max(pace, 0.5 * (pace + old.seconds), 1e-6), calls + old.calls)

    def _return(self, calls: Sequence[Call]) -> None:
        with self._changed:
            self._queue.extendleft(reversed(calls))

    def _retry(self, batch: Batch, error: WorkerDied) -> None:
        """Send the calls again, each separately: one of them may be what killed the worker."""
        assert self._connection is not None
        for call in batch.calls:
            call.attempts += 1
        if len(batch.calls) > 1 or batch.calls[0].attempts < self._connection.max_attempts:
            self._return(batch.calls)
            return
        message = f"The call of {batch.name}() was given up: its worker died in every attempt. {error}"
        why = self._connection.access.command("why")
        hint = f"Run `{why}`. A call that needs more memory than its worker has ends so."
        _fail(batch.calls, CallLost(message, hint))

    def _lose(self, error: HeadDied) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        threading.Thread(target=connection.close, name="oars-executor-close", daemon=True).start()
        self._was_lost, self._processors, self._next_look_up = True, 0.0, 0.0
        message = f"The connection to the cluster {connection.access.name!r} was lost, and all calls with it. {error}"
        hint = f"Run `{connection.access.command('why')}`. When the cluster is ready again, submit the calls again."
        _fail(self._take_all(), CallLost(message, hint))

    def _take_all(self) -> list[Call]:
        with self._changed:
            calls = [call for batch in self._in_flight for call in batch.calls] + list(self._queue)
            self._in_flight.clear()
            self._queue.clear()
            return calls

    @property
    def _window(self) -> int:
        """How many batches may be in flight."""
        limit = self._connection.max_batches if self._connection is not None else 1
        return max(1, min(limit, math.ceil(AHEAD * self._processors)))

    def _send(self) -> None:
        connection = self._open()
        if connection is None:
            return
        self._look_up(connection)
        batches: list[Batch] = []
        while len(self._in_flight) < self._window and (calls := self._take(connection.task_seconds)):
            batches.append(Batch(calls, self._end))
            self._in_flight.add(batches[-1])
        try:
            connection.send(batches)
        except Exception as error:  # noqa: BLE001 (belongs to the calls)
            for batch in batches:
                batch.end(batch, None, error)

    def _open(self) -> Connection | None:
        """The connection. None if there is nothing to send, or if it cannot be opened, which fails all calls."""
        deadline = monotonic() + (RECONNECT_SECONDS if self._was_lost else 0.0)
        while self._has_calls():
            if self._connection is not None:
                return self._connection
            try:
                self._connection = self._connect()
                self._was_lost = False
            except Exception as error:  # noqa: BLE001 (belongs to the calls)
                if monotonic() >= deadline or not isinstance(error, EngineUnreachable | ClusterLost):
                    _fail(self._take_all(), error)
                    return None
                with self._changed:
                    self._changed.wait(RETRY_SECONDS)
        return None

    def _has_calls(self) -> bool:
        with self._changed:
            while self._queue and self._queue[0].future.cancelled():
                self._queue.popleft()
            return bool(self._queue)

    def _look_up(self, connection: Connection) -> None:
        """Update the number of processors in the background: a head that hangs must not stop this thread."""
        if monotonic() < self._next_look_up:
            return
        self._next_look_up = math.inf

        def look_up() -> None:
            found = self._processors
            with suppress(Exception):  # the head does not answer; if it is gone, the batches report it
                found = connection.processors()
            with self._changed:
                if connection is self._connection:
                    self._processors, self._next_look_up = found, monotonic() + LOOK_UP_SECONDS
                    self._changed.notify()

        threading.Thread(target=look_up, name="oars-executor-processors", daemon=True).start()

    def _take(self, task_seconds: float) -> list[Call]:
        """The next calls to send together."""
        calls: list[Call] = []
        size, limit = 0, 1.0
        with self._changed:
            while self._queue and len(calls) < limit and size < BATCH_BYTES:
                call = self._queue[0]
                if calls and (call.kind != calls[0].kind or call.attempts):
                    break
                self._queue.popleft()
                if not call.begin():
                    continue
                if not calls:
                    limit = self._batch_size(call, task_seconds)
                calls.append(call)
                size += len(call.pickled.arguments)
        return calls

    def _batch_size(self, call: Call, task_seconds: float) -> float:
        """One, unless calls of this kind take less time than a task of the engine. A call that is sent together with
        a long one waits for it, so a batch has at most a quarter as many calls as were seen to be short."""
        pace = self._paces.get(call.kind)
        if call.attempts or pace is None or pace.seconds > task_seconds:
            return 1
        share = (len(self._queue) + 1) / (self._window - len(self._in_flight))
        wanted = max(share, task_seconds / pace.seconds)
        return min(wanted, BATCH_SECONDS / pace.seconds, pace.calls / 4, BATCH_CALLS)


def _set(future: Future[Any], value: Any, error: BaseException | None) -> None:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except BaseException:  # concurrent.futures logs an Exception of a callback itself
        LOGGER.exception("exception in a callback of a future")


def _fail(calls: Iterable[Call], error: BaseException | None) -> None:
    for call in calls:
        if call.begin() and not call.future.done():
            _set(call.future, None, error)


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def _results(futures: list[Future[Any]], deadline: float | None) -> Generator[Any, None, None]:
    """Yield results in the order of the calls and drop them; cancel the rest if the caller stops early."""
    futures.reverse()
    try:
        while futures:
            yield futures.pop().result(None if deadline is None else deadline - monotonic())
    finally:
        for future in futures:
            future.cancel()


def _flat(chunks: Generator[list[Any], None, None]) -> Iterator[Any]:
    with closing(chunks):
        for chunk in chunks:
            chunk.reverse()
            while chunk:
                yield chunk.pop()
