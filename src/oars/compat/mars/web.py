"""A web service for a Mars cluster: passes requests on to the supervisor, wherever it is, with the cluster's token."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection

from oars.base.errors import OarsError

HEADER_BYTES = 65_536
CONNECT_SECONDS = 5.0
FIND_SECONDS = 2.0  # between two looks for the supervisor
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

FORBIDDEN = b"""HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n\r
mars-web accepts requests to an IP address, localhost or the name of its machine only; -a NAME adds a name.
"""

# host, port, token
Upstream = tuple[str, int, str]


class WebProxy:
    """`find` returns where the supervisor's web server is; it may move, and its token may change."""

    def __init__(self, find: Callable[[], Awaitable[Upstream]], say: Callable[[str], None]) -> None:
        self._find = find
        self._say = say
        self._upstream: Upstream | None = None
        self._names: Collection[str] = ()  # of this machine

    async def serve(self, host: str, port: int) -> None:
        """Serve until cancelled."""
        own = host, socket.gethostname(), await asyncio.to_thread(socket.getfqdn)
        self._names = {name.lower() for name in own}
        try:
            server = await asyncio.start_server(self._accept, host, port, limit=HEADER_BYTES)
        except OSError as error:
            raise OarsError(
                f"Cannot listen on {host}:{port}: {error.strerror or error}.", "Choose another -p."
            ) from error
        async with server:
            problem = ""
            while True:
                try:
                    found = await self._find()
                    if self._upstream is None:
                        self._say(f"connected to the scheduler; its web server is {found[0]}:{found[1]}")
                    self._upstream, problem = found, ""
                except (OSError, ValueError) as error:  # TimeoutError is an OSError
                    self._upstream, text = None, str(error) or type(error).__name__
                    if text != problem:
                        self._say(f"waiting for the scheduler: {text}")
                    problem = text
                await asyncio.sleep(FIND_SECONDS)  # poll: nobody announces that it moved

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()  # a side went away, or what came is no HTTP request

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: the token must be added to each."""
        header = await reader.readuntil(b"\r\n\r\n")
        if self._upstream is None or not is_for(header, self._names):
            writer.write(UNAVAILABLE if self._upstream is None else FORBIDDEN)
            await writer.drain()
            writer.close()
            return
        host, port, token = self._upstream
        async with asyncio.timeout(CONNECT_SECONDS):
            back_reader, back_writer = await asyncio.open_connection(host, port)
        back_writer.write(with_token(header, token))
        try:
            await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer))
        finally:
            back_writer.close()
            writer.close()


def is_for(header: bytes, names: Collection[str]) -> bool:
    """False if the request is for a name that is not this machine's. A page of another site can let its own name lead
    here (DNS rebinding): its requests are then no requests to another origin. It cannot do that with an address."""
    fields = (line.partition(b":") for line in header.split(b"\n"))
    hosts = (value.strip(b" \t\r") for name, _, value in fields if name.lower() == b"host")
    for host in hosts:
        name = re.sub(r":\d*$", "", host.decode("latin-1").lower()).strip("[]")
        if name not in (*names, "localhost") and not _is_address(name):
            return False
    return True


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def with_token(header: bytes, token: str) -> bytes:
    """The header of a request with the token, and with an end of the connection after the response."""
    first, *lines = header.removesuffix(b"\r\n\r\n").split(b"\r\n")
    dropped = (b"connection:", b"authorization:")
    kept = [line for line in lines if not line.lower().startswith(dropped)]
    added = [b"Connection: close", b"Authorization: Bearer " + token.encode()]
    return b"\r\n".join([first, *kept, *added]) + b"\r\n\r\n"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
