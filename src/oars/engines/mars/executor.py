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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from oars.base.errors import ClusterLost

PARCEL_SECONDS = 0.25  # how much work a parcel should hold; one that turns out to hold four times as much comes back
PARCEL_CALLS = 2000
TASK_SECONDS = 0.05  # what a task costs Mars at least: less work than this is not worth sharing
MOST_PARCELS = 64  # at a time
REFRESH_SECONDS = 5.0  # how often the number of processors is asked for
WORKER_SECONDS = 60.0  # how long a call waits for a worker to be there
NOT_RUN = ("NoMatchingSlots", "NoAvailableBand")


@dataclass(frozen=True)
class Call:
    """One submitted call and its promise. `again`: it was sent once, but came back untouched."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    again: bool = False

    @property
    def kind(self) -> object:
        """Calls of one kind are expected to take equally long."""
        return getattr(self.function, "__qualname__", None) or type(self.function)

    def begin(self) -> bool:
        return self.again or self.future.set_running_or_notify_cancel()


class RemoteTraceback(Exception):
    """Where it happened: shown by Python above the error itself."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Worker(NamedTuple):
    """A worker that Mars would give work to: its processors, and when it last spoke by the supervisor's clock."""

    slots: float
    spoke: float


@dataclass(frozen=True)
class Desk:
    """What an executor works with: a Mars session of its own, mars.remote.spawn, and the session's fate."""

    name: str  # of the cluster
    session: Any
    spawn: Callable[..., Any]
    workers: Callable[[], Mapping[str, Worker]]  # by address; raises OSError
    alive: Callable[[], bool]  # whether the cluster still knows the session
    close: Callable[[], None]
    renew: Callable[[], Desk]  # the same with a new session; raises ClusterLost


