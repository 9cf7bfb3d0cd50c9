"""Our terminal (or pipes) at one end, a command in a pod at the other."""

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
    from oars.kube.streams import ExecSession

PART = 1 << 16


def is_terminal() -> bool:
    """A command gets a terminal if we have one at both ends."""
    return os.isatty(0) and os.isatty(1)


async def connect(session: ExecSession, *, raw: bool) -> int:
    """Pass on what comes from either side until the command ends; its exit code."""
    loop = asyncio.get_running_loop()
    async with session:
        with _raw(raw), _sizes(session, raw, loop):
            _Typist(session, loop).start()
            output = _pour(session.stdout, sys.stdout.buffer), _pour(session.stderr, sys.stderr.buffer)
            await asyncio.gather(*output)
            return await session.wait()


async def _pour(source: asyncio.StreamReader, target: BinaryIO) -> None:
    while data := await source.read(PART):
        target.write(data)
        target.flush()


class _Typist(threading.Thread):
    """Passes on our input. A thread, since not every kind of input can be awaited, and one that nobody waits for: the
    command may end while it still waits for a key."""

    def __init__(self, session: ExecSession, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._loop = loop

    def run(self) -> None:
        with suppress(OSError, RuntimeError, OarsError):  # the command, or we, have ended
            while data := os.read(0, PART):
                asyncio.run_coroutine_threadsafe(self._session.write(data), self._loop).result()
            asyncio.run_coroutine_threadsafe(self._session.close_stdin(), self._loop).result()


@contextmanager
def _raw(wanted: bool) -> Iterator[None]:
    """Every key is the command's, Ctrl-C as well."""
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
    """The command's terminal is as large as ours, also when that changes."""
    tasks: set[asyncio.Task[None]] = set()

    def tell() -> None:
        columns, lines = os.get_terminal_size(0)
        task = loop.create_task(_quietly(session, columns, lines))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if not wanted:
        yield
        return
    loop.add_signal_handler(signal.SIGWINCH, tell)
    try:
        tell()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _quietly(session: ExecSession, columns: int, lines: int) -> None:
    with suppress(ConnectionError):  # the command has just ended
        await session.resize(columns, lines)
