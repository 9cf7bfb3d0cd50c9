"""The runner: reconciles keys wherever the loop runs: one key in the keeper and in a client, many in the operator.

Sources (watches, sockets, timers) call `wake`. The runner reconciles one key at a time, paces polling, backs off after
failures and has every failure reported. No exception of a pass ends reconciliation, of this key or of any other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.rate import TokenBucket
from oars.control.queue import LONGEST_BACKOFF, Queue
from oars.model import Pause

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

POLLS_PER_SECOND, POLL_BURST = 20.0, 40.0  # over all keys: changes are announced anyway
NOW = Pause(0.0)

log = get_logger(__name__)


class Reconciler(Protocol[K_contra]):
    async def reconcile(self, key: K_contra) -> Pause | None:
        """One pass. Returns when the next is due at the latest; None: nothing is left to do for this key."""

    async def report_failure(self, key: K_contra, error: Exception) -> None:
        """Show in the key's status that its pass failed."""


class Runner(Generic[K]):
    """Drives a Reconciler. `observe_pass` gets the duration of each pass and whether it failed."""

    def __init__(
        self,
        reconciler: Reconciler[K],
        *,
        workers: int = 1,
        longest_backoff: float = LONGEST_BACKOFF,
        clock: Callable[[], float] = time.monotonic,
        observe_pass: Callable[[float, bool], None] = lambda seconds, failed: None,
    ) -> None:
        self._reconciler = reconciler
        self._workers = workers
        self._clock = clock
        self._observe_pass = observe_pass
        self._polls = TokenBucket(POLLS_PER_SECOND, POLL_BURST, clock)
        self._queue: Queue[K] = Queue(clock, longest_backoff)
        self._known: set[K] = set()
        self._next_poll: dict[K, float] = {}
        self._empty = asyncio.Event()

    @property
    def due(self) -> int:
        """How many keys are due and wait for a worker."""
        return self._queue.due

    def wake(self, key: K, pause: Pause = NOW) -> None:
        """Reconcile the key after this pause at the latest."""
        self._known.add(key)
        self._empty.clear()
        if not pause.limited:
            self._queue.add(key, pause.seconds)
        elif not self._queue.is_due_within(key, pause.seconds + self._polls.backlog):
            self._queue.add(key, pause.seconds + self._polls.reserve())

    async def run(self, *, until_empty: bool = False) -> None:
        """Until cancelled; `until_empty`: or until nothing is left to do for any key."""
        tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        empty = asyncio.create_task(self._empty.wait() if until_empty else asyncio.Event().wait())
        try:
            done, _ = await asyncio.wait([empty, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {empty}:
                task.result()  # a worker ends only if the runner itself is wrong
        finally:
            for task in (empty, *tasks):
                task.cancel()
            await asyncio.gather(empty, *tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._pass(key)
            finally:
                self._queue.done(key)

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
            self._queue.add(key, max(pause.seconds, self._poll_delay(key) if pause.limited else 0.0))

    def _poll_delay(self, key: K) -> float:
        """Seconds until the key's next poll. A key has one reservation at most: passes that come earlier, because it
        was woken, do not put off everybody's polls."""
        now = self._clock()
        if self._next_poll.get(key, now) <= now:
            self._next_poll[key] = now + self._polls.reserve()
        return self._next_poll[key] - now

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
        self._next_poll.pop(key, None)
        if not self._known:
            self._empty.set()


def _is_cancelled() -> bool:
    """True if somebody cancelled the current task, and not only one that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
