"""Client of the fork server: starts members and helpers from a Python that has the engine loaded.

One fork server per set of environment variables that matter at import time; each starts on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oars.base.errors import StartFailed
from oars.base.log import get_logger, pairs
from oars.places.local.process import MEMBER, exit_from_status, identify, send
from oars.places.process.machine import UNKNOWN_EXIT, Exit

FORK_SERVER = Path(__file__).with_name("fork_server.py")
SPAWN_SECONDS = 60.0  # importing an engine on a cold, busy machine takes long
HISTORY = 1000  # children whose exit is remembered
CLOSE_SECONDS = 5.0
LABEL_WIDTH = 256  # room in the fork server's environment for the label of a child

log = get_logger(__name__)


@dataclass(frozen=True)
class Launch:
    """Everything about one process to start."""

    argv: Sequence[str]
    entry: str
    env: Mapping[str, str]
    cwd: str
    log: str
    title: str = "member"
    cgroup: str = ""  # that the process joins; empty: it stays in that of the keeper


class ForkServerClient:
    """One fork server process and the channel to it."""

    def __init__(self, python: str, env: Mapping[str, str], log: Path, on_exit: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._channel.setblocking(False)
        self._on_exit = on_exit
        self._spawned: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._preloaded: set[str] = set()
        self._children: dict[int, asyncio.Future[Exit]] = {}  # exit of each child by pid, pending while it runs
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [python, str(FORK_SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**env, MEMBER: " " * LABEL_WIDTH}, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        theirs.close()
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and (self._reader is None or not self._reader.done())

    def preload(self, modules: Sequence[str]) -> None:
        """Request the import of modules. The fork server handles later spawns after it."""
        new = [module for module in modules if module not in self._preloaded]
        if new:
            self._preloaded.update(new)
            # A few hundred bytes on an empty socket buffer: never blocks.
            self._channel.sendall(json.dumps({"op": "preload", "modules": new}).encode() + b"\n")

    async def spawn(self, launch: Launch, pipe: socket.socket | None = None) -> int:
        """Start the process and return its pid. `pipe` becomes its stdin and stdout."""
        loop = asyncio.get_running_loop()
        self._reader = self._reader or loop.create_task(self._read())
        number, self._next = self._next, self._next + 1
        self._spawned[number] = loop.create_future()
        message = {"op": "spawn", "id": number, "pipe": pipe is not None, **vars(launch)}
        data = json.dumps(message, default=dict).encode() + b"\n"
        try:
            if pipe is not None:
                # The descriptor travels with the first byte; the rest follows as plain data.
                socket.send_fds(self._channel, [data[:1]], [pipe.fileno()])
                data = data[1:]
            await loop.sock_sendall(self._channel, data)
            async with asyncio.timeout(SPAWN_SECONDS):
                return await self._spawned[number]
        except TimeoutError:
            raise StartFailed(f"{launch.title} was not started within {SPAWN_SECONDS:.0f} s.") from None
        except OSError as error:
            raise StartFailed(f"The process that starts members is gone: {error}.") from error
        finally:
            self._spawned.pop(number, None)

    def exit_of(self, pid: int) -> Exit | None:
        """How a child ended; None: the fork server has not reported it yet. UNKNOWN_EXIT if it does not know the child,
        or if it is gone itself."""
        child = self._children.get(pid)
        if child is None:
            return UNKNOWN_EXIT
        return child.result() if child.done() else None

    def _child(self, pid: int) -> asyncio.Future[Exit]:
        """The entry of a pid. A reused pid gets a new entry."""
        if pid not in self._children or self._children[pid].done():
            self._children[pid] = asyncio.get_running_loop().create_future()
        while len(self._children) > HISTORY:
            del self._children[next(iter(self._children))]
        return self._children[pid]

    async def _read(self) -> None:
        """Handle messages until the fork server ends. Then pending spawns fail, and exits of children are unknown."""
        buffer = b""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):
                while data := await loop.sock_recv(self._channel, 65536):
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        self._handle(json.loads(line))
        finally:
            for future in self._spawned.values():
                if not future.done():
                    future.set_exception(StartFailed("The process that starts members died."))
            for child in self._children.values():
                if not child.done():
                    child.set_result(UNKNOWN_EXIT)

    def _handle(self, message: dict[str, Any]) -> None:
        if "exited" in message:
            self._child(message["exited"]).set_result(exit_from_status(message["status"]))
            self._on_exit()
            return
        if "failed" in message:
            for module, error in message["failed"].items():  # a member that needs the module reports the error itself
                log.info(pairs("not preloaded", module=module, error=error))
            return
        future = self._spawned.get(message["spawned"])
        if future is None or future.done():
            identity = identify(message.get("pid", 0))
            if identity is not None:  # the caller has given up, and nothing else would end this process
                send(identity, signal.SIGKILL)
        elif "error" in message:
            future.set_exception(StartFailed(f"Could not fork: {message['error']}."))
        else:
            self._child(message["pid"])
            future.set_result(message["pid"])

    async def close(self, *, kill: bool = False) -> None:
        """Close the channel, so that the fork server ends after its pending requests; with `kill`, end it at once. Its
        children keep running."""
        if kill:
            self._process.kill()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, CLOSE_SECONDS)
            return
        self._process.kill()
        self._process.wait()
