"""Asking a member: HTTP with one request a connection, all that a status page needs, without a library in anyone's
memory; what a helper's answer says; and how to put what went wrong, the same in every place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from oars.base.errors import EngineUnreachable

NO_HEADERS: Mapping[str, str] = {}
FAULTS = (OSError, ValueError, EOFError)  # of a connection or an answer; a TimeoutError is an OSError

_STATUS = re.compile(rb"HTTP/\S+ (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


class Unreadable(EngineUnreachable):
    """What came is no answer. Nor is what comes next on the same line that to the next question."""


async def request(
    address: str, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS
) -> bytes:
    """The content of a 2xx answer. Raises EngineUnreachable for others, and FAULTS for worse."""
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


def words(error: Exception) -> str:
    """What went wrong, also where Python has no text for it."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def answered(text: bytes, who: str) -> Any:
    """What a helper has found: it answers {"ok": …} or {"error": "…"}. Raises EngineUnreachable for the latter, and
    Unreadable for what is neither, e.g. half of it."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    match answer:
        case {"error": said}:
            raise EngineUnreachable(str(said or f"{who}: an error of which nothing is said"))
        case {"ok": found}:
            return found
    raise Unreadable(f"{who}: its answer cannot be read")
