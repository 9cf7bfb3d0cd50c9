"""Which names to look at next: the same name waits once, is worked on by one at a time, and backs off after failures.

What caused a look is not kept: whoever works on a name looks at everything anyway.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.2, 60.0


class Queue(Generic[K]):
    """Names with the time at which each is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def ready(self) -> int:
        """How many are due by now: what waits for a worker, not for its time."""
        now = self._clock()
        return sum(due <= now for due in self._due.values())

    def add(self, key: K, after: float = 0.0) -> None:
        """Due after that many seconds, or earlier if it was due earlier anyway."""
        due = self._clock() + after
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        self._changed.set()

    async def take(self) -> K:
        """The next that is due and that nobody works on. Say `done` afterwards."""
        async with self._turn:  # one waits for the next name, the others for their turn: a change wakes one, not all
            while True:
                self._changed.clear()
                key, wait = self._next()
                if key is not None:
                    self._working.add(key)
                    return key
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _next(self) -> tuple[K | None, float | None]:
        """A name, or how long until there may be one."""
        now, busy = self._clock(), []
        found, wait = None, None
        while self._heap:
            due, number, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # it was moved to an earlier time, or taken
            if due > now:
                heapq.heappush(self._heap, (due, number, key))
                wait = due - now
                break
            if key in self._working:
                busy.append((due, number, key))
                continue
            del self._due[key]
            found = key
            break
        for entry in busy:
            heapq.heappush(self._heap, entry)
        return found, wait

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._due:
            self._changed.set()

    def failed(self, key: K) -> float:
        """Again, later each time; returns how much later."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0**count)
        self.add(key, pause)
        return pause

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)
        self._due.pop(key, None)
