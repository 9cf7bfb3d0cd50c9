"""Channels of a Kubernetes WebSocket: the first byte of each message is the number of its channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from oars.kube.transport import NETWORK_ERRORS, WebSocket

MESSAGE_SIZE = 1 << 16  # maximum payload of a sent message
BUFFER_SIZE = 1 << 18  # maximum number of unsent or unread bytes before backpressure


class StreamClosed(ConnectionResetError):
    """The channel is closed for writing."""


class _FlowControl(asyncio.ReadTransport):
    """Tells an asyncio.StreamReader's feeder when the reader's buffer is full."""

    def __init__(self) -> None:
        super().__init__()
        self.has_room = asyncio.Event()
        self.has_room.set()

    def pause_reading(self) -> None:
        self.has_room.clear()

    def resume_reading(self) -> None:
        self.has_room.set()


class ChannelReader:
    """Makes the messages of a channel available as an asyncio.StreamReader."""

    def __init__(self) -> None:
        self.stream = asyncio.StreamReader(limit=BUFFER_SIZE)
        self._flow = _FlowControl()
        self.stream.set_transport(self._flow)
        self._ended = False

    async def feed(self, data: bytes) -> None:
        """Add received bytes, and wait while the buffer is full. Bytes after `end` are discarded."""
        if not data or self._ended:
            return
        self.stream.feed_data(data)
        await self._flow.has_room.wait()

    def end(self, error: Exception | None = None) -> None:
        """End the stream: with EOF, or with an error."""
        self._ended = True
        if error is not None:
            self.stream.set_exception(error)
        elif self.stream.exception() is None:
            self.stream.feed_eof()
        self._flow.has_room.set()


class ChannelWriter:
    """Sends bytes on a channel. Has the interface of an asyncio.StreamWriter."""

    def __init__(self, socket: WebSocket, channel: int) -> None:
        self._socket = socket
        self._prefix = bytes([channel])
        self._buffer = bytearray()
        self._closing = False
        self._error: BaseException | None = None
        self._has_work, self._has_room, self._is_empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._update_events()
        self._task = asyncio.create_task(self._send())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Buffer bytes to send. Call `drain` afterwards, or the buffer grows without limit."""
        if self._closing:
            raise StreamClosed("the stream is closed")
        self._raise_error()
        self._buffer += data
        self._update_events()

    async def drain(self) -> None:
        """Wait until the buffer has room."""
        await self._has_room.wait()
        self._raise_error()

    async def flush(self) -> None:
        """Wait until the buffer is empty."""
        await self._is_empty.wait()
        self._raise_error()

    def close(self) -> None:
        """Send the buffered bytes, then stop."""
        self._closing = True
        self._update_events()

    def abort(self, error: BaseException) -> None:
        """Discard the buffered bytes. Pending and later calls raise StreamClosed from `error`."""
        self._error = self._error or error
        self._update_events()

    def is_closing(self) -> bool:
        """True after `close` or an error."""
        return self._closing or self._error is not None

    async def wait_closed(self) -> None:
        """Wait until all bytes are sent or discarded."""
        await asyncio.wait([self._task])

    def _raise_error(self) -> None:
        if self._error is not None:
            raise StreamClosed(str(self._error) or "the connection is lost") from self._error

    def _update_events(self) -> None:
        size = len(self._buffer)
        states = (
            (self._has_work, size > 0 or self._closing),
            (self._has_room, size <= BUFFER_SIZE),
            (self._is_empty, size == 0),
        )
        for event, state in states:
            event.set() if state or self._error is not None else event.clear()

    async def _send(self) -> None:
        try:
            while self._error is None:
                await self._has_work.wait()
                if not self._buffer and self._closing:
                    return
                if self._buffer and self._error is None:
                    part = bytes(self._buffer[:MESSAGE_SIZE])
                    await self._socket.send_bytes(self._prefix + part)
                    del self._buffer[: len(part)]  # only now, so that `flush` waits for the send
                    self._update_events()
        except NETWORK_ERRORS as error:
            self.abort(error)


async def receive_messages(socket: WebSocket, handle: Callable[[int, bytes], Awaitable[None]]) -> bool:
    """Call `handle(channel, data)` for each message; return True if the peer closed the WebSocket normally.

    A broken connection has no close message, so truncated data is never mistaken for complete data."""
    while True:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            if message.data:
                await handle(message.data[0], message.data[1:])
        elif message.type is aiohttp.WSMsgType.CLOSE:
            return bool(message.data in (aiohttp.WSCloseCode.OK, None, 0, 1005))
        elif message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.ERROR):
            return False
