"""Work queue: a key waits in it once, is worked on by one worker at a time, and backs off after failures.

It keeps no events: a pass looks at everything anyway.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 60.0
MAX_DOUBLINGS = 30  # a float overflows at a thousand


class Queue(Generic[K]):
    """Keys, each with the time at which it is due."""

    def __init__(self, clock: Callable[[], float], longest_backoff: float = LONGEST_BACKOFF) -> None:
        self._clock = clock
        self._longest_backoff = longest_backoff
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    @property
    def due(self) -> int:
        """How many keys are due and wait for a worker."""
        now = self._clock()
        return sum(due <= now for due in self._due.values())

    def is_due_within(self, key: K, seconds: float) -> bool:
        return self._due.get(key, math.inf) <= self._clock() + seconds

    def add(self, key: K, after: float = 0.0) -> None:
        """Due after that many seconds, or earlier if it is due earlier already."""
        due = self._clock() + after
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        self._changed.set()

    async def take(self) -> K:
        """The next key that is due and that nobody works on. Call `done` afterwards."""
        async with self._turn:  # one worker waits for the next key, the others for their turn: a change wakes only one
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
        """A key, or how long until there may be one."""
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
        """Add the key again, later after each failure; returns how much later."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(self._longest_backoff, FIRST_BACKOFF * 2.0 ** min(count, MAX_DOUBLINGS))
        self.add(key, pause)
        return pause

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)
