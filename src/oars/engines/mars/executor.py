"""concurrent.futures on Mars. Calls are sent in batches, each one task of Mars. A batch has one call while calls are
long or few, and many once calls turn out to be short: a task costs Mars tens of milliseconds whatever it does."""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from oars.base.errors import ClusterLost
from oars.engines.sessions import AFTER_SHUTDOWN, RemoteTraceback

BATCH_SECONDS = 0.25  # target duration of a batch; one that takes four times as long returns its remaining calls
BATCH_CALLS = 2000
TASK_SECONDS = 0.05  # minimal cost of a Mars task; shorter batches are not worth it
MAX_BATCHES = 64  # in flight
REFRESH_SECONDS = 5.0  # between two requests for the list of workers
WORKER_SECONDS = 60.0  # for which a call waits for a worker
NOT_RUN = ("NoMatchingSlots", "NoAvailableBand")  # errors that Mars raises before it runs anything


@dataclass(frozen=True)
class Call:
    """One submitted call and its future. `returned`: it was sent once, but a batch had no time to run it."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: bool = False

    @property
    def kind(self) -> object:
        """Calls of one kind are assumed to take equally long."""
        return getattr(self.function, "__qualname__", None) or type(self.function)

    def begin(self) -> bool:
        return self.returned or self.future.set_running_or_notify_cancel()


class Worker(NamedTuple):
    """A worker in service: its processors, and the time of its last report by the supervisor's clock."""

    slots: float
    last_report: float


@dataclass(frozen=True)
class MarsSession:
    """The executor's own Mars session, and the calls it needs."""

    cluster: str
    client: Any  # Mars' session object
    spawn: Callable[..., Any]
    workers: Callable[[], Mapping[str, Worker]]  # by address; raises OSError
    is_alive: Callable[[], bool]  # whether the cluster still knows the session
    close: Callable[[], None]
    renew: Callable[[], MarsSession]  # open a new session; raises ClusterLost


