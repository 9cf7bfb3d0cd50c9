"""HTTP/1.1 as the fault proxy needs it: heads, bodies and chunks on asyncio streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

REASONS = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """A header's value, or nothing."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def without(self, *names: str) -> tuple[tuple[str, str], ...]:
        """The headers but these."""
        return tuple((key, value) for key, value in self.headers if key.lower() not in names)

    def encode(self) -> bytes:
        """As it goes over the wire."""
        return "".join([f"{self.line}\r\n", *(f"{key}: {value}\r\n" for key, value in self.headers), "\r\n"]).encode(
            "latin-1"
        )


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head, or None if the peer has no more to say."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *rest = text[:-4].split("\r\n")
    pairs = (entry.partition(":") for entry in rest)
    return Head(line, tuple((key, value.strip()) for key, _, value in pairs))


async def read_body(reader: asyncio.StreamReader, head: Head, open_ended: bool) -> bytes:
    """A whole body; `open_ended`: without a length it lasts until the peer closes."""
    if head.get("transfer-encoding").lower() == "chunked":
        return b"".join([chunk async for chunk in chunks(reader)])
    if head.get("content-length"):
        return await reader.readexactly(int(head.get("content-length")))
    return await reader.read() if open_ended else b""


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a chunked body, without their wrapping."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


def chunk(content: bytes) -> bytes:
    """One chunk, wrapped."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def response(line: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    """A whole answer with its length."""
    return Head(line, (*headers, ("Content-Length", str(len(body))))).encode() + body


def failure(status: int) -> bytes:
    """An answer as the apiserver words its own refusals."""
    headers = [("Content-Type", "application/json")]
    if status in (429, 503):
        headers.append(("Retry-After", "1"))
    return response(f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}", tuple(headers), status_object(status))


def status_object(status: int) -> bytes:
    """The Status that goes with a code."""
    reason = REASONS.get(status, "Unknown")
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return json.dumps(
        content | {"reason": reason, "code": status, "message": f"{reason}: injected by the fault proxy"}
    ).encode()


def expired_event() -> bytes:
    """How a watch says that its resource version is too old."""
    return b'{"type":"ERROR","object":%s}\n' % status_object(410)
