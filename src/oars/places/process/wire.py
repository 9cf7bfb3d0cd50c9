"""Connections to a head that is a process: HTTP to its ports, and helper scripts on the same machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import ASK_SECONDS
from oars.model import HEAD, MemberId
from oars.places.http import FAULTS, InvalidReply, describe_error, parse_reply, request
from oars.places.process.machine import Streams
from oars.plan.fill import fill

HTTP_SECONDS = 4.0

StartHelper = Callable[[str], Awaitable[Streams]]


class Helper:
    """A running helper script: one JSON line per request, one per reply."""

    def __init__(self) -> None:
        self.busy = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self, script: str, start_helper: StartHelper) -> None:
        self._reader, self._writer = await start_helper(script)

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        assert self._reader is not None and self._writer is not None
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(json.dumps(request).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
        except FAULTS as error:
            self.close()
            raise EngineUnreachable(f"The helper beside the head does not answer: {describe_error(error)}.") from error
        except asyncio.CancelledError:
            self.close()  # otherwise its reply would be read as the reply to the next request
            raise
        if not line:
            self.close()
            raise EngineUnreachable("The helper beside the head ended.")
        try:
            return parse_reply(line, "the helper beside the head")
        except InvalidReply:
            self.close()
            raise

    @property
    def open(self) -> bool:
        return self._writer is not None and not self._writer.is_closing()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Helpers:
    """The helpers of one cluster: one per concurrent request, so that a drain does not delay short requests."""

    def __init__(self, start_helper: StartHelper) -> None:
        self._start_helper = start_helper
        self._key = ("", "")
        self._helpers: list[Helper] = []

    async def ask(self, script: str, incarnation: str, request: Mapping[str, Any], seconds: float = ASK_SECONDS) -> Any:
        if self._key != (script, incarnation):
            self.close()
            self._key = (script, incarnation)
        self._helpers = [helper for helper in self._helpers if helper.open]
        idle = next((helper for helper in self._helpers if not helper.busy), None)
        helper = idle or Helper()
        helper.busy = True
        try:
            if idle is None:
                await helper.start(script, self._start_helper)
                self._helpers.append(helper)
            return await helper.ask(request, seconds)
        finally:
            helper.busy = False

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers = []


class ProcessWire:
    """A snapshot of the members' addresses, with the means to send requests to the head."""

    def __init__(
        self,
        addresses: Mapping[MemberId, Mapping[str, str]],
        incarnations: Mapping[MemberId, str],
        head_values: Mapping[str, str],
        helpers: Helpers,
    ) -> None:
        self._addresses = addresses
        self._incarnations = incarnations
        self._head_values = head_values
        self._helpers = helpers

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        return self._addresses

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        return self._incarnations

    def fill(self, text: str) -> str:
        return fill(text, self._head_values)

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        address = self._addresses.get(HEAD, {}).get(port)
        if address is None:
            raise EngineUnreachable("The head has not been started.")
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                return await request(address, path, method, body)
        except FAULTS as error:
            raise EngineUnreachable(f"http://{address}{path}: {describe_error(error)}") from error

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        return await self._helpers.ask(script, self._incarnations.get(HEAD, ""), request, seconds)
