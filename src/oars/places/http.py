"""Minimal HTTP client for members, with one request per connection. It needs no HTTP library, which would cost memory.
Also parses the replies of helpers and describes connection errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from oars.base.errors import EngineUnreachable

NO_HEADERS: Mapping[str, str] = {}
FAULTS = (OSError, ValueError, EOFError)  # of a connection or a reply; a TimeoutError is an OSError

_STATUS = re.compile(rb"HTTP/\S+ (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


class InvalidReply(EngineUnreachable):
    """The reply could not be parsed. The connection is out of step and must be closed."""


async def request(
    address: str, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    """The body of a 2xx response. Raises EngineUnreachable for another status, and one of FAULTS if it fails."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        fields = {"Host": address, "Content-Length": str(len(body)), "Connection": "close", **headers}
        if body:
            fields["Content-Type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {path} HTTP/1.0\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        response = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, separator, content = response.partition(b"\r\n\r\n")
    if not separator:
        raise EOFError(f"the answer broke off after {len(response)} bytes")
    status = _STATUS.match(head)
    if status is None:
        raise ValueError("what answers there does not speak HTTP")
    if not 200 <= int(status[1]) < 300:
        raise EngineUnreachable(f"http://{address}{path}: status {int(status[1])}")
    announced = _LENGTH.search(head)
    length = int(announced[1]) if announced else len(content)
    if len(content) < length:  # a server that dies also closes the connection
        raise EOFError(f"the answer broke off after {len(content)} of {length} bytes")
    return content[:length]


def bearer(token: str) -> Mapping[str, str]:
    """The header with a token; no header without one."""
    return {"Authorization": f"Bearer {token}"} if token else NO_HEADERS


def describe_error(error: Exception) -> str:
    """The error's message. Some exceptions have none, such as TimeoutError."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def parse_reply(text: bytes, sender: str) -> Any:
    """The result in a helper's reply, which is {"ok": …} or {"error": "…"}. Raises EngineUnreachable for an error, and
    InvalidReply for anything else, e.g. a truncated reply."""
    try:
        reply = json.loads(text)
    except ValueError:
        reply = None
    match reply:
        case {"error": message}:
            raise EngineUnreachable(str(message or f"{sender} reported an error without a message"))
        case {"ok": result}:
            return result
    raise InvalidReply(f"{sender}: its answer cannot be read")
