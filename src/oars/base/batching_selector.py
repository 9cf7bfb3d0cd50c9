"""An event loop for those who hear of very much: what happens at about the same time is looked at together.

To be woken costs more than most of what there is to hear. Whoever is told of a few things hears of each at once; if
there is no end of them, each waits for a moment, and the next few with it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

from oars.base.rate import TokenBucket

MOMENT = 0.05  # seconds
PROMPT, SAVED = 20.0, 500.0  # a second, and at once: how often we let ourselves be woken without waiting for more


class BatchingSelector(selectors.DefaultSelector):
    """`asleep` lets time pass."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, asleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__()
        self._prompt = TokenBucket(PROMPT, SAVED, clock)
        self._asleep = asleep

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Zero means that there is work to go on with: that does not wait."""
        if (timeout is None or timeout > 0) and not self._prompt.take():
            moment = MOMENT if timeout is None else min(MOMENT, timeout)
            self._asleep(moment)
            timeout = None if timeout is None else timeout - moment
        return super().select(timeout)


def event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(BatchingSelector())