class MarsExecutor(Executor):
    """Sends calls and sets the results of their futures. Every future completes, if only with ClusterLost."""

    def __init__(self, session: MarsSession) -> None:
        self._session = session
        self._lost = False  # the session is gone
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Call] = deque()
        self._active = 0
        self._shut = False
        self._closed = False
        self._paces: dict[object, float] = {}  # recent seconds per call, by kind
        self._workers: Mapping[str, Worker] = {}
        self._workers_updated = -math.inf
        self._suspects: dict[str, float] = {}  # workers that failed a call → their last report at that time
        self._loads: Counter[str] = Counter()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._shut:
                raise RuntimeError(AFTER_SHUTDOWN)
            self._queue.append(Call(future, fn, args, kwargs))
        self._spawn_threads()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._shut = True
            dropped = list(self._queue) if cancel_futures else []
            if cancel_futures:
                self._queue.clear()
        for call in dropped:
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        with self._idle:
            while wait and self._active:
                self._idle.wait()
        self._end_session()

    def _end_session(self) -> None:
        """Close the session after shutdown, when the last thread has ended."""
        with self._lock:
            if self._active or not self._shut or self._closed:
                return
            self._closed = True
        self._session.close()

    def _max_in_flight(self) -> int:
        """Maximum number of batches in flight: enough that no processor waits for the next one."""
        return min(MAX_BATCHES, max(1, math.ceil(2 * sum(w.slots for w in self._workers.values()))))

    def _spawn_threads(self) -> None:
        """Start threads for queued calls, up to the number of batches in flight."""
        with self._lock:
            new = max(0, min(self._max_in_flight() - self._active, len(self._queue)))
            self._active += new
        for _ in range(new):
            threading.Thread(target=self._work, name="oars-mars", daemon=True).start()

    def _work(self) -> None:
        self._refresh_workers()
        self._spawn_threads()
        while batch := self._take():
            self._perform(batch)
            self._refresh_workers()
        with self._idle:
            self._idle.notify_all()
        self._end_session()

    def _refresh_workers(self) -> None:
        """Update the list of workers if it is old."""
        if time.monotonic() - self._workers_updated > REFRESH_SECONDS:
            with contextlib.suppress(OSError):  # sending the next batch reports it
                self._update_workers(self._session)

    def _update_workers(self, session: MarsSession) -> None:
        """Mars lists a dead worker for a second or two, so one that failed a call must report again to be used."""
        self._workers_updated = time.monotonic()
        found = session.workers()
        with self._lock:
            for name, last_report in list(self._suspects.items()):
                if name in found and found[name].last_report > last_report:
                    del self._suspects[name]
            self._workers = {name: worker for name, worker in found.items() if name not in self._suspects}

    def _suspect(self, name: str, session: MarsSession) -> None:
        with contextlib.suppress(OSError):  # the head is gone too, which the next call notices
            worker = session.workers().get(name)
            with self._lock:
                self._suspects[name] = worker.last_report if worker is not None else 0.0
                self._workers_updated = -math.inf
                self._workers = {other: worker for other, worker in self._workers.items() if other != name}

    @contextlib.contextmanager
    def _slot(self, session: MarsSession) -> Iterator[str]:
        """Reserve the least loaded worker. Mars itself sends all single tasks to the same one."""
        deadline = time.monotonic() + WORKER_SECONDS
        while (name := self._least_loaded()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out after {WORKER_SECONDS:.0f} s waiting for a worker")
            try:
                self._update_workers(session)
            except OSError:  # Mars may fail on a worker that has just died; nothing has been sent yet
                if not session.is_alive():
                    raise
            time.sleep(0 if self._workers else 0.2)
        try:
            yield name
        finally:
            with self._lock:
                self._loads[name] -= 1

    def _least_loaded(self) -> str | None:
        with self._lock:
            name = min(self._workers, key=lambda name: self._loads[name] / self._workers[name].slots, default=None)
            if name is not None:
                self._loads[name] += 1
            return name

    def _take(self) -> list[Call]:
        """The next calls to send, all of one kind; an empty list ends this thread."""
        with self._lock:
            batch: list[Call] = []
            while self._queue and (not batch or self._fits(batch)):
                call = self._queue.popleft()
                if call.begin():
                    batch.append(call)
            if not batch:
                self._active -= 1
            return batch

    def _fits(self, batch: list[Call]) -> bool:
        """True if the next call may join the batch: it is of the same kind, and enough is left for other workers."""
        kind = batch[0].kind
        pace = max(self._paces.get(kind, BATCH_SECONDS), 1e-6)
        share = math.ceil((len(self._queue) + len(batch)) / self._max_in_flight())
        room = min(BATCH_SECONDS / pace, max(share, TASK_SECONDS / pace), BATCH_CALLS)
        return len(batch) < room and self._queue[0].kind == kind

    def _perform(self, batch: list[Call]) -> None:
        import cloudpickle

        try:
            payload = bytes(cloudpickle.dumps([(call.function, call.args, call.kwargs) for call in batch]))
        except Exception as error:  # noqa: BLE001 (any pickling error belongs to the call)
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for call in batch:
                self._perform([call])
            return
        session = self._session
        try:
            session = self._open_session()
            answers, seconds = pickle.loads(self._send(payload, session))
        except Exception as error:  # noqa: BLE001 (any error of Mars fails the futures)
            self._fail(batch, session, error)
            return
        self._learn(batch, len(answers), seconds)
        for call, answer in zip(batch, answers, strict=False):
            _settle(call.future, answer)

    def _learn(self, batch: list[Call], answered: int, seconds: float) -> None:
        """Update the duration of this kind of calls, and queue the calls that the batch had no time for."""
        kind, pace = batch[0].kind, seconds / answered
        with self._lock:
            self._paces[kind] = 0.5 * (self._paces.get(kind, pace) + pace)
            self._queue.extendleft(replace(call, returned=True) for call in reversed(batch[answered:]))
        self._spawn_threads()

    def _open_session(self) -> MarsSession:
        """The session, or a new one if it is gone. Waits for the cluster to come back."""
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            with self._lock:
                if not self._lost:
                    return self._session
                try:
                    self._session, self._lost = self._session.renew(), False
                    self._workers, self._workers_updated = {}, -math.inf
                    self._suspects.clear()
                except ClusterLost:
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.2)

    def _send(self, payload: bytes, session: MarsSession) -> bytes:
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            with self._slot(session) as name:
                try:
                    # The random name keeps Mars from merging two equal calls.
                    arguments = (payload, uuid.uuid4().hex, 4 * BATCH_SECONDS)
                    remote = session.spawn(_runner(), args=arguments, expect_worker=name)
                    session.client.execute(remote, show_progress=False)
                    return bytes(session.client.fetch(remote))
                except Exception as error:
                    self._suspect(name, session)
                    if type(error).__name__ not in NOT_RUN or time.monotonic() > deadline:
                        raise

    def _fail(self, batch: list[Call], session: MarsSession, error: Exception) -> None:
        """Fail the batch; its calls may have run, so they are not sent again. Without a session, fail all calls."""
        gone = not session.is_alive()
        lost = _explain(error, session.cluster if gone else "")
        rest: list[Call] = []
        with self._lock:
            if gone and session is self._session:
                self._lost = True
                rest = [call for call in self._queue if call.begin()]
                self._queue.clear()
        for call in batch + rest:
            call.future.set_exception(lost)


def _explain(error: Exception, gone: str) -> ClusterLost:
    text = f"{type(error).__name__}: {error}"
    if gone:
        message = f"The supervisor of the Mars cluster {gone!r} was lost while calls were running: {text}."
        hint = "Oars restarts it at the same address. Submit the calls again."
    else:
        message = f"Mars could not finish a call: {text}."
        hint = "A worker may have died; Oars replaces it. Submit the call again."
    lost = ClusterLost(message, hint)
    lost.__cause__ = error
    return lost


def _runner() -> Callable[[bytes, str, float], bytes]:
    def run(payload: bytes, name: str, limit: float) -> bytes:
        """Runs in the cluster. It is a local function so that it is pickled by value: Oars is not installed there."""
        import pickle
        import time
        import traceback

        import cloudpickle

        def call(function: Any, args: Any, kwargs: Any) -> tuple[bool, bytes]:
            try:
                return True, cloudpickle.dumps(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (returned to the caller)
                text = traceback.format_exc()
                try:
                    return False, cloudpickle.dumps((error, text))
                except Exception:  # noqa: BLE001
                    return False, cloudpickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))

        start = time.perf_counter()
        answers: list[tuple[bool, bytes]] = []
        for item in pickle.loads(payload):
            answers.append(call(*item))
            if time.perf_counter() - start > limit:
                break  # other workers can run the rest
        return cloudpickle.dumps((answers, time.perf_counter() - start))  # type: ignore[no-any-return]

    return run


def _settle(future: Future[Any], answer: tuple[bool, bytes]) -> None:
    succeeded, data = answer
    try:
        value = pickle.loads(data)
    except Exception as error:  # noqa: BLE001 (a class that exists only there, or cannot be unpickled)
        future.set_exception(error)
        return
    if succeeded:
        future.set_result(value)
        return
    raised, text = value
    raised.__cause__ = RemoteTraceback(text)
    future.set_exception(raised)
