"""A local port that leads to a port of a pod, whichever pod that is at the moment."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.channels import Failed, StreamClosed
from oars.kube.client import Client
from oars.kube.ports import PortClosed, PortWriter, open_port

PATIENCE = 20.0  # how long a new connection waits for a pod or an API server that is away
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
_QUIET = 1.0  # after our side has ended; kubectl's forwards wait as long
_PART = 1 << 16
_REPLAY = 1 << 18
_REFUSAL = 0.1  # by then a pod's kernel has said that nobody listens

Where = tuple[str, str, int]
Choose = Callable[[], Awaitable[Where]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_log = get_logger(__name__)


@dataclass
class _Link:
    """What has passed between one local connection and its pod."""

    # What was sent so far: if it turns out that nobody listened, it is sent again to the next pod.
    sent: bytearray = field(default_factory=bytearray)
    repeatable: bool = True
    received: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # somebody answered, or no refusal came in time
    delivering: bool = False  # the local side has not taken yet what came

    def note(self, data: bytes) -> None:
        if self.repeatable and not self.received and len(self.sent) + len(data) <= _REPLAY:
            self.sent += data
        else:
            self.repeatable = False
            self.sent.clear()


class Forwarder:
    """`choose` says where a new connection shall go (namespace, pod, port); it is asked again after each failure."""

    def __init__(self, client: Client, choose: Choose, local_port: int = 0, host: str = "127.0.0.1") -> None:
        self._client = client
        self._choose = choose
        self._local_port = local_port
        self._host = host
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._proven: Where | None = None  # where somebody answered last

    async def start(self) -> int:
        """Listen; returns the local port."""
        self._server = await asyncio.start_server(self._accept, self._host, self._local_port)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve((reader, writer))
        except (OarsError, *Failed) as error:
            _log.info(pairs("forward broke", error=str(error).split("\n")[0]))
            _reset(writer)
        except asyncio.CancelledError:
            _reset(writer)  # asyncio would log a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, local: Streams) -> None:
        link = _Link()
        deadline = time.monotonic() + PATIENCE
        while True:
            where, (reader, writer) = await self._open(deadline)
            if where == self._proven:
                link.heard.set()
            try:
                await _join(local, (reader, writer), link)
                return
            except PortClosed:
                self._proven = None
                link.heard.clear()
                if link.received or not link.repeatable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LONGEST_WAIT / 4)
            finally:
                self._proven = where if link.received else self._proven
                writer.abort()
                await writer.wait_closed()

    async def _open(self, deadline: float) -> tuple[Where, tuple[asyncio.StreamReader, PortWriter]]:
        wait = FIRST_WAIT
        while True:
            try:
                async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
                    where = await self._choose()
                    return where, await open_port(self._client, *where)
            except (OarsError, TimeoutError, *Failed):
                if time.monotonic() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)


async def _join(local: Streams, port: tuple[asyncio.StreamReader, PortWriter], link: _Link) -> None:
    """Carry bytes both ways until it is over. Raises if either side broke, or if we cannot know that all has come."""
    up = asyncio.create_task(_carry_up(local[0], port[1], link))
    down = asyncio.create_task(_carry_down(port[0], local[1], link))
    try:
        await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            up.result()
            await _quiet(down, link)
        complete = down.done()
        if complete:
            down.result()
        port[1].close()
        await port[1].wait_closed()
        if not complete:
            raise ConnectionResetError("the local side ended before the pod did")
        local[1].close()
        with suppress(*Failed):
            await local[1].wait_closed()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait([up, down])


async def _carry_up(source: asyncio.StreamReader, target: PortWriter, link: _Link) -> None:
    try:
        await _listened(link)
        target.write(bytes(link.sent))
        while data := await source.read(_PART):
            link.note(data)
            target.write(data)
            await target.drain()
        await target.flush()
    except StreamClosed:
        pass  # the pod's side is over: what it still sent is to be delivered, and the way down knows how it ended


async def _listened(link: _Link) -> None:
    """Send nothing before a refusal would have come: a server that refuses with bytes unread resets the connection, and
    its reason is lost on the way. Only a pod that has not answered yet costs this time."""
    with suppress(TimeoutError):
        await asyncio.wait_for(link.heard.wait(), _REFUSAL)
    link.heard.set()


async def _carry_down(source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link) -> None:
    while data := await source.read(_PART):
        link.received += len(data)
        link.heard.set()
        link.delivering = True
        target.write(data)
        await target.drain()
        link.delivering = False


async def _quiet(down: asyncio.Task[None], link: _Link) -> None:
    """Our side has ended, and the pod cannot be told: wait for what may still come, until nothing comes."""
    before = -1
    while not down.done() and (link.delivering or link.received != before):
        before = link.received
        await asyncio.wait([down], timeout=_QUIET)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that its user sees a failure, never what looks like the end of the data."""
    with suppress(OSError):
        handle = writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
