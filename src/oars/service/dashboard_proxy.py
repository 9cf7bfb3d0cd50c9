"""A proxy on 127.0.0.1 that adds the cluster's token to the requests of a browser, for `oars dashboard`.

Every user of the machine can connect to it, and so can every page that a browser shows. So a request needs a path that
only the user knows: http://127.0.0.1:PORT/KEY/… A cookie would be worse: browsers send it to every port of 127.0.0.1.
The command line of a browser is visible to other users, so a browser is started with a URL that works once and leads to
the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from oars.base.connections import ConnectionServer
from oars.base.errors import OarsError
from oars.base.log import get_logger

HOST = "127.0.0.1"
OPEN = "open"  # first part of the path that works once
HEAD_BYTES = 2**16
HEAD_SECONDS = 30.0  # for a browser to send its headers
CONNECT_SECONDS = 10.0
READ_BYTES = 2**16
# Not passed on. Browsers send the cookies of all ports of 127.0.0.1. Origin names this proxy; the head would refuse it.
DROPPED_FROM_REQUEST = (
    "authorization", "connection", "cookie", "expect", "host", "keep-alive", "origin", "referer",
)  # fmt: skip
DROPPED_FROM_RESPONSE = ("connection", "keep-alive", "referrer-policy", "set-cookie")

Headers = Sequence[tuple[str, str]]

log = get_logger(__name__)


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message."""

    start: tuple[str, str, str]
    headers: Headers

    def get(self, name: str) -> str | None:
        found = [value for known, value in self.headers if known.lower() == name]
        return ",".join(found) if found else None

    @property
    def is_upgrade(self) -> bool:
        return "upgrade" in (self.get("connection") or "").lower()

    def encode(self) -> bytes:
        lines = [" ".join(self.start), *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_head(data: bytes) -> Head:
    """Raises ValueError."""
    if re.search(rb"\r(?!\n)|(?<!\r)\n|\0", data):
        raise ValueError("a header contains a line break")
    first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = []
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"invalid header {name!r}")
        headers.append((name, value.strip()))
    one, two, *rest = first.split(" ", 2)
    return Head((one, two, *(rest or [""])), headers)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Forward:
    """Send the request to the head, with this path."""

    path: str


@dataclass(frozen=True)
class Answer:
    """Reply without the head."""

    status: str
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Keys:
    """The parts of the path that only the user knows. `once` is empty after its use."""

    lasting: str
    once: str


def route(request: Head, keys: Keys, start: str) -> Forward | Answer:
    """What to do with a request. `start`: the path of the page that the one-time URL leads to."""
    method, path, _ = request.start
    host, origin = (request.get("host") or "").lower(), request.get("origin")
    if not _is_loopback(re.sub(r":\d*$", "", host).strip("[]")):  # DNS rebinding
        return Answer("403 Forbidden", "This proxy accepts requests to 127.0.0.1 or localhost only.")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return Answer("403 Forbidden", "This proxy refuses requests of other origins.")
    is_link = method == "GET" and request.get("sec-fetch-mode") == "navigate"
    if not is_link and request.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return Answer("403 Forbidden", "This proxy refuses requests of other sites.")
    first, _, rest = path.removeprefix("/").partition("/")
    if _equal(first, keys.lasting):
        return Forward(f"/{rest}")
    if first == OPEN and keys.once and _equal(rest, keys.once):
        keys.once = ""
        return Answer("303 See Other", headers={"Location": f"/{keys.lasting}{start}"})
    return Answer(
        "403 Forbidden", "Use the URL that `oars dashboard` prints. The one it opens in a browser works once."
    )


def _equal(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode(), key.encode())


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def request_for_head(request: Head, path: str, host: str, token: str) -> Head:
    """The request as the head gets it. It is the only one on its connection, so that nothing but its head needs to be
    understood here."""
    kept = [(name, value) for name, value in request.headers if not _is_dropped(name)]
    connection = "Upgrade" if request.is_upgrade else "close"
    added = [("Host", host), ("Connection", connection), ("Authorization", f"Bearer {token}")]
    return Head((request.start[0], path, "HTTP/1.1"), [*kept, *added])


def _is_dropped(name: str) -> bool:
    return name.lower() in DROPPED_FROM_REQUEST or name.lower().startswith("sec-fetch-")


def response_for_browser(response: Head, key: str, host: str) -> Head:
    """The response with redirections that stay below the key."""
    kept = []
    for name, value in response.headers:
        if name.lower() == "location":
            kept.append((name, re.sub(rf"^(http://{re.escape(host)})?/(?!/)", f"/{key}/", value)))
        elif name.lower() not in DROPPED_FROM_RESPONSE:
            kept.append((name, value))
    connection = "Upgrade" if response.start[1] == "101" else "close"
    return Head(response.start, [*kept, ("Connection", connection), ("Referrer-Policy", "same-origin")])


class DashboardProxy:
    """Serves the dashboard at `upstream` (a URL) until it is closed."""

    def __init__(self, upstream: str, token: str) -> None:
        parts = urlsplit(upstream)
        self._host = parts.netloc
        self._start = parts.path or "/"
        self._token = token
        self._keys = Keys(secrets.token_urlsafe(24), secrets.token_urlsafe(24))
        self._server = ConnectionServer(self._serve, (OSError, EOFError, ValueError, asyncio.LimitOverrunError))
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/{self._keys.lasting}{self._start}"

    @property
    def one_time_url(self) -> str:
        return f"http://{HOST}:{self._port}/{OPEN}/{self._keys.once}"

    async def start(self, port: int) -> None:
        """0: a free port. Raises OarsError if the port cannot be used."""
        try:
            self._port = await self._server.start(HOST, port, HEAD_BYTES)
        except OSError as error:
            raise OarsError(f"Port {port} cannot be used: {error.strerror}.", "Choose another one.") from error

    async def close(self) -> None:
        await self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        found = route(request, self._keys, self._start)
        if isinstance(found, Forward):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    head = await asyncio.open_connection(*self._host.rsplit(":", 1), limit=HEAD_BYTES)
            except OSError as error:
                found = Answer("502 Bad Gateway", f"The cluster's head does not answer: {error}.")
            else:
                await self._forward(
                    request_for_head(request, found.path, self._host, self._token), (reader, writer), head
                )
                return
        writer.write(_encode(found))
        await writer.drain()

    async def _forward(self, request: Head, browser: Streams, head: Streams) -> None:
        """Copy until the head closes the connection, or the browser does."""
        try:
            head[1].write(request.encode())
            up = asyncio.create_task(_copy(browser[0], head[1]))
            down = asyncio.create_task(self._receive(head[0], browser[1]))
            try:
                await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
                if down.done():
                    down.result()
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.wait([up, down])
        finally:
            head[1].close()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        response = parse_head(await reader.readuntil(b"\r\n\r\n"))
        writer.write(response_for_browser(response, self._keys.lasting, self._host).encode())
        await _copy(reader, writer)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()


def _encode(answer: Answer) -> bytes:
    text = f"{answer.text}\n".encode() if answer.text else b""
    fixed = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(text)), "Connection": "close"}
    headers = {**answer.headers, **fixed, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
    status, _, reason = answer.status.partition(" ")
    return Head(("HTTP/1.1", status, reason), list(headers.items())).encode() + text


@contextlib.asynccontextmanager
async def serve_dashboard(upstream: str, token: str, port: int) -> AsyncIterator[DashboardProxy]:
    proxy = DashboardProxy(upstream, token)
    await proxy.start(port)
    try:
        yield proxy
    finally:
        await proxy.close()
