"""Ports and commands over WebSocket, against a server that plays the kubelet's part badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from oars.kube import forwarder as forwarders
from oars.kube.channels import BUFFER, Source
from oars.kube.client import Client
from oars.kube.errors import Unreachable
from oars.kube.streams import Forwarder, NoSuchCommand, PortClosed, execute, open_port, run
from oars.kube.target import Target

Play = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]
GREETING = (b"\x00\x58\x1b", b"\x01\x58\x1b")
REFUSED = b"\x01dial tcp4 127.0.0.1:7000: connect: connection refused"


@asynccontextmanager
async def kubelet(*plays: Play) -> AsyncIterator[Client]:
    """Serves one play after another, the last one for ever."""
    left = list(plays)

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=0)
        await socket.prepare(request)
        await (left.pop(0) if len(left) > 1 else left[0])(socket, request)
        return socket

    app = web.Application()
    app.router.add_get("/{tail:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Target(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield client
    finally:
        await runner.cleanup()


async def greet(socket: web.WebSocketResponse) -> None:
    for part in GREETING:
        await socket.send_bytes(part)


async def echo(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await greet(socket)
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


async def say_and_close(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await greet(socket)
    await socket.send_bytes(b"\x00part")
    await socket.close()


async def say_and_break(socket: web.WebSocketResponse, request: web.Request) -> None:
    await greet(socket)
    await socket.send_bytes(b"\x00part")
    assert request.transport
    request.transport.close()


async def refuse(socket: web.WebSocketResponse, _request: web.Request) -> None:
    await greet(socket)
    await socket.send_bytes(REFUSED)
    await socket.close()


def test_a_clean_end_is_an_end_and_a_break_is_an_error() -> None:
    async def body() -> None:
        async with kubelet(say_and_close, say_and_break, refuse) as client:
            reader, writer = await open_port(client, "n", "p", 7000)
            assert await reader.read() == b"part"
            writer.close()
            await writer.wait_closed()
            reader, writer = await open_port(client, "n", "p", 7000)
            with pytest.raises(ConnectionResetError, match="port 7000 of pod p"):
                await reader.read()
            reader, writer = await open_port(client, "n", "p", 7000)
            with pytest.raises(PortClosed, match="refused"):
                await reader.read()
            with pytest.raises(ConnectionResetError):
                writer.write(b"x")

    asyncio.run(body())


def test_a_reader_that_does_not_read_holds_up_the_sender() -> None:
    sent = 0

    async def flood(socket: web.WebSocketResponse, _request: web.Request) -> None:
        nonlocal sent
        await greet(socket)
        while sent < 100_000_000:
            await socket.send_bytes(b"\x00" + b"x" * 65536)
            sent += 65536

    async def body() -> None:
        async with kubelet(flood) as client:
            reader, writer = await open_port(client, "n", "p", 7000)
            before = -1
            while sent != before:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
            assert 0 < sent < 50_000_000
            assert len(await reader.readexactly(1_000_000)) == 1_000_000
            writer.abort()
            await asyncio.wait_for(writer.wait_closed(), 10)

    asyncio.run(body())


def test_a_pod_that_does_not_read_holds_up_the_writer() -> None:
    over = asyncio.Event()

    async def deaf(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await greet(socket)
        await over.wait()

    async def body() -> None:
        async with kubelet(deaf) as client:
            _, writer = await open_port(client, "n", "p", 7000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        writer.write(b"x" * BUFFER)
                        await writer.drain()
            writer.abort()
            over.set()

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


def test_a_forward_waits_for_a_port_that_opens_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarders, "LONGEST_WAIT", 0.2)

    async def body() -> None:
        async with kubelet(refuse, refuse, echo) as client, forwarded(client) as port:
            assert await exchange(port, b"sent before anybody listened") == b"sent before anybody listened"

    asyncio.run(body())


def test_a_forward_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarders, "PATIENCE", 0.5)

    async def body() -> None:
        async with kubelet(refuse) as client, forwarded(client) as port:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(exchange(port, b"x"), 5)

    asyncio.run(body())


def test_a_broken_forward_does_not_look_like_an_end() -> None:
    async def body() -> None:
        async with kubelet(say_and_break) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    asyncio.run(body())


def test_one_broken_forward_does_not_hurt_another() -> None:
    async def body() -> None:
        async with kubelet(echo, say_and_break, echo) as client, forwarded(client) as port:
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


def test_a_slow_reader_that_has_nothing_more_to_say_gets_all() -> None:
    content = bytes(range(256)) * 40_000

    async def say_much(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await greet(socket)
        for start in range(0, len(content), 50_000):
            await socket.send_bytes(b"\x00" + content[start : start + 50_000])
        await socket.close()

    async def body() -> None:
        async with kubelet(say_much) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
            writer.write_eof()
            await asyncio.sleep(2.5)  # longer than a forward waits for a pod that says nothing
            assert await reader.read() == content
            writer.close()

    asyncio.run(body())


def test_an_answer_that_may_be_cut_short_does_not_look_whole() -> None:
    async def pause(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await greet(socket)
        await socket.send_bytes(b"\x00part")
        await socket.receive()

    async def body() -> None:
        async with kubelet(pause) as client, forwarded(client) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.readexactly(4) == b"part"
            writer.write_eof()
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()

    asyncio.run(body())


def ends_with(status: Mapping[str, object], *said: bytes) -> Play:
    async def play(socket: web.WebSocketResponse, _request: web.Request) -> None:
        for part in said:
            await socket.send_bytes(part)
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()

    return play


def test_commands_and_how_they_end() -> None:
    failed = {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }
    missing = {"status": "Failure", "message": 'runc: exec: "zz": executable file not found in $PATH'}

    async def body() -> None:
        plays = [ends_with({"status": "Success"}, b"\x01out", b"\x02err"), ends_with(failed), ends_with(missing)]
        async with kubelet(*plays, say_and_break) as client:
            done = await run(client, "n", "p", ["x"])
            assert (done.code, done.stdout, done.stderr) == (0, b"out", b"err")
            assert (await run(client, "n", "p", ["x"])).code == 3
            with pytest.raises(NoSuchCommand, match="no 'zz' in pod p"):
                await run(client, "n", "p", ["zz"])
            with pytest.raises(Unreachable, match="broke"):
                await run(client, "n", "p", ["x"])

    asyncio.run(body())


def test_stdin_ends_after_all_of_it() -> None:
    heard = bytearray()

    async def listen(socket: web.WebSocketResponse, request: web.Request) -> None:
        assert request.query["stdin"] == "true" and request.query.getall("command") == ["cat", "-"]
        async for message in socket:
            if message.data == b"\xff\x00":
                break
            heard.extend(message.data[1:])
        await ends_with({"status": "Success"})(socket, request)

    async def body() -> None:
        async with kubelet(listen) as client:
            async with await execute(client, "n", "p", ["cat", "-"], stdin=True) as session:
                for number in range(50):
                    await session.write(bytes([number]) * 30_000)
                await session.close_stdin()
                assert await session.wait() == 0

    asyncio.run(body())
    assert heard == b"".join(bytes([number]) * 30_000 for number in range(50))


def test_letting_go_of_a_busy_command_or_port_takes_no_time() -> None:
    async def flood(socket: web.WebSocketResponse, _request: web.Request) -> None:
        await greet(socket)
        while not socket.closed:
            await socket.send_bytes(b"\x00" + b"x" * 65536)
            await socket.send_bytes(b"\x01" + b"x" * 65536)

    async def body() -> None:
        async with kubelet(flood) as client:
            session = await execute(client, "n", "p", ["yes"])
            await session.stdout.readexactly(200_000)
            async with asyncio.timeout(4):
                await session.close()
            reader, writer = await open_port(client, "n", "p", 7000)
            await reader.readexactly(200_000)
            writer.abort()
            async with asyncio.timeout(4):
                await writer.wait_closed()

    asyncio.run(body())


def test_what_comes_after_the_end_is_dropped() -> None:
    async def body() -> None:
        source = Source()
        await source.feed(b"wanted")
        source.end()
        await source.feed(b"late")
        source.end()
        assert await source.reader.read() == b"wanted"

    asyncio.run(body())
