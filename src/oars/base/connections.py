"""A TCP server that owns its connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

from oars.base.log import get_logger, pairs

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = get_logger(__name__)


class ConnectionServer:
    """Calls `handle` for each connection, and closes the connection afterwards. One that fails with one of `expected`,
    or that is still open when the server is closed, is reset."""

    def __init__(self, handle: Handler, expected: tuple[type[Exception], ...] = (OSError,)) -> None:
        self._handle = handle
        self._expected = expected
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int = 0, limit: int = 2**16) -> int:
        """Listen, and return the port. `limit`: of what a reader buffers."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=limit)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._handle(reader, writer)
        except self._expected as error:
            log.info(pairs("connection failed", error=str(error).partition("\n")[0] or type(error).__name__))
            _reset(writer)
        except asyncio.CancelledError:
            _reset(writer)  # do not re-raise: asyncio logs a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, so that its user sees an error and not the end of the data."""
    with suppress(OSError):
        handle = writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
