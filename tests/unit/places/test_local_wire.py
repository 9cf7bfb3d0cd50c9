"""The way to a head on this machine: real sockets, with an other end that answers well and badly."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from oars.base.errors import EngineUnreachable
from oars.model import HEAD
from oars.places.local import machine
from oars.places.local.process import identify
from oars.places.process import wire
from oars.places.process.machine import Streams
from oars.places.process.wire import Helpers, ProcessWire

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(answer: bytes) -> Serve:
    """One answer to one line, and the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    return serve


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def asked(serve: Serve, seconds: float = 5.0) -> object:
    """What comes of a question to a helper that behaves so."""

    async def story() -> object:
        helping: list[asyncio.Task[None]] = []

        async def start(script: str) -> Streams:
            async def help_() -> None:
                await serve(*await asyncio.open_connection(sock=theirs))

            ours, theirs = socket.socketpair()
            helping.append(asyncio.create_task(help_()))
            return await asyncio.open_connection(sock=ours)

        helpers = Helpers(start)
        try:
            return await helpers.ask("script", "1", {"op": "nodes"}, seconds)
        finally:
            helpers.close()
            await asyncio.gather(*helping)

    return asyncio.run(story())


def test_helper_replies() -> None:
    assert asked(saying(b'{"ok": [1]}\n')) == [1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error": "no such raylet"}\n', "no such raylet"),
        (b'{"error": ""}\n', "the helper beside the head reported an error without a message"),
        (b'{"ok": [1, 2', "the helper beside the head: its answer cannot be read"),
        (b"Traceback\n", "the helper beside the head: its answer cannot be read"),
        (b"[1]\n", "the helper beside the head: its answer cannot be read"),
        (b"", "The helper beside the head ended."),
    ],
)
def test_invalid_reply_is_described(answer: bytes, said: str) -> None:
    with pytest.raises(EngineUnreachable) as told:
        asked(saying(answer))
    assert told.value.message == said


def test_the_next_question_is_not_answered_by_what_was_left_of_the_last() -> None:
    """A warning on the helper's line, and then its answer."""

    async def story() -> None:
        answers = [b'Warning!\n{"ok": "old"}\n', b'{"ok": "new"}\n']

        async def start(script: str) -> Streams:
            ours, theirs = socket.socketpair()
            theirs.sendall(answers.pop(0))
            ends.append(theirs)
            return await asyncio.open_connection(sock=ours)

        ends: list[socket.socket] = []
        helpers = Helpers(start)
        with pytest.raises(EngineUnreachable, match="cannot be read"):
            await helpers.ask("script", "1", {})
        assert await helpers.ask("script", "1", {}) == "new"
        helpers.close()
        for end in ends:
            end.close()

    asyncio.run(story())


def test_requests_at_a_time_are_limited() -> None:
    """Those beyond the limit fail at once, so that the loop asks again; the others are not disturbed."""

    async def story() -> None:
        async def start(script: str) -> Streams:
            ours, theirs = socket.socketpair()
            ends.append(theirs)
            await asyncio.sleep(0)  # others ask meanwhile
            return await asyncio.open_connection(sock=ours)

        ends: list[socket.socket] = []
        helpers = Helpers(start)
        asking = [asyncio.create_task(helpers.ask("script", "1", {})) for _ in range(10)]
        refused = asking[wire.MAX_HELPERS :]
        done, _ = await asyncio.wait(refused, timeout=10)
        pending = [task for task in asking if not task.done()]
        assert len(done) == 10 - wire.MAX_HELPERS and len(pending) == wire.MAX_HELPERS
        assert {str(task.exception()) for task in done} == {"The helper beside the head is busy with 4 requests."}
        for end in ends:
            end.sendall(b'{"ok": 1}\n')
        assert await asyncio.gather(*pending) == [1] * wire.MAX_HELPERS
        asking = [asyncio.create_task(helpers.ask("script", "1", {}, 0.05)) for _ in range(2)]
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(failure, EngineUnreachable) for failure in failures)
        assert len(ends) == wire.MAX_HELPERS, "idle ones served"
        helpers.close()
        for end in ends:
            end.close()

    asyncio.run(story())


def test_helper_of_a_replaced_head_is_not_used() -> None:
    """The head was replaced while the helper was being started."""

    async def story() -> None:
        async def start(script: str) -> Streams:
            await go.wait()
            ours, theirs = socket.socketpair()
            ends.append(theirs)
            theirs.sendall(b'{"ok": 1}\n')
            return await asyncio.open_connection(sock=ours)

        ends: list[socket.socket] = []
        go = asyncio.Event()
        helpers = Helpers(start)
        old = asyncio.create_task(helpers.ask("script", "1", {}))
        await asyncio.sleep(0)
        new = asyncio.create_task(helpers.ask("script", "2", {}))
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(EngineUnreachable, match="was replaced"):
            await old
        assert await new == 1
        helpers.close()
        for end in ends:
            end.close()

    asyncio.run(story())


def test_helper_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams were closed, but it does not read its stdin."""
    monkeypatch.setattr(machine, "HELPER_GRACE", 0.1)

    async def story() -> None:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        process = await asyncio.create_subprocess_exec("sleep", "60", stdin=theirs.fileno())
        theirs.close()
        identity = identify(process.pid)
        assert identity is not None
        ending = asyncio.create_task(machine._end_helper(identity, writer))
        await asyncio.sleep(0.3)
        assert identity.alive(), "its streams are open"
        writer.close()
        async with asyncio.timeout(10):
            assert await process.wait() == -signal.SIGKILL
            await ending

    asyncio.run(story())


def test_silent_helper_is_reported() -> None:
    with pytest.raises(EngineUnreachable, match="The helper beside the head does not answer: no answer in time"):
        asked(silent, seconds=0.05)


@pytest.mark.parametrize(
    ("serve", "said"),
    [(silent, "no answer in time"), (saying(b"HTTP/1.0 200 OK\r\n"), "the answer broke off after 17 bytes")],
)
def test_missing_page_is_reported(monkeypatch: pytest.MonkeyPatch, serve: Serve, said: str) -> None:
    monkeypatch.setattr(wire, "HTTP_SECONDS", 0.2)

    async def story() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            way = ProcessWire({HEAD: {"web": address}}, {HEAD: "1"}, {}, Helpers(_nobody))
            with pytest.raises(EngineUnreachable) as told:
                await way.http("web", "/page")
            assert told.value.message == f"http://{address}/page: {said}"

    asyncio.run(story())


@pytest.mark.parametrize(("port", "sent"), [("web", b"Authorization: Bearer known\r\n"), ("other", None)])
def test_token_is_sent_to_the_port_that_requires_it(port: str, sent: bytes | None) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            way = ProcessWire({HEAD: {port: address}}, {HEAD: "1"}, {}, Helpers(_nobody), {"web": "known"})
            await way.http(port, "/page")
            assert "known" not in repr(way)

    asyncio.run(story())
    assert (sent in requests[0]) if sent else (b"Authorization" not in requests[0])


async def _nobody(script: str) -> Streams:
    raise AssertionError("nobody is asked beside the head")
