"""Connections to a head that is a process: HTTP to its ports, and helper scripts on the same machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import ASK_SECONDS
from oars.model import HEAD, MemberId
from oars.places.http import FAULTS, InvalidReply, bearer, describe_error, parse_reply, request
from oars.places.process.machine import Streams
from oars.plan.fill import fill

HTTP_SECONDS = 4.0
MAX_HELPERS = 4  # requests at a time; each has a process that has imported the engine

StartHelper = Callable[[str], Awaitable[Streams]]


class Helper:
    """A running helper script: one JSON line per request, one per reply."""

    def __init__(self, streams: Streams) -> None:
        self.is_busy = False
        self._reader, self._writer = streams

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """Closes the helper after anything but a reply: what it still sends is no reply to the next request."""
        is_in_step = False
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(json.dumps(request).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            if not line:
                raise EngineUnreachable("The helper beside the head ended.")
            is_in_step = True
            return parse_reply(line, "the helper beside the head")
        except InvalidReply:
            is_in_step = False
            raise
        except FAULTS as error:
            raise EngineUnreachable(f"The helper beside the head does not answer: {describe_error(error)}.") from error
        finally:
            if not is_in_step:
                self.close()

    @property
    def is_open(self) -> bool:
        return not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()


class Helpers:
    """The helpers of one cluster: one per concurrent request, so that a drain does not delay short requests."""

    def __init__(self, start_helper: StartHelper) -> None:
        self._start_helper = start_helper
        self._key = ("", "")
        self._starting = 0
        self._helpers: list[Helper] = []

    async def ask(self, script: str, incarnation: str, request: Mapping[str, Any], seconds: float = ASK_SECONDS) -> Any:
        if self._key != (script, incarnation):
            self.close()
            self._key = (script, incarnation)
        self._helpers = [helper for helper in self._helpers if helper.is_open]
        helper = next((helper for helper in self._helpers if not helper.is_busy), None)
        if helper is None:
            if len(self._helpers) + self._starting >= MAX_HELPERS:
                raise EngineUnreachable(f"The helper beside the head is busy with {MAX_HELPERS} requests.")
            helper = await self._start(script)
        helper.is_busy = True
        try:
            return await helper.ask(request, seconds)
        finally:
            helper.is_busy = False

    async def _start(self, script: str) -> Helper:
        key = self._key
        self._starting += 1
        try:
            helper = Helper(await self._start_helper(script))
        finally:
            self._starting -= 1
        if self._key != key:
            helper.close()
            raise EngineUnreachable("The head was replaced meanwhile.")
        self._helpers.append(helper)
        return helper

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers = []


@dataclass(frozen=True)
class ProcessWire:
    """A snapshot of the members' addresses, with the means to send requests to the head. `tokens`: by name of the
    head's port."""

    addresses: Mapping[MemberId, Mapping[str, str]]
    incarnations: Mapping[MemberId, str]
    head_values: Mapping[str, str]
    helpers: Helpers
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)

    def fill(self, text: str) -> str:
        return fill(text, self.head_values)

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        address = self.addresses.get(HEAD, {}).get(port)
        if address is None:
            raise EngineUnreachable("The head has not been started.")
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                return await request(address, path, method, body, bearer(self.tokens.get(port, "")))
        except FAULTS as error:
            raise EngineUnreachable(f"http://{address}{path}: {describe_error(error)}") from error

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        return await self.helpers.ask(script, self.incarnations.get(HEAD, ""), request, seconds)
