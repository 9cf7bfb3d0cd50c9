"""Connect stdin, stdout and stderr to a command that runs in a member."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, BinaryIO

from oars.base.errors import OarsError

if TYPE_CHECKING:
    from oars.service import ExecSession

CHUNK = 1 << 16


def is_terminal() -> bool:
    """True if stdin and stdout are terminals; then the command gets one, too."""
    return os.isatty(0) and os.isatty(1)


async def connect(session: ExecSession, *, raw: bool) -> int:
    """Transfer data in both directions until the command ends; its exit code."""
    loop = asyncio.get_running_loop()
    async with session:
        with _raw_terminal(session, loop) if raw else nullcontext():
            # A thread, since not every input can be awaited; a daemon, since the command may end while it blocks.
            threading.Thread(target=_send_stdin, args=(session, loop), daemon=True).start()
            output = _copy(session.stdout, sys.stdout.buffer), _copy(session.stderr, sys.stderr.buffer)
            await asyncio.gather(*output)
            return await session.wait()


async def _copy(source: asyncio.StreamReader, target: BinaryIO) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        target.flush()


def _send_stdin(session: ExecSession, loop: asyncio.AbstractEventLoop) -> None:
    with suppress(OSError, RuntimeError, OarsError):  # the command or the event loop has ended
        while data := os.read(0, CHUNK):
            asyncio.run_coroutine_threadsafe(session.write(data), loop).result()
        asyncio.run_coroutine_threadsafe(session.close_stdin(), loop).result()


@contextmanager
def _raw_terminal(session: ExecSession, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Pass every key to the command, including Ctrl-C, and keep its terminal as large as this one."""
    tasks: set[asyncio.Task[None]] = set()

    async def resize() -> None:
        with suppress(ConnectionError):  # the command has ended
            await session.resize(*os.get_terminal_size(0))

    def send_size() -> None:
        task = loop.create_task(resize())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    before = termios.tcgetattr(0)
    loop.add_signal_handler(signal.SIGWINCH, send_size)
    try:
        tty.setraw(0)
        send_size()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        termios.tcsetattr(0, termios.TCSADRAIN, before)
