"""Exec and port-forward over WebSocket, against a server with scripted faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web
from tests.unit.kube.server import client_of

from oars.kube import port_forward
from oars.kube.channels import BUFFER_SIZE, ChannelReader, StreamClosed
from oars.kube.client import Client
from oars.kube.errors import Unreachable
from oars.kube.exec import NoSuchCommand, execute, run
from oars.kube.port_forward import Forwarder, PortClosed, open_port

Handler = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]
PORT_PREFIX = (b"\x00\x58\x1b", b"\x01\x58\x1b")
REFUSED = b"\x01dial tcp4 127.0.0.1:7000: connect: connection refused"


@asynccontextmanager
async def kubelet(*handlers: Handler) -> AsyncIterator[Client]:
    """Serve one connection with each handler, and all further ones with the last handler."""
    left = list(handlers)

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=0)
        await socket.prepare(request)
        await (left.pop(0) if len(left) > 1 else left[0])(socket, request)
        return socket

    async with client_of(serve) as client:
        yield client


async def send_prefix(socket: web.WebSocketResponse) -> None:
    for part in PORT_PREFIX:
        await socket.send_bytes(part)


async def echo(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await send_prefix(socket)
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


async def send_and_close(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await send_prefix(socket)
    await socket.send_bytes(b"\x00part")
    await socket.close()


async def send_and_break(socket: web.WebSocketResponse, request: web.Request) -> None:
    await send_prefix(socket)
    await socket.send_bytes(b"\x00part")
    assert request.transport
    request.transport.close()


async def refuse(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await send_prefix(socket)
    await socket.send_bytes(REFUSED)
    await socket.close()


def test_normal_close_is_eof_and_broken_connection_is_an_error() -> None:
    async def body() -> None:
        async with kubelet(send_and_close, send_and_break, refuse) as client:
            connection = await open_port(client, "n", "p", 7000)
            assert await connection.reader.read() == b"part"
            await connection.close()
            connection = await open_port(client, "n", "p", 7000)
            with pytest.raises(ConnectionResetError, match="port 7000 of pod p"):
                await connection.reader.read()
            connection = await open_port(client, "n", "p", 7000)
            with pytest.raises(PortClosed, match="refused"):
                await connection.reader.read()
            with pytest.raises(StreamClosed, match="the connection is closed"):
                await connection.send(b"x")

    asyncio.run(body())


def test_unread_data_stops_the_sender() -> None:
    sent = 0

    async def flood(socket: web.WebSocketResponse, _request: web.Request) -> None:
        nonlocal sent
        await send_prefix(socket)
        while sent < 100_000_000:
            await socket.send_bytes(b"\x00" + b"x" * 65536)
            sent += 65536

    async def body() -> None:
        async with kubelet(flood) as client:
            connection = await open_port(client, "n", "p", 7000)
            before = -1
            while not sent or sent != before:  # until the sender blocks
                before = sent
                await asyncio.sleep(0.2)
            assert 0 < sent < 50_000_000
            assert len(await connection.reader.readexactly(1_000_000)) == 1_000_000
            await asyncio.wait_for(connection.close(), 60)

    asyncio.run(body())


def test_pod_that_does_not_read_stops_the_writer() -> None:
    done = asyncio.Event()

    async def never_read(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await send_prefix(socket)
        await done.wait()

    async def body() -> None:
        async with kubelet(never_read) as client:
            connection = await open_port(client, "n", "p", 7000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        await connection.send(b"x" * BUFFER_SIZE)
            await asyncio.wait_for(connection.close(), 60)
            done.set()

    asyncio.run(body())


@asynccontextmanager
async def forwarded(client: Client) -> AsyncIterator[int]:
    async def choose() -> tuple[str, str, int]:
        return "n", "p", 7000

    forwarder = Forwarder(client, choose)
    try:
        yield await forwarder.start()
    finally:
        await forwarder.close()


async def exchange(port: int, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        await writer.drain()
        return await reader.readexactly(len(content))
    finally:
        writer.close()


def test_forward_waits_for_a_port_that_opens_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "MAX_DELAY", 0.2)

    async def body() -> None:
        async with kubelet(refuse, refuse, echo) as client, forwarded(client) as port:
            assert await exchange(port, b"sent before the port was open") == b"sent before the port was open"

    asyncio.run(body())


def test_forward_fails_after_the_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "CONNECT_TIMEOUT", 0.5)

    async def body() -> None:
        async with kubelet(refuse) as client, forwarded(client) as port:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(exchange(port, b"x"), 5)

    asyncio.run(body())


def test_broken_forward_resets_the_local_connection() -> None:
    async def body() -> None:
        async with kubelet(send_and_break) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    asyncio.run(body())


def test_broken_forward_does_not_affect_others() -> None:
    async def body() -> None:
        async with kubelet(echo, send_and_break, echo) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            other, other_writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await other.read()
            other_writer.close()
            writer.write(b"b")
            assert await reader.readexactly(1) == b"b"
            writer.close()
            assert await exchange(port, b"c") == b"c"

    asyncio.run(body())


def test_slow_reader_gets_all_data_after_its_eof() -> None:
    content = bytes(range(256)) * 40_000

    async def send_much(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await send_prefix(socket)
        for start in range(0, len(content), 50_000):
            await socket.send_bytes(b"\x00" + content[start : start + 50_000])
        await socket.close()

    async def body() -> None:
        async with kubelet(send_much) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
            writer.write_eof()
            await asyncio.sleep(2.5)  # longer than a forward waits for a silent pod
            assert await reader.read() == content
            writer.close()

    asyncio.run(body())


def test_data_that_may_be_incomplete_does_not_end_with_eof() -> None:
    async def pause(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await send_prefix(socket)
        await socket.send_bytes(b"\x00part")
        await socket.receive()

    async def body() -> None:
        async with kubelet(pause) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readexactly(4) == b"part"
            writer.write_eof()
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 60)
            writer.close()

    asyncio.run(body())


def ends_with(status: Mapping[str, object], *output: bytes) -> Handler:
    async def handler(socket: web.WebSocketResponse, _request: web.Request) -> None:
        for part in output:
            await socket.send_bytes(part)
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()

    return handler


def test_run_returns_output_and_exit_code() -> None:
    failed = {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }
    missing = {"status": "Failure", "message": 'runc: exec: "zz": executable file not found in $PATH'}

    async def body() -> None:
        handlers = [ends_with({"status": "Success"}, b"\x01out", b"\x02err"), ends_with(failed), ends_with(missing)]
        async with kubelet(*handlers, send_and_break) as client:
            done = await run(client, "n", "p", ["x"])
            assert (done.code, done.stdout, done.stderr) == (0, b"out", b"err")
            assert (await run(client, "n", "p", ["x"])).code == 3
            with pytest.raises(NoSuchCommand, match="Program 'zz' not found in pod p"):
                await run(client, "n", "p", ["zz"])
            with pytest.raises(Unreachable, match="broke"):
                await run(client, "n", "p", ["x"])

    asyncio.run(body())


def test_close_stdin_sends_all_input_first() -> None:
    received = bytearray()

    async def read_stdin(socket: web.WebSocketResponse, request: web.Request) -> None:
        assert request.query["stdin"] == "true" and request.query.getall("command") == ["cat", "-"]
        async for message in socket:
            if message.data == b"\xff\x00":
                break
            received.extend(message.data[1:])
        await ends_with({"status": "Success"})(socket, request)

    async def body() -> None:
        async with kubelet(read_stdin) as client:
            async with await execute(client, "n", "p", ["cat", "-"], stdin=True) as session:
                for number in range(50):
                    await session.write(bytes([number]) * 30_000)
                await session.close_stdin()
                assert await session.wait() == 0

    asyncio.run(body())
    assert received == b"".join(bytes([number]) * 30_000 for number in range(50))


def test_closing_a_busy_session_or_port_does_not_block() -> None:
    async def flood(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await send_prefix(socket)
        while not socket.closed:
            await socket.send_bytes(b"\x00" + b"x" * 65536)
            await socket.send_bytes(b"\x01" + b"x" * 65536)

    async def body() -> None:
        async with kubelet(flood) as client:
            session = await execute(client, "n", "p", ["yes"])
            await session.stdout.readexactly(200_000)
            async with asyncio.timeout(4):
                await session.close()
            connection = await open_port(client, "n", "p", 7000)
            await connection.reader.readexactly(200_000)
            async with asyncio.timeout(4):
                await connection.close()

    asyncio.run(body())


def test_command_that_ends_without_reading_releases_the_writer() -> None:
    is_blocked = asyncio.Event()

    async def end_unread(socket: web.WebSocketResponse, request: web.Request) -> None:
        await is_blocked.wait()
        await ends_with({"status": "Success"})(socket, request)

    async def body() -> None:
        async with kubelet(end_unread) as client, await execute(client, "n", "p", ["true"], stdin=True) as session:
            writing = asyncio.create_task(session.write(b"x" * 50_000_000))
            await asyncio.wait([writing], timeout=1)
            assert not writing.done()
            is_blocked.set()
            with pytest.raises(StreamClosed):
                await asyncio.wait_for(writing, 60)
            assert await session.wait() == 0
            with pytest.raises(StreamClosed, match="the connection is closed"):
                await session.write(b"x")

    asyncio.run(body())


def test_data_after_the_end_is_discarded() -> None:
    async def body() -> None:
        reader = ChannelReader()
        await reader.feed(b"data")
        reader.end()
        await reader.feed(b"late")
        reader.end()
        assert await reader.stream.read() == b"data"

    asyncio.run(body())
