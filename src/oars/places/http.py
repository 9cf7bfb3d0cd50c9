"""HTTP to a member: one request a connection, all that a status page needs, without a library in anyone's memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping

from oars.base.errors import EngineUnreachable

NO_HEADERS: Mapping[str, str] = {}

_STATUS = re.compile(rb"HTTP/\S+ (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


async def request(
    address: str, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    """The content of a 2xx answer. Raises EngineUnreachable for others; OSError, ValueError or EOFError for worse."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        fields = {"Host": address, "Content-Length": str(len(body)), "Connection": "close", **headers}
        if body:
            fields["Content-Type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {path} HTTP/1.0\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, is_whole, content = answer.partition(b"\r\n\r\n")
    if not is_whole:
        raise EOFError(f"the answer broke off after {len(answer)} bytes")
    status = _status(head)
    if not 200 <= status < 300:
        raise EngineUnreachable(f"http://{address}{path}: status {status}")
    return _all_of(content, head)


def _status(head: bytes) -> int:
    found = _STATUS.match(head)
    if found is None:
        raise ValueError("what answers there does not speak HTTP")
    return int(found[1])


def _all_of(content: bytes, head: bytes) -> bytes:
    """The end of a connection is not always that of the answer: whoever sent it may have died."""
    announced = _LENGTH.search(head)
    length = int(announced[1]) if announced else len(content)
    if len(content) < length:
        raise EOFError(f"the answer broke off after {len(content)} of {length} bytes")
    return content[:length]
