"""Port-forward: connections to a port of a pod, over WebSocket.

The protocol cannot half-close: a connection is closed in both directions at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from oars.base.connections import ConnectionServer
from oars.base.errors import OarsError
from oars.base.log import get_logger
from oars.kube.channels import ChannelReader, ChannelSocket, StreamClosed
from oars.kube.client import Client
from oars.kube.kinds import POD
from oars.kube.transport import NETWORK_ERRORS, WebSocket

CONNECT_TIMEOUT = 20.0  # for a new connection, while the pod or the API server is unavailable
FIRST_DELAY, MAX_DELAY = 0.1, 2.0
_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_PREFIX = 2  # each channel starts with the port number in two bytes
_DRAIN_SECONDS = 1.0  # how long the pod may be silent after the local side closed; kubectl waits as long
_READ_SIZE = 1 << 16
_REPLAY_SIZE = 1 << 18
_REFUSAL_SECONDS = 0.1  # a pod's kernel refuses a connection within this time

Address = tuple[str, str, int]  # namespace, pod, port
LocalStreams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_log = get_logger(__name__)


class PortClosed(ConnectionRefusedError):
    """Nothing listens on the pod's port. No byte was delivered."""


class PortConnection(ChannelSocket):
    """A connection to a port of a pod. Read from `reader`; it raises PortClosed if nothing listens on the port."""

    def __init__(self, websocket: WebSocket, name: str) -> None:
        self._name = name
        self._channel = ChannelReader()
        self.reader = self._channel.stream
        self.accepted = asyncio.Event()  # the API server sent the port number, or the connection ended
        self._unread_prefix = {_DATA: _PORT_PREFIX, _ERROR: _PORT_PREFIX}
        self._error_text = bytearray()
        super().__init__(websocket)

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait while the pod accepts no more. Raises StreamClosed if the connection has ended."""
        await self._send(_DATA, data)

    def _end(self, is_complete: bool) -> None:
        self.accepted.set()
        if self._error_text:
            text = self._error_text.decode(errors="replace").strip()
            is_refused = "refused" in text and "connect" in text
            self._channel.end((PortClosed if is_refused else ConnectionResetError)(f"{self._name}: {text}"))
        else:
            self._channel.end(None if is_complete else ConnectionResetError(f"the connection to {self._name} broke"))

    async def _handle(self, channel: int, data: bytes) -> None:
        skip = min(self._unread_prefix.get(channel, 0), len(data))
        if skip:
            self._unread_prefix[channel] -= skip
            self.accepted.set()
        if channel == _DATA:
            await self._channel.feed(data[skip:])
        elif channel == _ERROR:
            self._error_text += data[skip:]


async def open_port(client: Client, namespace: str, pod: str, port: int) -> PortConnection:
    """Connect to a port of a pod. If nothing listens there, the first read raises PortClosed."""
    path = POD.path(namespace, pod, "portforward")
    websocket = await client.websocket(path, {"ports": str(port)}, (_PROTOCOL,))
    connection = PortConnection(websocket, f"port {port} of pod {pod}")
    await connection.accepted.wait()
    return connection


class Forwarder:
    """Listens on a local port and forwards each connection to a pod.

    `choose` returns the address for a new connection. It is called again after each failed attempt, so that
    connections follow a pod that is replaced."""

    def __init__(
        self,
        client: Client,
        choose: Callable[[], Awaitable[Address]],
        local_port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._client = client
        self._choose = choose
        self._local_port = local_port
        self._host = host
        self._server = ConnectionServer(self._forward, (OarsError, *NETWORK_ERRORS))
        self._answering: Address | None = None  # the last address that sent data

    async def start(self) -> int:
        """Start listening and return the local port."""
        return await self._server.start(self._host, self._local_port)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local: LocalStreams = (reader, writer)
        transfer = _Transfer()
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while True:
            address, connection = await self._connect(deadline)
            if address == self._answering:
                transfer.not_refused.set()
            try:
                await _relay(local, connection, transfer)
                return
            except PortClosed:
                self._answering = None
                transfer.not_refused.clear()
                if transfer.received or not transfer.can_replay or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(MAX_DELAY / 4)
            finally:
                self._answering = address if transfer.received else self._answering
                await connection.close()

    async def _connect(self, deadline: float) -> tuple[Address, PortConnection]:
        delay = FIRST_DELAY
        while True:
            try:
                async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
                    address = await self._choose()
                    return address, await open_port(self._client, *address)
            except (OarsError, *NETWORK_ERRORS):
                if time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_DELAY)


@dataclass
class _Transfer:
    """The state of one local connection across several connections to pods."""

    # The bytes sent so far. If the pod's port turns out to be closed, they are sent again to the next pod.
    sent: bytearray = field(default_factory=bytearray)
    can_replay: bool = True
    received: int = 0
    not_refused: asyncio.Event = field(default_factory=asyncio.Event)  # data arrived, or no refusal came in time
    is_delivering: bool = False  # the local side has not accepted all received data

    def record_sent(self, data: bytes) -> None:
        if self.can_replay and not self.received and len(self.sent) + len(data) <= _REPLAY_SIZE:
            self.sent += data
        else:
            self.can_replay = False
            self.sent.clear()


async def _relay(local: LocalStreams, connection: PortConnection, transfer: _Transfer) -> None:
    """Copy bytes in both directions until both ends close.

    Raises if either side broke, or if the pod's data may be incomplete."""
    local_reader, local_writer = local
    up = asyncio.create_task(_send_to_pod(local_reader, connection, transfer))
    down = asyncio.create_task(_receive_from_pod(connection.reader, local_writer, transfer))
    try:
        await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            up.result()
            # The local side has closed, and the protocol cannot tell the pod. Wait until the pod is silent.
            before = -1
            while not down.done() and (transfer.is_delivering or transfer.received != before):
                before = transfer.received
                await asyncio.wait([down], timeout=_DRAIN_SECONDS)
        is_complete = down.done()
        if is_complete:
            down.result()
        await connection.close()
        if not is_complete:
            raise ConnectionResetError("the local side closed the connection before the pod did")
        local_writer.close()
        with suppress(*NETWORK_ERRORS):
            await local_writer.wait_closed()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.wait([up, down])


async def _send_to_pod(source: asyncio.StreamReader, connection: PortConnection, transfer: _Transfer) -> None:
    # Wait for a possible refusal before sending: a kubelet that resets a connection with unread bytes loses the reason.
    # Only the first connection to a pod waits.
    with suppress(TimeoutError):
        await asyncio.wait_for(transfer.not_refused.wait(), _REFUSAL_SECONDS)
    transfer.not_refused.set()
    # StreamClosed: the pod closed the connection. `_receive_from_pod` delivers the rest and reports the reason.
    with suppress(StreamClosed):
        await connection.send(bytes(transfer.sent))
        while data := await source.read(_READ_SIZE):
            transfer.record_sent(data)
            await connection.send(data)


async def _receive_from_pod(
    reader: asyncio.StreamReader, local_writer: asyncio.StreamWriter, transfer: _Transfer
) -> None:
    while data := await reader.read(_READ_SIZE):
        transfer.received += len(data)
        transfer.not_refused.set()
        transfer.is_delivering = True
        local_writer.write(data)
        await local_writer.drain()
        transfer.is_delivering = False
