"""Client of the fork server: starts members and helpers from a Python that has the engine loaded.

One fork server per set of environment variables that matter at import time; each starts on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oars.base.errors import StartFailed
from oars.base.log import get_logger, pairs
from oars.places.local.process import describe_exit, identify, send

FORK_SERVER = Path(__file__).with_name("fork_server.py")
SPAWN_SECONDS = 60.0  # importing an engine on a cold, busy machine takes long
HISTORY = 1000  # children whose end is remembered
EXIT_SECONDS = 20.0  # it tells at once, unless it does not get the processor; for a dead one nobody waits
CLOSE_SECONDS = 5.0

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


class ForkServerClient:
    """One fork server and what it says."""

    def __init__(self, python: str, env: Mapping[str, str], log: Path, on_exit: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        self._channel = ours
        self._channel.setblocking(False)
        self._on_exit = on_exit
        self._spawned: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._preloaded: set[str] = set()
        self._children: dict[int, asyncio.Future[str]] = {}  # how each ends, or ended
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [python, str(FORK_SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=dict(env), pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        theirs.close()
        self._reader: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and (self._reader is None or not self._reader.done())

    def preload(self, modules: Sequence[str]) -> None:
        """Ask for modules to be imported; spawns queue up behind it."""
        new = [module for module in modules if module not in self._preloaded]
        if new:
            self._preloaded.update(new)
            # A few hundred bytes on an empty socket buffer: never blocks.
            self._channel.sendall(_line({"op": "preload", "modules": new}))

    async def spawn(self, launch: Launch, pipe: socket.socket | None = None) -> int:
        """Start it; the pid, once it exists."""
        loop = asyncio.get_running_loop()
        self._reader = self._reader or loop.create_task(self._read())
        number, self._next = self._next, self._next + 1
        self._spawned[number] = loop.create_future()
        message = {
            "op": "spawn", "id": number, "argv": list(launch.argv), "entry": launch.entry, "env": dict(launch.env),
            "cwd": launch.cwd, "log": launch.log, "title": launch.title, "pipe": pipe is not None,
        }  # fmt: skip
        await self._send(_line(message), pipe)
        try:
            async with asyncio.timeout(SPAWN_SECONDS):
                return await self._spawned[number]
        except TimeoutError:
            raise StartFailed(f"{launch.title} was not started within {SPAWN_SECONDS:.0f} s.") from None
        finally:
            self._spawned.pop(number, None)

    async def exit_reason(self, pid: int) -> str | None:
        """How an exited child ended. Its parent, the fork server, learns it a moment after we do. Empty: unknown, as
        the fork server is gone too."""
        if pid not in self._children:
            return None
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                return await asyncio.shield(self._children[pid])
        except TimeoutError:
            return None

    def _child(self, pid: int) -> asyncio.Future[str]:
        """A pid that is used again gets a new entry."""
        if pid not in self._children or self._children[pid].done():
            self._children[pid] = asyncio.get_running_loop().create_future()
        while len(self._children) > HISTORY:
            del self._children[next(iter(self._children))]
        return self._children[pid]

    async def _send(self, data: bytes, pipe: socket.socket | None) -> None:
        try:
            if pipe is not None:
                # The descriptor travels with the first byte; the rest follows as plain data.
                socket.send_fds(self._channel, [data[:1]], [pipe.fileno()])
                data = data[1:]
            await asyncio.get_running_loop().sock_sendall(self._channel, data)
        except OSError as error:
            raise StartFailed(f"The process that starts members is gone: {error}.") from error

    async def _read(self) -> None:
        try:
            await self._hear_all()
        finally:
            self._hear_no_more()

    async def _hear_all(self) -> None:
        """Until the fork server ends."""
        buffer = b""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._channel, 65536)
            except OSError:
                data = b""
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear_no_more(self) -> None:
        """Whoever waits for word of the fork server waits in vain."""
        for future in self._spawned.values():
            if not future.done():
                future.set_exception(StartFailed("The process that starts members died.", "", ()))
        for child in self._children.values():
            if not child.done():
                child.set_result("")

    def _hear(self, message: dict[str, Any]) -> None:
        if "exited" in message:
            self._child(message["exited"]).set_result(describe_exit(message["status"]))
            self._on_exit()
        elif "spawned" in message:
            self._hear_spawned(message)
        else:
            for module, error in message["failed"].items():  # a member that needs it says so itself
                log.info(pairs("not preloaded", module=module, error=error))

    def _hear_spawned(self, message: dict[str, Any]) -> None:
        future = self._spawned.get(message["spawned"])
        if future is None or future.done():
            identity = identify(message.get("pid", 0))
            if identity is not None:  # whoever asked has given up meanwhile, and nobody else will ever end it
                send(identity, signal.SIGKILL)
        elif "error" in message:
            future.set_exception(StartFailed(f"Could not fork: {message['error']}."))
        else:
            self._child(message["pid"])
            future.set_result(message["pid"])

    async def close(self, *, kill: bool = False) -> None:
        """The fork server ends at end of file, when it has done what it was told; killed, it ends at once. Its children
        stay."""
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


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def base_environment(environ: Mapping[str, str], python: str, drop: Sequence[str] = ()) -> dict[str, str]:
    """What members inherit from whoever started the cluster: everything but what belongs to another cluster, and with
    the engine's own programs first on the PATH."""
    unwanted = {*drop, "PYTHONHOME", "__PYVENV_LAUNCHER__"}
    env = {k: v for k, v in environ.items() if k not in unwanted and not k.startswith("OARS_")}
    env["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", os.defpath)])
    env["PYTHONUNBUFFERED"] = "1"
    return env
