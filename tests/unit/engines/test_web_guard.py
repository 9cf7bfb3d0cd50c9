"""What the web server of a head refuses."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tornado.web import Application, RequestHandler, StaticFileHandler
from tornado.websocket import WebSocketHandler

from oars.engines import web_guard
from oars.engines.web_guard import check

TOKEN = {"Authorization": "Bearer known"}
LOCAL = {"Host": "127.0.0.1:2000", **TOKEN}
SERVICE = {"Host": "demo-head.team:7104", **TOKEN}
LOOPBACK, ALL = "127.0.0.1", "0.0.0.0"


@pytest.mark.parametrize(
    ("bind", "headers", "status"),
    [
        # the token
        (LOOPBACK, LOCAL, None),
        (LOOPBACK, {"Host": "127.0.0.1:2000"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": ""}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "known"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "Bearer know"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "Bearer knownn"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "bearer known"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "Basic known"}, 401),
        (LOOPBACK, {**LOCAL, "Authorization": "Bearer known,Bearer other"}, 401),  # the header was sent twice
        (LOOPBACK, {**LOCAL, "Authorization": "Bearer kn\u00f6wn"}, 401),
        # Host
        (LOOPBACK, {**LOCAL, "Host": "localhost:2000"}, None),
        (LOOPBACK, {**LOCAL, "Host": "LOCALHOST"}, None),
        (LOOPBACK, {**LOCAL, "Host": "[::1]:2000"}, None),
        (LOOPBACK, {**LOCAL, "Host": "127.0.0.2"}, None),
        (LOOPBACK, {**LOCAL, "Host": "evil.example:2000"}, 403),
        (LOOPBACK, {**LOCAL, "Host": "127.0.0.1.evil.example:2000"}, 403),
        (LOOPBACK, {**LOCAL, "Host": "localhost.evil.example"}, 403),
        (LOOPBACK, {**LOCAL, "Host": "192.168.1.2:2000"}, 403),
        (LOOPBACK, {**LOCAL, "Host": "evil.example@127.0.0.1"}, 403),
        (LOOPBACK, {**LOCAL, "Host": ""}, 403),
        (LOOPBACK, TOKEN, 403),
        (ALL, SERVICE, None),
        (ALL, {**SERVICE, "Host": "lb.example.org:7104"}, None),
        (ALL, {"Host": "lb.example.org:7104"}, 401),
        # Origin
        (LOOPBACK, {**LOCAL, "Origin": "http://127.0.0.1:2000"}, None),
        (LOOPBACK, {**LOCAL, "Origin": "http://127.0.0.1:2001"}, 403),
        (LOOPBACK, {**LOCAL, "Origin": "http://localhost:2000"}, 403),
        (LOOPBACK, {**LOCAL, "Origin": "https://evil.example"}, 403),
        (LOOPBACK, {**LOCAL, "Origin": "null"}, 403),
        (LOOPBACK, {**LOCAL, "Origin": ""}, 403),
        (LOOPBACK, {**LOCAL, "Origin": "http://["}, 403),
        (ALL, {**SERVICE, "Origin": "http://demo-head.team:7104"}, None),
        (ALL, {**SERVICE, "Host": "demo.example.org", "Origin": "https://demo.example.org"}, None),  # an Ingress
        (ALL, {**SERVICE, "Origin": "https://evil.example"}, 403),
        # Sec-Fetch-Site
        (LOOPBACK, {**LOCAL, "Sec-Fetch-Site": "same-origin"}, None),
        (LOOPBACK, {**LOCAL, "Sec-Fetch-Site": "none"}, None),
        (LOOPBACK, {**LOCAL, "Sec-Fetch-Site": "same-site"}, 403),
        (LOOPBACK, {**LOCAL, "Sec-Fetch-Site": "cross-site"}, 403),
        (ALL, {**SERVICE, "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)  # fmt: skip
def test_requests_that_are_refused(bind: str, headers: Mapping[str, str], status: int | None) -> None:
    refusal = check("/api/session/x/task", headers, "known", bind)
    assert (refusal.status if refusal else None) == status
    for path in ("/health", "/api/oars/health"):
        assert check(path, headers, "known", bind) is None
    for path in ("/health/", "/health/../api/session", "//health", "/api/oars/health?x", "/"):
        assert (check(path, headers, "known", bind) is None) == (status is None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (SERVICE, None), ({"Host": "lb.example.org:7104"}, None), ({"Host": "demo.example.org"}, None),
        ({"Host": "demo.example.org", "Origin": "https://evil.example"}, 403),
        ({"Host": "demo.example.org", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)  # fmt: skip
def test_other_sites_are_refused_where_no_token_is_needed(headers: Mapping[str, str], status: int | None) -> None:
    without = {name: value for name, value in headers.items() if name != "Authorization"}
    refusal = check("/api/session/x/task", without, None, ALL)
    assert (refusal.status if refusal else None) == status


class Recorder(RequestHandler):
    """Records the bodies that it got."""

    def initialize(self, ran: list[bytes]) -> None:
        self.ran = ran

    def post(self) -> None:
        self.ran.append(self.request.body)
        self.write("done")

    get = post


class Socket(WebSocketHandler):
    def initialize(self, ran: list[bytes]) -> None:
        self.ran = ran

    def open(self, *_: str) -> None:
        self.ran.append(b"opened")


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Application, "find_handler", Application.find_handler)  # restored afterwards
    web_guard.install("known", LOOPBACK)
    yield


UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
BODY = "Content-Length: 6\r\n"


@pytest.mark.parametrize(
    ("line", "more", "ran"),
    [
        ("POST /page", BODY, [b"pickle"]),
        ("GET /page", "", [b""]),
        ("GET /socket", UPGRADE, [b"opened"]),
        ("GET /static/file.txt", "", []),
        ("GET /nothing", "", []),
        ("GET /missing/../page", "", []),
        ("HEAD /page", "", []),
    ],
)
def test_nothing_runs_without_the_token(guarded: None, line: str, more: str, ran: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("static")
    received: list[bytes] = []
    handlers: list[Any] = [
        ("/page", Recorder, {"ran": received}),
        ("/socket", Socket, {"ran": received}),
        ("/static/(.*)", StaticFileHandler, {"path": str(tmp_path)}),
    ]

    async def ask(port: int, headers: str) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        text = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}{more}"
        closes = "" if "Upgrade" in more else "Connection: close\r\n"
        writer.write(f"{text}{closes}\r\n".encode() + (b"pickle" if more == BODY else b""))
        try:
            async with asyncio.timeout(10):
                return await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()

    async def story() -> None:
        server = Application(handlers).listen(0, LOOPBACK)
        port = next(iter(server._sockets.values())).getsockname()[1]
        for headers in ("", "Authorization: Bearer wrong\r\n"):
            assert (await ask(port, headers)).startswith(b"HTTP/1.1 401 This server requires the cluster's token")
        token = "Authorization: Bearer known\r\n"
        for headers in ("Origin: https://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"):
            assert (await ask(port, token + headers)).startswith(b"HTTP/1.1 403 ")
        assert received == []
        assert not (await ask(port, token)).startswith((b"HTTP/1.1 401", b"HTTP/1.1 403"))
        server.stop()
        await server.close_all_connections()

    asyncio.run(story())
    assert received == ran


def test_body_without_a_token_is_not_kept_in_memory(guarded: None) -> None:
    """The reply comes before the body."""

    async def story() -> None:
        server = Application([]).listen(0, LOOPBACK)
        port = next(iter(server._sockets.values())).getsockname()[1]
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        server.stop()
        await server.close_all_connections()

    asyncio.run(story())


@pytest.mark.parametrize("token", [None, ""])
def test_script_fails_without_a_token(token: str | None, tmp_path: Path) -> None:
    """A head that cannot be protected does not start."""
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    env = {**os.environ, "OARS_TOKEN_FILE": str(file), "OARS_WEB_BIND": LOOPBACK}
    done = subprocess.run([sys.executable, web_guard.__file__], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and ("No such file" in done.stderr or "token is empty" in done.stderr)


@pytest.mark.parametrize(("auth", "status"), [("none", 200), ("token", 401), (None, 401)])
def test_script_requires_the_token_unless_it_is_switched_off(auth: str | None, status: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("known")
    program = (
        "import asyncio, runpy, sys, urllib.error, urllib.request\n"
        "from tornado.web import Application, RequestHandler\n"
        "from tornado.httpserver import HTTPServer\n"
        "from tornado.netutil import bind_sockets\n"
        "runpy.run_path(sys.argv[1])\n"
        "Page = type('Page', (RequestHandler,), {'get': lambda self: self.write('done')})\n"
        "async def main():\n"
        "    server, (socket, *_) = HTTPServer(Application([('/', Page)])), bind_sockets(0, '127.0.0.1')\n"
        "    server.add_sockets([socket])\n"
        "    def read():\n"
        "        try:\n"
        "            return urllib.request.urlopen(f'http://127.0.0.1:{socket.getsockname()[1]}/').status\n"
        "        except urllib.error.HTTPError as error:\n"
        "            return error.code\n"
        "    print(await asyncio.to_thread(read))\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "OARS_TOKEN_FILE": str(tmp_path / "token"), "OARS_WEB_BIND": LOOPBACK}
    env |= {"OARS_WEB_AUTH": auth} if auth else {}
    command = [sys.executable, "-c", program, web_guard.__file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{status}\n"
