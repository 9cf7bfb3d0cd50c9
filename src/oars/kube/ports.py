"""A port of a pod as a pair of streams, over WebSocket.

The protocol has no word for "I have nothing more to send, but go on": a connection ends both ways at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from oars.kube.channels import Failed, Sink, Source, pump
from oars.kube.client import Client
from oars.kube.kinds import POD
from oars.kube.transport import WebSocket

_DATA, _ERROR = 0, 1
_GREETING = 2  # each channel begins with the port's number, in two bytes
_PROTOCOL = "v4.channel.k8s.io"
_CLOSE_SECONDS = 5.0


class PortClosed(ConnectionRefusedError):
    """Nobody in the pod listens there: not a byte was delivered."""


class PortWriter:
    """The writing half, used like an asyncio.StreamWriter. Closing it closes the connection."""

    def __init__(self, sink: Sink, finish: Callable[[], None], ended: asyncio.Task[None]) -> None:
        self._sink = sink
        self._finish = finish
        self._ended = ended
        self._closing: asyncio.Task[None] | None = None
        self.write = sink.write
        self.drain = sink.drain
        self.flush = sink.flush

    def can_write_eof(self) -> bool:
        """The protocol cannot say it."""
        return False

    def is_closing(self) -> bool:
        """Whether no more can be written."""
        return self._sink.is_closing()

    def close(self) -> None:
        """Send what is left, then close the connection."""
        self._sink.close()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_after_the_rest())

    def abort(self) -> None:
        """Close the connection at once."""
        self._sink.abort(ConnectionAbortedError("closed"))
        self._finish()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.wait([self._ended, *([self._closing] if self._closing else [])])

    async def _close_after_the_rest(self) -> None:
        await self._sink.wait_closed()
        self._finish()


class _Port:
    """One connection to a port."""

    def __init__(self, socket: WebSocket, where: str) -> None:
        self._socket = socket
        self._where = where
        self.source = Source()
        self.sink = Sink(socket, _DATA)
        self.greeted = asyncio.Event()
        self._skip = {_DATA: _GREETING, _ERROR: _GREETING}
        self._message = bytearray()
        self._closed = asyncio.Event()
        self._ours = False
        self.task = asyncio.create_task(self._run(), name=f"port {where}")

    def finish(self) -> None:
        """We want no more of it."""
        self._ours = True
        self._closed.set()
        self.source.end()  # lets go of a message that waits to be read

    async def _run(self) -> None:
        receiving = asyncio.create_task(self._receive())
        closed = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait([receiving, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            with suppress(TimeoutError, *Failed):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._socket.close()
            receiving.cancel()
            await asyncio.wait([receiving])
            self.greeted.set()

    async def _receive(self) -> None:
        orderly = False
        with suppress(*Failed):
            orderly = await pump(self._socket, self._take)
        error = self._error(orderly)
        self.sink.abort(error or ConnectionResetError(f"{self._where} closed the connection"))
        self.source.end(error)

    def _error(self, orderly: bool) -> OSError | None:
        if self._message:
            text = self._message.decode(errors="replace").strip()
            refused = "refused" in text and "connect" in text
            return (PortClosed if refused else ConnectionResetError)(f"{self._where}: {text}")
        if orderly or self._ours:
            return None
        return ConnectionResetError(f"the connection to {self._where} broke")

    async def _take(self, channel: int, data: bytes) -> None:
        skip = min(self._skip.get(channel, 0), len(data))
        if skip:
            self._skip[channel] -= skip
            self.greeted.set()
        if channel == _DATA:
            await self.source.feed(data[skip:])
        elif channel == _ERROR:
            self._message += data[skip:]


async def open_port(client: Client, namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, PortWriter]:
    """Connect to a port of a pod. Whether somebody listens there shows on the first read (PortClosed if not)."""
    socket = await client.websocket(POD.path(namespace, pod, "portforward"), {"ports": str(port)}, (_PROTOCOL,))
    made = _Port(socket, f"port {port} of pod {pod}")
    await made.greeted.wait()
    return made.source.reader, PortWriter(made.sink, made.finish, made.task)
