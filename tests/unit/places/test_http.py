"""HTTP to a member, against servers that answer well and badly."""

from __future__ import annotations

import asyncio
import json

import pytest

from oars.base.errors import EngineUnreachable
from oars.places.http import describe_error, parse_reply, request


def asked(answer: bytes) -> bytes:
    """What is made of these bytes, after which the server is gone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async def story() -> bytes:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await request(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "/")

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length:3\r\nServer: x\r\n\r\nabc", b"abc"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabcd", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 204\r\n\r\n", b""),
    ],
)
def test_the_content(answer: bytes, content: bytes) -> None:
    assert asked(answer) == content


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nabc", "after 3 of 9 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n", "after 36 bytes"),
        (b"", "after 0 bytes"),
    ],
)
def test_truncated_response_is_an_error(answer: bytes, message: str) -> None:
    with pytest.raises(EOFError, match=message):
        asked(answer)


def test_another_status_says_more_than_that_it_broke_off() -> None:
    with pytest.raises(EngineUnreachable, match="status 502"):
        asked(b"HTTP/1.0 502 Bad Gateway\r\nContent-Length: 9\r\n\r\n")


def test_response_of_another_server_is_rejected() -> None:
    with pytest.raises(ValueError, match="does not speak HTTP"):
        asked(b"220 mail.example.org\r\n\r\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (EOFError("the answer broke off"), "the answer broke off"),
    ],
)
def test_error_without_text_gets_a_message(error: Exception, said: str) -> None:
    assert describe_error(error) == said


@pytest.mark.parametrize("found", [None, [], {"a": 1}])
def test_helper_result_is_parsed(found: object) -> None:
    assert parse_reply(json.dumps({"ok": found}).encode(), "it") == found


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error": "no such raylet"}', "no such raylet"),
        (b'{"error": ""}', "it reported an error without a message"),
        (b'{"error": null}', "it reported an error without a message"),
        *((text, "it: its answer cannot be read") for text in (b'{"ok": [1, 2', b"", b"\xff", b"[1]", b"{}", b"7")),
    ],
)
def test_invalid_helper_reply_is_reported(answer: bytes, said: str) -> None:
    with pytest.raises(EngineUnreachable) as told:
        parse_reply(answer, "it")
    assert told.value.message == said