class MarsExecutor(Executor):
    """Sends calls, hands out answers; every call ends, if only with ClusterLost."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lost = False  # the desk's session is gone
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Call] = deque()
        self._active = 0
        self._shut = False
        self._closed = False
        self._paces: dict[object, float] = {}  # seconds a call takes, lately, by kind
        self._workers: Mapping[str, Worker] = {}
        self._workers_asked = -math.inf
        self._suspects: dict[str, float] = {}  # failed a call, and when they had last spoken then
        self._loads: Counter[str] = Counter()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._queue.append(Call(future, fn, args, kwargs))
        self._hire()
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
        return min(MOST_PARCELS, max(1, math.ceil(2 * sum(w.slots for w in self._workers.values()))))

    def _hire(self) -> None:
        """As many threads as there can be parcels."""
        with self._lock:
            new = max(0, min(self._width() - self._active, len(self._queue)))
            self._active += new
        for _ in range(new):
            threading.Thread(target=self._work, name="oars-mars", daemon=True).start()

    def _work(self) -> None:
        self._meet_workers()
        self._hire()
        while parcel := self._take():
            self._perform(parcel)
            self._meet_workers()
        with self._idle:
            self._idle.notify_all()
        self._end_session()

    def _meet_workers(self) -> None:
        """Now and then: who is there to work."""
        if time.monotonic() - self._workers_asked > REFRESH_SECONDS:
            with contextlib.suppress(OSError):  # the next parcel will tell
                self._ask_for_workers(self._desk)

    def _ask_for_workers(self, desk: Desk) -> None:
        """Mars goes on to name one that has died for a second or two. One that failed a call must speak again first."""
        self._workers_asked = time.monotonic()
        found = desk.workers()
        with self._lock:
            for name, spoke in list(self._suspects.items()):
                if name in found and found[name].spoke > spoke:
                    del self._suspects[name]
            self._workers = {name: worker for name, worker in found.items() if name not in self._suspects}

    def _suspect(self, name: str, desk: Desk) -> None:
        with contextlib.suppress(OSError):  # the head is gone as well, which is found out next
            worker = desk.workers().get(name)
            with self._lock:
                self._suspects[name] = worker.spoke if worker is not None else 0.0
                self._workers_asked = -math.inf
                self._workers = {other: worker for other, worker in self._workers.items() if other != name}

    @contextlib.contextmanager
    def _seat(self, desk: Desk) -> Iterator[str]:
        """The worker with the least to do. Mars itself would send everything that comes alone to the same one."""
        deadline = time.monotonic() + WORKER_SECONDS
        while (name := self._least_loaded()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no worker within {WORKER_SECONDS:.0f} s")
            try:
                self._ask_for_workers(desk)
            except OSError:  # Mars may stumble over a worker that has just died; nothing has been sent yet
                if not desk.alive():
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
        """The next calls to send, all of one kind; none: this thread is done."""
        with self._lock:
            parcel: list[Call] = []
            while self._queue and (not parcel or self._fits(parcel)):
                call = self._queue.popleft()
                if call.begin():
                    parcel.append(call)
            if not parcel:
                self._active -= 1
            return parcel

    def _fits(self, parcel: list[Call]) -> bool:
        """Whether the next call may travel with these: it is of their kind, and they leave enough for the others."""
        kind = parcel[0].kind
        pace = max(self._paces.get(kind, PARCEL_SECONDS), 1e-6)
        share = math.ceil((len(self._queue) + len(parcel)) / self._width())
        room = min(PARCEL_SECONDS / pace, max(share, TASK_SECONDS / pace), PARCEL_CALLS)
        return len(parcel) < room and self._queue[0].kind == kind

    def _perform(self, parcel: list[Call]) -> None:
        try:
            payload = _pack(parcel)
        except Exception as error:  # noqa: BLE001 (whatever pickling may raise belongs to the call)
            self._perform_apart(parcel, error)
            return
        desk = self._desk
        try:
            desk = self._open_desk()
            answers, seconds = pickle.loads(self._send(payload, desk))
        except Exception as error:  # noqa: BLE001 (whatever Mars raises is told to everyone who waits)
            self._fail(parcel, desk, error)
            return
        self._learn(parcel, len(answers), seconds)
        for call, answer in zip(parcel, answers, strict=False):
            _settle(call.future, answer)

    def _perform_apart(self, parcel: list[Call], error: Exception) -> None:
        """One of them cannot be sent; it must not take the others with it."""
        if len(parcel) == 1:
            parcel[0].future.set_exception(error)
            return
        for call in parcel:
            self._perform([call])

    def _learn(self, parcel: list[Call], answered: int, seconds: float) -> None:
        """How long calls of this kind take; and those that the parcel had no time for are next."""
        kind, pace = parcel[0].kind, seconds / answered
        with self._lock:
            self._paces[kind] = 0.5 * (self._paces.get(kind, pace) + pace)
            self._queue.extendleft(replace(call, again=True) for call in reversed(parcel[answered:]))
        self._hire()

    def _open_desk(self) -> Desk:
        """The desk, or a new one when the session is gone: the cluster may need a moment to be back."""
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            with self._lock:
                if not self._lost:
                    return self._desk
                try:
                    self._desk, self._lost = self._desk.renew(), False
                    self._workers, self._workers_asked = {}, -math.inf
                    self._suspects.clear()
                except ClusterLost:
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.2)

    def _send(self, payload: bytes, desk: Desk) -> bytes:
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            with self._seat(desk) as name:
                try:
                    return _run_at(desk, name, payload)
                except Exception as error:
                    self._suspect(name, desk)
                    # Mars says these before it runs anything: the call can be sent again.
                    if type(error).__name__ not in NOT_RUN or time.monotonic() > deadline:
                        raise

    def _fail(self, parcel: list[Call], desk: Desk, error: Exception) -> None:
        """A call that was sent is never sent again: it may have run. Without the session nothing else can run."""
        gone = not desk.alive()
        lost = _explain(error, desk.name if gone else "")
        rest: list[Call] = []
        with self._lock:
            if gone and desk is self._desk:
                self._lost = True
                rest = [call for call in self._queue if call.begin()]
                self._queue.clear()
        for call in parcel + rest:
            call.future.set_exception(lost)


def _run_at(desk: Desk, worker: str, payload: bytes) -> bytes:
    # The random name keeps Mars from taking two equal calls for one.
    remote = desk.spawn(_runner(), args=(payload, uuid.uuid4().hex, 4 * PARCEL_SECONDS), expect_worker=worker)
    desk.session.execute(remote, show_progress=False)
    return bytes(desk.session.fetch(remote))


def _explain(error: Exception, gone: str) -> ClusterLost:
    text = f"{type(error).__name__}: {error}"
    if gone:
        message = f"The Mars cluster {gone!r} went away while calls were running: {text}."
        hint = "It comes back by itself at the same address; submit the calls again then."
    else:
        message = f"Mars could not finish a call: {text}."
        hint = "A worker may have been lost while it ran; it is being replaced. Submit the call again."
    lost = ClusterLost(message, hint)
    lost.__cause__ = error
    return lost


def _runner() -> Callable[[bytes, str, float], bytes]:
    def run(payload: bytes, name: str, limit: float) -> bytes:
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
        answers: list[tuple[bool, bytes]] = []
        for item in pickle.loads(payload):
            answers.append(call(*item))
            if time.perf_counter() - begin > limit:
                break  # the others can have the rest
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
