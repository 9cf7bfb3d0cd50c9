"""Forwards a local port to an address that this machine can dial, for proxies that only reach local ports."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from oars.base.connections import ConnectionServer

_READ_SIZE = 1 << 16


class Relay:
    """Listens on a port of 127.0.0.1."""

    def __init__(self, host: str, port: int, local_port: int = 0) -> None:
        self._host, self._port, self._local_port = host, port, local_port
        self._server = ConnectionServer(self._relay)

    async def start(self) -> int:
        """Return the local port."""
        return await self._server.start("127.0.0.1", self._local_port)

    async def close(self) -> None:
        await self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_SIZE):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
