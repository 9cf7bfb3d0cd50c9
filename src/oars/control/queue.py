"""Work queue: a key waits in it once, is worked on by one worker at a time, and backs off after failures.

Tenants take turns, and each has a limited number of keys under work, so that the keys of one cannot keep the others
waiting. It keeps no events: a pass looks at everything anyway.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 60.0
MAX_DOUBLINGS = 30  # a float overflows at a thousand
NOBODY = object()
NEVER = (math.inf, 0)
PER_TENANT = 64  # keys of one tenant under work; most of them wait for an engine's answer, with a connection each


class Queue(Generic[K]):
    """Keys, each with the time at which it is due. `tenant` says whose a key is."""

    def __init__(
        self,
        clock: Callable[[], float],
        longest_backoff: float = LONGEST_BACKOFF,
        tenant: Callable[[K], Hashable] = lambda key: None,
    ) -> None:
        self._clock = clock
        self._longest_backoff = longest_backoff
        self._tenant = tenant
        self._due: dict[K, tuple[float, int]] = {}  # when, and the number of its entry in the heap
        self._heap: list[tuple[float, int, K]] = []  # those that are not due yet
        self._numbers = itertools.count()
        self._waiting: dict[Hashable, deque[K]] = {}  # due keys by tenant; the tenant whose turn it is comes first
        self._again: set[K] = set()  # due keys that somebody works on
        self._working: set[K] = set()
        self._shares: Counter[Hashable] = Counter()  # tenant → how many of its keys somebody works on
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
        return sum(due <= now for due, _ in self._due.values())

    def is_due_within(self, key: K, seconds: float) -> bool:
        return self._due.get(key, NEVER)[0] <= self._clock() + seconds

    def add(self, key: K, after: float = 0.0) -> None:
        """Due after that many seconds, or earlier if it is due earlier already."""
        due = self._clock() + after
        if self._due.get(key, NEVER)[0] <= due:
            return
        self._due[key] = entry = due, next(self._numbers)
        heapq.heappush(self._heap, (*entry, key))
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
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            *entry, key = heapq.heappop(self._heap)
            if self._due.get(key) != tuple(entry):
                continue  # it was moved to an earlier time, or taken
            if key in self._working:
                self._again.add(key)
            else:
                self._waiting.setdefault(self._tenant(key), deque()).append(key)
        tenant = next((each for each in self._waiting if self._shares[each] < PER_TENANT), NOBODY)
        if tenant is NOBODY:
            return None, self._heap[0][0] - now if self._heap else None
        keys = self._waiting.pop(tenant)
        key = keys.popleft()
        if keys:
            self._waiting[tenant] = keys  # behind the others
        del self._due[key]
        self._shares[tenant] += 1
        return key, None

    def done(self, key: K) -> None:
        self._working.discard(key)
        tenant = self._tenant(key)
        self._shares[tenant] -= 1
        if not self._shares[tenant]:
            del self._shares[tenant]
        if key in self._again:
            self._again.discard(key)
            self._waiting.setdefault(tenant, deque()).append(key)
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
