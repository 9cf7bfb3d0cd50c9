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
from contextlib import contextmanager, suppress
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
        with _raw(raw), _sizes(session, raw, loop):
            _StdinReader(session, loop).start()
            output = _copy(session.stdout, sys.stdout.buffer), _copy(session.stderr, sys.stderr.buffer)
            await asyncio.gather(*output)
            return await session.wait()


async def _copy(source: asyncio.StreamReader, target: BinaryIO) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        target.flush()


class _StdinReader(threading.Thread):
    """Sends stdin to the command. A thread, since not every kind of input can be awaited; a daemon, since the command
    may end while it blocks."""

    def __init__(self, session: ExecSession, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._loop = loop

    def run(self) -> None:
        with suppress(OSError, RuntimeError, OarsError):  # the command or the event loop has ended
            while data := os.read(0, CHUNK):
                asyncio.run_coroutine_threadsafe(self._session.write(data), self._loop).result()
            asyncio.run_coroutine_threadsafe(self._session.close_stdin(), self._loop).result()


@contextmanager
def _raw(wanted: bool) -> Iterator[None]:
    """Pass every key to the command, including Ctrl-C."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _sizes(session: ExecSession, wanted: bool, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep the size of the command's terminal equal to that of this one."""
    tasks: set[asyncio.Task[None]] = set()

    def send_size() -> None:
        columns, lines = os.get_terminal_size(0)
        task = loop.create_task(_resize(session, columns, lines))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if not wanted:
        yield
        return
    loop.add_signal_handler(signal.SIGWINCH, send_size)
    try:
        send_size()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _resize(session: ExecSession, columns: int, lines: int) -> None:
    with suppress(ConnectionError):  # the command has ended
        await session.resize(columns, lines)
