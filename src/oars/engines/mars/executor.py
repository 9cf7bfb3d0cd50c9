"""concurrent.futures on Mars. Calls travel in parcels, each one task of Mars: alone while they are long or few, many
together once they prove short, because a task costs Mars tens of milliseconds whatever it does."""

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
from dataclasses import dataclass
from typing import Any

from oars.base.errors import ClusterLost

PARCEL_SECONDS = 0.25  # how much work a parcel should hold
PARCEL_CALLS = 2000
MOST_PARCELS = 64  # at a time
REFRESH_SECONDS = 5.0  # how often the number of processors is asked for
WORKER_SECONDS = 60.0  # how long a call waits for a worker to be there
WAITING_FOR_WORKERS = ("NoMatchingSlots", "NoAvailableBand")


@dataclass(frozen=True)
class Call:
    """One submitted call and its promise."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RemoteTraceback(Exception):
    """Where it happened: shown by Python above the error itself."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True)
class Desk:
    """What an executor works with: a Mars session of its own, mars.remote.spawn, and the session's fate."""

    session: Any
    spawn: Callable[..., Any]
    workers: Callable[[], Mapping[str, float]]  # address → processors, of all that are ready; raises OSError
    alive: Callable[[], bool]  # whether the cluster still knows the session
    close: Callable[[], None]


class MarsExecutor(Executor):
    """Sends calls, hands out answers; every call ends, if only with ClusterLost."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Call] = deque()
        self._active = 0
        self._shut = False
        self._closed = False
        self._lost: ClusterLost | None = None
        self._pace: float | None = None  # seconds a call takes, lately
        self._workers: Mapping[str, float] = {}
        self._workers_asked = -math.inf
        self._loads: Counter[str] = Counter()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._lost is not None:
                raise self._lost
            self._queue.append(Call(future, fn, args, kwargs))
            start = self._active < self._width()
            self._active += start
        if start:
            threading.Thread(target=self._work, name="oars-mars", daemon=True).start()
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
        """The last one out closes the door."""
        with self._lock:
            if self._active or not self._shut or self._closed:
                return
            self._closed = True
        self._desk.close()

    def _width(self) -> int:
        """How many parcels may be under way: enough that no processor waits for the next one."""
        return min(MOST_PARCELS, max(1, math.ceil(2 * sum(self._workers.values()))))

    def _work(self) -> None:
        try:
            self._meet_workers()
            while parcel := self._take():
                self._perform(parcel)
                self._meet_workers()
        finally:
            with self._idle:
                self._idle.notify_all()
            self._end_session()

    def _meet_workers(self) -> None:
        with self._lock:
            if time.monotonic() - self._workers_asked < REFRESH_SECONDS:
                return
            self._workers_asked = time.monotonic()
        with contextlib.suppress(OSError):  # the parcels will tell
            self._workers = self._desk.workers()

    @contextlib.contextmanager
    def _seat(self) -> Iterator[str | None]:
        """The worker with the least to do. Mars itself would send everything that comes alone to the same one."""
        with self._lock:
            worker = min(self._workers, key=lambda name: self._loads[name] / self._workers[name], default=None)
            if worker is not None:
                self._loads[worker] += 1
        try:
            yield worker
        finally:
            with self._lock:
                if worker is not None:
                    self._loads[worker] -= 1

    def _take(self) -> list[Call]:
        """The next calls to send; none: this thread is done."""
        with self._lock:
            parcel: list[Call] = []
            share = math.ceil(len(self._queue) / self._width())
            size = 1 if self._pace is None else int(PARCEL_SECONDS / max(self._pace, 1e-6))
            size = max(1, min(size, share, PARCEL_CALLS))
            while self._queue and len(parcel) < size:
                call = self._queue.popleft()
                if call.future.set_running_or_notify_cancel():
                    parcel.append(call)
            if not parcel:
                self._active -= 1
            return parcel

    def _perform(self, parcel: list[Call]) -> None:
        try:
            payload = _pack(parcel)
        except Exception as error:  # noqa: BLE001 (whatever pickling may raise belongs to the call)
            self._perform_apart(parcel, error)
            return
        try:
            answers, seconds = pickle.loads(self._send(payload))
        except Exception as error:  # noqa: BLE001 (whatever Mars raises is told to everyone who waits)
            self._fail(parcel, error)
            return
        pace = seconds / len(parcel)
        self._pace = pace if self._pace is None else 0.5 * (self._pace + pace)
        for call, answer in zip(parcel, answers, strict=True):
            _settle(call.future, answer)

    def _perform_apart(self, parcel: list[Call], error: Exception) -> None:
        """One of them cannot be sent; it must not take the others with it."""
        if len(parcel) == 1:
            parcel[0].future.set_exception(error)
            return
        for call in parcel:
            self._perform([call])

    def _send(self, payload: bytes) -> bytes:
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            try:
                with self._seat() as worker:
                    return self._run_at(worker, payload)
            except Exception as error:
                # Mars says so before it runs anything: it can be tried again.
                if type(error).__name__ not in WAITING_FOR_WORKERS or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)
            self._workers_asked = -math.inf
            self._meet_workers()

    def _run_at(self, worker: str | None, payload: bytes) -> bytes:
        # The random name keeps Mars from taking two equal calls for one.
        remote = self._desk.spawn(_runner(), args=(payload, uuid.uuid4().hex), expect_worker=worker)
        self._desk.session.execute(remote, show_progress=False)
        return bytes(self._desk.session.fetch(remote))

    def _fail(self, parcel: list[Call], error: Exception) -> None:
        lost = self._explain(error)
        for call in parcel:
            call.future.set_exception(lost)
        if self._lost is None:
            return
        with self._lock:
            rest = list(self._queue)
            self._queue.clear()
        for call in rest:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(lost)

    def _explain(self, error: Exception) -> ClusterLost:
        text = f"{type(error).__name__}: {error}"
        if self._desk.alive():
            lost = ClusterLost(
                f"Mars could not finish a call: {text}.",
                "A worker may have been lost while it ran; it is being replaced. Submit the call again.",
            )
        else:
            lost = self._lost = ClusterLost(
                f"The Mars cluster went away while calls were running: {text}.",
                "It comes back by itself at the same address: ask the cluster for a new executor.",
            )
        lost.__cause__ = error
        return lost


def _runner() -> Callable[[bytes, str], bytes]:
    def run(payload: bytes, name: str) -> bytes:
        """Runs in the cluster. Being local to a function, it is sent as code: Oars is not installed there."""
        import pickle
        import time
        import traceback

        import cloudpickle

        def call(function: Any, args: Any, kwargs: Any) -> tuple[bool, bytes]:
            try:
                return True, cloudpickle.dumps(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (told to the caller, whatever it is)
                text = traceback.format_exc()
                try:
                    return False, cloudpickle.dumps((error, text))
                except Exception:  # noqa: BLE001
                    return False, cloudpickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))

        begin = time.perf_counter()
        answers = [call(*item) for item in pickle.loads(payload)]
        return cloudpickle.dumps((answers, time.perf_counter() - begin))  # type: ignore[no-any-return]

    return run


def _pack(parcel: list[Call]) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps([(call.function, call.args, call.kwargs) for call in parcel]))


def _settle(future: Future[Any], answer: tuple[bool, bytes]) -> None:
    good, data = answer
    try:
        value = pickle.loads(data)
    except Exception as error:  # noqa: BLE001 (a class that exists only over there, or one that cannot be rebuilt)
        future.set_exception(error)
        return
    if good:
        future.set_result(value)
        return
    raised, text = value
    raised.__cause__ = RemoteTraceback(text)
    future.set_exception(raised)
