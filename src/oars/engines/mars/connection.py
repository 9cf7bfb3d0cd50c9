"""An executor's calls as tasks of Mars, each in a thread that waits for it. The worker is chosen here: Mars itself
sends all single tasks to the same one."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oars.engines.base import Access
from oars.engines.calls import make_run
from oars.engines.executor import Batch, CallLost, Connection, HeadDied, WorkerDied

WORKER_SECONDS = 60.0  # for which a call waits for a worker
RETRY_SECONDS = 0.2
NOT_RUN = ("NoMatchingSlots", "NoAvailableBand")  # errors that Mars raises before it runs anything


class Worker(NamedTuple):
    """A worker in service: its processors, and the time of its last report by the supervisor's clock."""

    slots: float
    last_report: float


@dataclass(frozen=True)
class MarsSession:
    """A Mars session, and the calls that a connection needs."""

    client: Any  # Mars' session object
    spawn: Callable[..., Any]
    workers: Callable[[], Mapping[str, Worker]]  # by address; raises OSError
    is_alive: Callable[[], bool]  # whether the cluster still knows the session
    close: Callable[[], None]
    announce: Callable[[], None] = lambda: None  # reports that calls wait for the first worker; raises OSError


class MarsConnection(Connection):
    task_seconds = 0.05
    max_batches = 64

    def __init__(self, session: MarsSession, access: Access) -> None:
        self.access = access
        self._session = session
        self._run = make_run()
        self._lock = threading.Lock()
        self._workers: Mapping[str, Worker] = {}
        self._suspects: dict[str, float] = {}  # workers that failed a call → their last report at that time
        self._loads: Counter[str] = Counter()

    def processors(self) -> float:
        self._update_workers()
        return sum(worker.slots for worker in self._workers.values())

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            threading.Thread(target=self._perform, args=(batch,), name="oars-mars", daemon=True).start()

    def close(self) -> None:
        self._session.close()

    def _perform(self, batch: Batch) -> None:
        try:
            data = self._execute(*batch.arguments)
        except Exception as error:  # noqa: BLE001 (any error of Mars ends the batch)
            text = f"{type(error).__name__}: {error}"
            if not self._session.is_alive():
                batch.end(batch, None, HeadDied(f"The supervisor does not know the session any more. {text}"))
            else:
                batch.end(batch, None, error if isinstance(error, CallLost) else WorkerDied(text))
        else:
            batch.end(batch, data, None)

    def _execute(self, payload: bytes, limit: float) -> bytes:
        deadline = time.monotonic() + WORKER_SECONDS
        while True:
            with self._slot(deadline) as name:
                try:
                    return self._attempt(name, payload, limit)
                except Exception as error:
                    self._suspect(name)
                    if type(error).__name__ not in NOT_RUN or time.monotonic() > deadline:
                        raise

    def _attempt(self, worker: str, payload: bytes, limit: float) -> bytes:
        """A frame of its own for each attempt. Mars frees a result when Python frees its object, and the error of a
        failed attempt keeps the frames of its traceback: a result in one of them would stay on its worker."""
        # The random argument keeps Mars from merging two equal calls.
        arguments = (payload, limit, uuid.uuid4().hex)
        remote = self._session.spawn(self._run, args=arguments, expect_worker=worker)
        self._session.client.execute(remote, show_progress=False)
        return bytes(self._session.client.fetch(remote))

    @contextlib.contextmanager
    def _slot(self, deadline: float) -> Iterator[str]:
        """Reserve the least loaded worker."""
        while (name := self._least_loaded()) is None:
            if time.monotonic() > deadline:
                message = f"The call was given up: no worker was ready within {WORKER_SECONDS:.0f} s."
                raise CallLost(message, f"Run `{self.access.command('why')}`.")
            try:
                self._update_workers()
                if not self._workers:
                    self._session.announce()
            except OSError:  # Mars may fail on a worker that has just died; nothing has been sent yet
                if not self._session.is_alive():
                    raise
            if not self._workers:
                time.sleep(RETRY_SECONDS)
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

    def _update_workers(self) -> None:
        """Mars lists a dead worker for a second or two, so one that failed a call must report again to be used."""
        found = self._session.workers()
        with self._lock:
            for name, last_report in list(self._suspects.items()):
                if found.get(name, Worker(0.0, -math.inf)).last_report > last_report:
                    del self._suspects[name]
            self._workers = {name: worker for name, worker in found.items() if name not in self._suspects}

    def _suspect(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the head is gone too, which the caller notices
            worker = self._session.workers().get(name)
            with self._lock:
                self._suspects[name] = worker.last_report if worker is not None else 0.0
                self._workers = {other: worker for other, worker in self._workers.items() if other != name}
