"""Answers that go on and on: watches and logs."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from oars.kube.errors import ApiError
from oars.kube.transport import Call, Transport, unreachable

_WATCH_SECONDS = (300, 600)  # spread, so that watches begun together do not end together

Object = dict[str, Any]


async def watch(
    transport: Transport, path: str, params: Mapping[str, str], silence: float
) -> AsyncIterator[tuple[str, Object]]:
    """The events of a watch, until the server ends it."""
    seconds = str(random.randint(*_WATCH_SECONDS))
    wanted = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
    async with transport.answer(Call("GET", path, wanted), stream=True) as answer:
        async for line in _lines(transport, answer, silence):
            event = _event(transport, line)
            obj: Object = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(int(obj.get("code") or 500), obj)
            obj.get("metadata", {}).pop("managedFields", None)
            yield event["type"], obj


def _event(transport: Transport, line: bytes) -> Object:
    """A proxy that ends a watch may do so in the middle of a line."""
    try:
        event: Object = json.loads(line)
    except ValueError as error:
        raise unreachable(transport.target, error) from error
    return event


async def logs(transport: Transport, path: str, params: Mapping[str, str]) -> AsyncIterator[str]:
    """The lines of a log. Silence means nothing here: a program may have nothing to say for days."""
    async with transport.answer(Call("GET", path, params), stream=True) as answer:
        async for line in _lines(transport, answer, None):
            yield line.decode(errors="replace")


async def _lines(transport: Transport, answer: aiohttp.ClientResponse, silence: float | None) -> AsyncIterator[bytes]:
    """Lines of any length (an object may have a megabyte), without their ends."""
    parts: list[bytes] = []
    while True:
        try:
            async with asyncio.timeout(silence):
                content = await answer.content.readany()
        except (aiohttp.ClientError, OSError, ssl.SSLError, TimeoutError) as error:
            raise unreachable(transport.target, error) from error
        if not content:
            break
        *whole, rest = content.split(b"\n")
        for line in whole:
            parts.append(line)
            yield b"".join(parts).removesuffix(b"\r")
            parts.clear()
        if rest:
            parts.append(rest)
    if parts:
        yield b"".join(parts)
