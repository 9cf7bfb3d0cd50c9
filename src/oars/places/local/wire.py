"""The way to a head on this machine: HTTP on loopback, and a helper script beside it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.model import MemberId
from oars.places.http import FAULTS, Unreadable, answered, request, words
from oars.plan.fill import fill

HTTP_SECONDS = 4.0
ASK_SECONDS = 120.0

Launcher = Callable[[str, socket.socket], Awaitable[None]]


class Helper:
    """A head_helper.py that runs: one JSON line out, one in."""

    def __init__(self) -> None:
        self.busy = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self, script: str, starter: Launcher) -> None:
        ours, theirs = socket.socketpair()
        try:
            await starter(script, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=2**24)

    async def ask(self, request: Mapping[str, Any]) -> Any:
        assert self._reader is not None and self._writer is not None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                self._writer.write(json.dumps(request).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
        except FAULTS as error:
            self.close()
            raise EngineUnreachable(f"The helper beside the head does not answer: {words(error)}.") from error
        except asyncio.CancelledError:
            self.close()  # its answer would be taken for that to the next question
            raise
        if not line:
            self.close()
            raise EngineUnreachable("The helper beside the head ended.")
        try:
            return answered(line, "the helper beside the head")
        except Unreadable:
            self.close()
            raise

    @property
    def open(self) -> bool:
        return self._writer is not None and not self._writer.is_closing()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Helpers:
    """The helpers of one cluster. A long question (a drain) must not keep short ones waiting (who is there?), so there
    are as many helpers as questions at a time; being forked, each costs little."""

    def __init__(self, starter: Launcher) -> None:
        self._starter = starter
        self._key = ("", "")
        self._helpers: list[Helper] = []

    async def ask(self, script: str, incarnation: str, request: Mapping[str, Any]) -> Any:
        if self._key != (script, incarnation):
            self.close()
            self._key = (script, incarnation)
        self._helpers = [helper for helper in self._helpers if helper.open]
        idle = next((helper for helper in self._helpers if not helper.busy), None)
        helper = idle or Helper()
        helper.busy = True
        try:
            if idle is None:
                await helper.start(script, self._starter)
                self._helpers.append(helper)
            return await helper.ask(request)
        finally:
            helper.busy = False

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers = []


class LocalWire:
    """A snapshot of where everyone is, with the means to ask."""

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

    @property
    def answering(self) -> frozenset[MemberId]:
        return frozenset(self._incarnations)

    def fill(self, text: str) -> str:
        return fill(text, self._head_values)

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        address = self._addresses.get(MemberId("head"), {}).get(port)
        if address is None:
            raise EngineUnreachable("The head has not been started.")
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                return await request(address, path, method, body)
        except FAULTS as error:
            raise EngineUnreachable(f"http://{address}{path}: {words(error)}") from error

    async def ask(self, script: str, request: Mapping[str, Any]) -> Any:
        return await self._helpers.ask(script, self._incarnations.get(MemberId("head"), ""), request)
