"""Run a coroutine; signals cancel it, so that it can clean up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oars.base.errors import Interrupted

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_SIGNALS = 3  # the next one ends this process without clean-up


def ignore(count: int) -> None:
    """Do nothing at a signal except being cancelled."""


def run(
    work: Coroutine[Any, Any, T],
    on_signal: Callable[[int], None] = ignore,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """The result of the coroutine. The first SIGINT, SIGTERM or SIGHUP cancels it; `on_signal` gets their number."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_cancel_on_signal(work, on_signal))


async def _cancel_on_signal(work: Coroutine[Any, Any, T], on_signal: Callable[[int], None]) -> T:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > MAX_SIGNALS:
            os._exit(128 + number)
        if len(received) == 1:
            task.cancel()
        on_signal(len(received))

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup and shells' background jobs
            loop.add_signal_handler(number, handle, number)
    try:
        result = await task
    except asyncio.CancelledError:
        if not received:
            raise
    if received:
        number = received[0]
        error = Interrupted("Interrupted." if number is signal.SIGINT else f"Ended by {number.name}.")
        error.exit_code = 128 + number
        raise error
    return result
