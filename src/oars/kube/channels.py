"""Channels of a Kubernetes WebSocket: the first byte of each message is the number of its channel."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress

import aiohttp

from oars.kube.transport import NETWORK_ERRORS, WebSocket

MESSAGE_SIZE = 1 << 16  # maximum payload of a sent message
BUFFER_SIZE = 1 << 18  # maximum number of unread bytes before backpressure
_CLOSE_TIMEOUT = 5.0


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


class ChannelSocket(ABC):
    """Receives the messages of a WebSocket in a task, until either side closes it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._is_ended = False
        self._task = asyncio.create_task(self._receive())

    @abstractmethod
    async def _handle(self, channel: int, data: bytes) -> None:
        """Handle a message. Messages are received one by one, so waiting here stops the sender."""

    @abstractmethod
    def _end(self, is_complete: bool) -> None:
        """End the readers. If not `is_complete`, the connection broke and data may be missing."""

    async def _send(self, channel: int, data: bytes) -> None:
        """Send bytes on a channel, and wait while the connection accepts no more. Raises StreamClosed."""
        if self._is_ended:
            raise StreamClosed("the connection is closed")
        try:
            for start in range(0, len(data), MESSAGE_SIZE):
                await self._socket.send_bytes(bytes([channel]) + data[start : start + MESSAGE_SIZE])
        except NETWORK_ERRORS as error:
            raise StreamClosed(str(error) or "the connection is lost") from error

    async def close(self) -> None:
        """Close the connection after the bytes that were sent, and wait until it is closed."""
        self._end_once(is_complete=True)  # releases a message that waits for room in a reader
        await self._close_socket()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _receive(self) -> None:
        is_complete = False
        with suppress(*NETWORK_ERRORS):
            is_complete = await self._receive_messages()
        self._end_once(is_complete)
        await self._close_socket()  # also releases a `_send` that waits

    async def _receive_messages(self) -> bool:
        """Handle all messages; return True if the peer closed the WebSocket normally.

        A broken connection has no close message, so truncated data is never mistaken for complete data."""
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                if message.data:
                    await self._handle(message.data[0], message.data[1:])
            elif message.type is aiohttp.WSMsgType.CLOSE:
                return bool(message.data in (aiohttp.WSCloseCode.OK, None, 0, 1005))
            elif message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.ERROR):
                return False

    def _end_once(self, is_complete: bool) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._end(is_complete)

    async def _close_socket(self) -> None:
        with suppress(*NETWORK_ERRORS):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._socket.close()
