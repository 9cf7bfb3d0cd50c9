"""Watches of one cluster's objects, for a client that reconciles it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oars.kube.informer import Informer, start_all, stop_all, wait_all_synced
from oars.places.kube.why.api_errors import denied_with_rule

SYNC_SECONDS = 30.0


class Watches:
    """Runs informers. `wake` is called when one ends, which only an unexpected error causes."""

    def __init__(self, informers: Sequence[Informer], wake: Callable[[], None]) -> None:
        self._informers = informers
        self._wake = wake
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when every informer has its first list. Raises Denied, with the missing rule, if we may not watch."""
        self._tasks = start_all(self._informers, self._wake)
        try:
            with denied_with_rule():
                await wait_all_synced(self._informers, SYNC_SECONDS)
        except BaseException:
            await self.close()
            raise

    def check(self) -> None:
        """Restart watches that failed. Raises the error that ended them: the cache may be outdated."""
        ended = [(number, task) for number, task in enumerate(self._tasks) if task.done()]
        for number, _ in ended:
            (self._tasks[number],) = start_all((self._informers[number],), self._wake)
        for _, task in ended:
            task.result()

    async def close(self) -> None:
        await stop_all(self._tasks)
