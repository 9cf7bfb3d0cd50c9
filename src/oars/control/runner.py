"""The runner: reconciles keys wherever the loop runs: one key in the keeper and in a client, many in the operator.

Sources (watches, sockets, timers) call `wake`. The runner has one pass at a time for each key, paces polling, backs off
after failures and has every failure reported. No exception of a pass ends reconciliation, of this key or of any other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.rate import TokenBucket
from oars.control.queue import LONGEST_BACKOFF, Queue
from oars.model import Pause

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

POLLS_PER_SECOND, POLL_BURST = 20.0, 40.0  # over all keys: changes are announced anyway
LOOKS_PER_SECOND, LOOK_BURST = 100.0, 200.0  # the same for looks for new work, which nothing announces
NOW = Pause(0.0)

log = get_logger(__name__)


class Reconciler(Protocol[K_contra]):
    async def reconcile(self, key: K_contra) -> Pause | None:
        """One pass. Returns when the next is due at the latest; None: nothing is left to do for this key."""

    async def report_failure(self, key: K_contra, error: Exception) -> None:
        """Show in the key's status that its pass failed."""


class Runner(Generic[K]):
    """Drives a Reconciler. At most `workers` passes are at work at a time, not counting those in `waiting`; `tenant`
    says whose a key is, and tenants take turns. `observe_pass` gets the duration of each pass and whether it failed."""

    def __init__(
        self,
        reconciler: Reconciler[K],
        *,
        workers: int = 1,
        tenant: Callable[[K], Hashable] = lambda key: None,
        longest_backoff: float = LONGEST_BACKOFF,
        clock: Callable[[], float] = time.monotonic,
        observe_pass: Callable[[float, bool], None] = lambda seconds, failed: None,
    ) -> None:
        self._reconciler = reconciler
        self._workers = workers
        self._slots = asyncio.Semaphore(workers)
        self._clock = clock
        self._observe_pass = observe_pass
        polls, looks = (
            TokenBucket(POLLS_PER_SECOND, POLL_BURST, clock),
            TokenBucket(LOOKS_PER_SECOND, LOOK_BURST, clock),
        )
        self._buckets = {False: polls, True: looks}  # by Pause.is_look
        self._queue: Queue[K] = Queue(clock, longest_backoff, tenant)
        self._known: set[K] = set()
        self._next_poll: dict[tuple[K, bool], float] = {}
        self._empty = asyncio.Event()

    @property
    def due(self) -> int:
        """How many keys are due and wait for a worker."""
        return self._queue.due

    def wake(self, key: K, pause: Pause = NOW) -> None:
        """Reconcile the key after this pause at the latest."""
        self._known.add(key)
        self._empty.clear()
        bucket = self._buckets[pause.is_look]
        if not pause.limited:
            self._queue.add(key, pause.seconds)
        elif not self._queue.is_due_within(key, pause.seconds + bucket.backlog):
            self._queue.add(key, pause.seconds + bucket.reserve())

    async def run(self, *, until_empty: bool = False) -> None:
        """Until cancelled; `until_empty`: or until nothing is left to do for any key."""
        self._slots = asyncio.Semaphore(self._workers)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        passes: set[asyncio.Task[None]] = set()
        start = asyncio.create_task(self._start_passes(passes, failed))
        empty = asyncio.create_task(self._empty.wait() if until_empty else asyncio.Event().wait())
        endings: list[asyncio.Future[Any]] = [empty, start, failed]
        try:
            done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {empty}:
                task.result()  # these end only if the runner itself is wrong
        finally:
            tasks = (empty, start, *passes)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            failed.cancel()

    async def _start_passes(self, passes: set[asyncio.Task[None]], failed: asyncio.Future[None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            passes.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
                failed.set_exception(error)

        while True:
            key = await self._queue.take()
            try:
                await self._slots.acquire()
            except BaseException:
                self._queue.done(key)
                raise
            passes.add(task := asyncio.create_task(self._work(key)))
            task.add_done_callback(ended)

    async def _work(self, key: K) -> None:
        try:
            await self._pass(key)
        finally:
            self._slots.release()
            self._queue.done(key)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Releases the worker slot while the pass waits for a slow peer."""
        self._slots.release()
        try:
            yield
        finally:
            await self._slots.acquire()

    async def _pass(self, key: K) -> None:
        started = self._clock()
        try:
            pause = await self._reconciler.reconcile(key)
        except (Exception, asyncio.CancelledError) as error:  # nothing that one pass raises may stop reconciliation
            if isinstance(error, asyncio.CancelledError):
                if _is_cancelled():
                    raise
                error = RuntimeError("a task that the pass waited for was cancelled")
            self._observe_pass(self._clock() - started, True)
            again = self._queue.failed(key)
            expected = isinstance(error, OarsError | OSError)  # they have a message for people
            text = pairs("pass failed", key=key, error=error, again=f"{again:.1f}s")
            log.log(logging.WARNING if expected else logging.ERROR, text, exc_info=not expected)
            await self._report(key, error)
            return
        self._observe_pass(self._clock() - started, False)
        self._queue.succeeded(key)
        if pause is None:
            self._finish(key)
        else:
            self._queue.add(key, max(pause.seconds, self._poll_delay(key, pause.is_look) if pause.limited else 0.0))

    def _poll_delay(self, key: K, is_look: bool) -> float:
        """Seconds until the key's next poll. A key has one reservation at most: passes that come earlier, because it
        was woken, do not put off everybody's polls."""
        now, poll = self._clock(), (key, is_look)
        if self._next_poll.get(poll, now) <= now:
            self._next_poll[poll] = now + self._buckets[is_look].reserve()
        return self._next_poll[poll] - now

    async def _report(self, key: K, error: Exception) -> None:
        try:
            await self._reconciler.report_failure(key, error)
        except (OarsError, OSError) as problem:  # the next failed pass reports again
            log.warning(pairs("failure not reported", key=key, error=problem))
        except (Exception, asyncio.CancelledError):
            if _is_cancelled():
                raise
            log.exception(pairs("failure not reported", key=key))

    def _finish(self, key: K) -> None:
        if key in self._queue:
            return  # it was woken during the pass
        self._known.discard(key)
        for is_look in self._buckets:
            self._next_poll.pop((key, is_look), None)
        if not self._known:
            self._empty.set()


def _is_cancelled() -> bool:
    """True if somebody cancelled the current task, and not only one that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
