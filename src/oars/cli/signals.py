"""Run async work to its end; signals cancel it, so that it cleans up after itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oars.base.errors import Interrupted

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 3  # signals, until we go at once; the keeper then ends what we leave


def unmoved(count: int) -> None:
    """What a command does at a signal besides being cancelled: nothing."""


def run(
    work: Coroutine[Any, Any, T],
    told: Callable[[int], None] = unmoved,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """The result. The first Ctrl-C (or SIGTERM, or the terminal's end) cancels; `told` hears how many there were."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_guarded(work, told))


async def _guarded(work: Coroutine[Any, Any, T], told: Callable[[int], None]) -> T:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def on(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > PATIENCE:
            os._exit(128 + number)
        if len(received) == 1:
            task.cancel()
        told(len(received))

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and shells' background jobs
            loop.add_signal_handler(number, on, number)
    try:
        result = await task
    except asyncio.CancelledError:
        if not received:
            raise
    if received:
        raise _interrupted(received[0])
    return result


def _interrupted(number: signal.Signals) -> Interrupted:
    error = Interrupted("Interrupted." if number is signal.SIGINT else f"Ended by {number.name}.")
    error.exit_code = 128 + number
    return error
