"""The parts of HTTP/1.1 that the fault proxy needs, on asyncio streams."""

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
        """Return a header's value, or an empty string."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def without(self, *names: str) -> tuple[tuple[str, str], ...]:
        """Return all headers except these."""
        return tuple((key, value) for key, value in self.headers if key.lower() not in names)

    def encode(self) -> bytes:
        """Return the encoded head."""
        return "".join([f"{self.line}\r\n", *(f"{key}: {value}\r\n" for key, value in self.headers), "\r\n"]).encode(
            "latin-1"
        )


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read the next head; None if the peer has closed the connection."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *rest = text[:-4].split("\r\n")
    pairs = (entry.partition(":") for entry in rest)
    return Head(line, tuple((key, value.strip()) for key, _, value in pairs))


async def read_body(reader: asyncio.StreamReader, head: Head, open_ended: bool) -> bytes:
    """Read a body. If `open_ended`, a body without a length ends when the peer closes the connection."""
    if head.get("transfer-encoding").lower() == "chunked":
        return b"".join([chunk async for chunk in chunks(reader)])
    if head.get("content-length"):
        return await reader.readexactly(int(head.get("content-length")))
    return await reader.read() if open_ended else b""


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the decoded chunks of a chunked body."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")


def chunk(content: bytes) -> bytes:
    """Encode one chunk."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def response(line: str, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    """Return a response with a Content-Length."""
    return Head(line, (*headers, ("Content-Length", str(len(body))))).encode() + body


def failure(status: int) -> bytes:
    """Return an error response in the API server's format."""
    headers = [("Content-Type", "application/json")]
    if status in (429, 503):
        headers.append(("Retry-After", "1"))
    return response(f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}", tuple(headers), status_object(status))


def status_object(status: int) -> bytes:
    """Return the Status object for a code."""
    reason = REASONS.get(status, "Unknown")
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return json.dumps(
        content | {"reason": reason, "code": status, "message": f"{reason}: injected by the fault proxy"}
    ).encode()


def expired_event() -> bytes:
    """Return the watch event for an expired resource version."""
    return b'{"type":"ERROR","object":%s}\n' % status_object(410)
