"""HTTP to a member: one request a connection, all that a status page needs, without a library in anyone's memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from oars.base.errors import EngineUnreachable

NO_HEADERS: Mapping[str, str] = {}


async def request(
    address: str, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    """The content of a 2xx answer. Raises EngineUnreachable for others, and OSError or ValueError for worse."""
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
    head, _, content = answer.partition(b"\r\n\r\n")
    status = int(head.split(None, 2)[1])
    if not 200 <= status < 300:
        raise EngineUnreachable(f"http://{address}{path}: status {status}")
    return content
