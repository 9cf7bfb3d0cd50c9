"""Several byte streams over one WebSocket, as Kubernetes has it: the first byte of a message is its channel."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp

from oars.kube.transport import WebSocket

CHUNK = 1 << 16  # the most that is sent in one message
BUFFER = 1 << 18  # what may wait to be sent, or to be read, before the other side is held up

Failed = (aiohttp.ClientError, OSError, ssl.SSLError)
Take = Callable[[int, bytes], Awaitable[None]]


class StreamClosed(ConnectionResetError):
    """Nothing more can be sent."""


class Flow(asyncio.ReadTransport):
    """Lets an asyncio.StreamReader hold up whoever feeds it while it holds enough."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    def pause_reading(self) -> None:
        self.open.clear()

    def resume_reading(self) -> None:
        self.open.set()


class Source:
    """Bytes that came in on a channel."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=BUFFER)
        self._flow = Flow()
        self.reader.set_transport(self._flow)
        self._ended = False

    async def feed(self, data: bytes) -> None:
        """Pass on bytes; waits while nobody takes them. After the end they are dropped: a busy peer does not hear at
        once that we have let go."""
        if not data or self._ended:
            return
        self.reader.feed_data(data)
        await self._flow.open.wait()

    def end(self, error: Exception | None = None) -> None:
        """No more bytes: in good order, or because of an error."""
        self._ended = True
        if error is not None:
            self.reader.set_exception(error)
        elif self.reader.exception() is None:
            self.reader.feed_eof()
        self._flow.open.set()


class Sink:
    """Sends bytes on one channel in the order they were written. Used like an asyncio.StreamWriter."""

    def __init__(self, socket: WebSocket, channel: int) -> None:
        self._socket = socket
        self._prefix = bytes([channel])
        self._waiting = bytearray()
        self._ending = False
        self._error: BaseException | None = None
        self._work, self._room, self._empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._update()
        self._task = asyncio.create_task(self._send())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes to send; `drain` after it, or they pile up."""
        if self._ending:
            raise StreamClosed("the stream is closed")
        self._check()
        self._waiting += data
        self._update()

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._room.wait()
        self._check()

    async def flush(self) -> None:
        """Wait until all is on its way."""
        await self._empty.wait()
        self._check()

    def close(self) -> None:
        """Send what is left, then nothing more."""
        self._ending = True
        self._update()

    def abort(self, error: BaseException) -> None:
        """Send nothing more; whoever waits gets the error."""
        self._error = self._error or error
        self._update()

    def is_closing(self) -> bool:
        """Whether no more can be written."""
        return self._ending or self._error is not None

    async def wait_closed(self) -> None:
        """Wait until all was sent, or could not be."""
        await asyncio.wait([self._task])

    def _check(self) -> None:
        if self._error is not None:
            raise StreamClosed(str(self._error) or "the connection is lost") from self._error

    def _update(self) -> None:
        waiting, done = len(self._waiting), self._error is not None
        states = (self._work, waiting or self._ending), (self._room, waiting <= BUFFER), (self._empty, not waiting)
        for event, state in states:
            event.set() if state or done else event.clear()

    async def _send(self) -> None:
        try:
            while self._error is None:
                await self._work.wait()
                if not self._waiting and self._ending:
                    return
                if self._waiting and self._error is None:
                    part = bytes(self._waiting[:CHUNK])
                    await self._socket.send_bytes(self._prefix + part)
                    del self._waiting[: len(part)]  # only now: `flush` means that it was handed over
                    self._update()
        except Failed as error:
            self.abort(error)


async def pump(socket: WebSocket, take: Take) -> bool:
    """Hand each message to `take` until the end; True when the other side ended in good order.

    A connection that just breaks has no closing message, so what was cut off is never taken for the whole."""
    while True:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            if message.data:
                await take(message.data[0], message.data[1:])
        elif message.type is aiohttp.WSMsgType.CLOSE:
            return bool(message.data in (aiohttp.WSCloseCode.OK, None, 0, 1005))
        elif message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.ERROR):
            return False
