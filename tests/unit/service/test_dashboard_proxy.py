"""The proxy of `oars dashboard`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from oars.base.errors import OarsError
from oars.service.dashboard_proxy import (
    Answer,
    DashboardProxy,
    Forward,
    Head,
    Keys,
    parse_head,
    response_for_browser,
    route,
    serve_dashboard,
)

HERE = {"Host": "127.0.0.1:5000"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}


def request(path: str, headers: Mapping[str, str], method: str = "GET") -> Head:
    return Head((method, path, "HTTP/1.1"), list(headers.items()))


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        # the path
        ("/key/status", HERE, Forward("/status")),
        ("/key/", HERE, Forward("/")),
        ("/key/a/../b?x=/key/", HERE, Forward("/a/../b?x=/key/")),
        ("/key//evil.example/", HERE, Forward("//evil.example/")),
        ("/status", HERE, "403"),
        ("/", HERE, "403"),
        ("/ke/status", HERE, "403"),
        ("/keyy/status", HERE, "403"),
        ("/KEY/status", HERE, "403"),
        ("//key/status", HERE, "403"),
        ("/x/key/status", HERE, "403"),
        ("/k\u00e9y/status", HERE, "403"),
        ("http://127.0.0.1:5000/key/", HERE, "403"),
        ("/open/once", HERE, "303"),
        ("/open/onc", HERE, "403"),
        ("/open/", HERE, "403"),
        ("/once/status", HERE, "403"),
        # Host
        ("/key/", {"Host": "localhost:9"}, Forward("/")),
        ("/key/", {"Host": "[::1]:9"}, Forward("/")),
        ("/key/", {"Host": "evil.example:5000"}, "403"),
        ("/key/", {"Host": "192.168.0.1:5000"}, "403"),
        ("/key/", {}, "403"),
        ("/open/once", {"Host": "evil.example:5000"}, "403"),
        # Origin
        ("/key/ws", {**HERE, "Origin": "http://127.0.0.1:5000"}, Forward("/ws")),
        ("/key/ws", {**HERE, "Origin": "http://127.0.0.1:5001"}, "403"),
        ("/key/ws", {**HERE, "Origin": "http://localhost:5000"}, "403"),
        ("/key/ws", {**HERE, "Origin": "null"}, "403"),
        # Sec-Fetch-Site
        ("/key/", {**HERE, "Sec-Fetch-Site": "none"}, Forward("/")),
        ("/key/", {**HERE, "Sec-Fetch-Site": "same-origin"}, Forward("/")),
        ("/key/", {**HERE, "Sec-Fetch-Site": "cross-site"}, "403"),
        ("/key/", {**HERE, "Sec-Fetch-Site": "same-site"}, "403"),
        ("/key/", {**HERE, **LINK}, Forward("/")),  # a link that the user follows, from a notebook for example
        ("/open/once", {**HERE, **LINK}, "303"),
    ],
)
def test_requests_that_are_forwarded(path: str, headers: Mapping[str, str], expected: Forward | str) -> None:
    found = route(request(path, headers), Keys("key", "once"), "/status")
    assert (found.status[:3] if isinstance(found, Answer) else found) == expected


def test_form_of_another_site_is_refused() -> None:
    assert isinstance(route(request("/key/", {**HERE, **LINK}, "POST"), Keys("key", "once"), "/"), Answer)


def test_url_for_the_browser_works_once() -> None:
    keys = Keys("key", "once")
    first, second = [route(request("/open/once", HERE), keys, "/status") for _ in range(2)]
    assert isinstance(first, Answer) and first.headers == {"Location": "/key/status"}
    assert isinstance(second, Answer) and second.status.startswith("403") and "works once" in second.text
    assert isinstance(route(request("/open/", HERE), keys, "/status"), Answer), "an empty key is no key"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/status", "/key/status"),
        ("status", "status"),
        ("http://127.0.0.1:8787/status", "/key/status"),
        ("https://dask.org/", "https://dask.org/"),
        ("//dask.org/", "//dask.org/"),
    ],
)
def test_redirections_stay_below_the_key(location: str, expected: str) -> None:
    response = Head(("HTTP/1.1", "302", "Found"), [("Location", location), ("Set-Cookie", "a=b")])
    headers = response_for_browser(response, "key", "127.0.0.1:8787").headers
    assert headers == [("Location", expected), ("Connection", "close"), ("Referrer-Policy", "same-origin")]


@pytest.mark.parametrize(
    "text",
    [
        "GET",
        "GET / HTTP/1.1\r\na: b\nc: d",
        "GET /\rX HTTP/1.1",
        "GET / HTTP/1.1\r\nno header",
        "GET / HTTP/1.1\r\n folded: x",
        "G / H\r\n: x",
    ],
)
def test_malformed_head_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse_head(f"{text}\r\n\r\n".encode())


class Engine:
    """A web server that records requests. /stream waits for `resume` between two chunks; a WebSocket echoes bytes."""

    def __init__(self) -> None:
        self.requests: list[Head] = []
        self.bodies: list[bytes] = []
        self.resume = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = parse_head(await reader.readuntil(b"\r\n\r\n"))
        self.requests.append(found)
        if found.is_upgrade:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while data := await reader.read(100):
                writer.write(data[::-1])
        elif found.start[1] == "/stream":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
            await self.resume.wait()
            writer.write(b"second")
        else:
            self.bodies.append(await reader.readexactly(int(found.get("content-length") or 0)))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\n\r\npage")
        writer.close()
        self.ended.set()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Engine, DashboardProxy]]:
    engine = Engine()
    async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(20), serve_dashboard(f"http://127.0.0.1:{port}/status", "known", 0) as proxy:
            yield engine, proxy


class Browser:
    """One connection to the proxy."""

    @classmethod
    async def open(cls, url: str, *headers: str, method: str = "GET", body: bytes = b"") -> Browser:
        browser, parts = cls(), urlsplit(url)
        browser.reader, browser.writer = await asyncio.open_connection(parts.hostname, parts.port)
        lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *headers]
        browser.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        browser.response = parse_head(await browser.reader.readuntil(b"\r\n\r\n"))
        return browser

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    response: Head

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def test_head_gets_the_token_and_nothing_of_the_browser_s_own() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            own = ["Cookie: other=1", "Authorization: Bearer mine", "Sec-Fetch-Site: same-origin", "Accept: text/html",
                   f"Referer: {proxy.url}", "Content-Length: 4"]  # fmt: skip
            browser = await Browser.open(proxy.url, *own, method="POST", body=b"body")
            assert browser.response.start[1] == "200" and await browser.reader.read() == b"page"
            assert browser.response.get("set-cookie") is None
            assert browser.response.get("referrer-policy") == "same-origin"
            (got,) = engine.requests
            assert got.start == ("POST", "/status", "HTTP/1.1") and engine.bodies == [b"body"]
            assert {name: value for name, value in got.headers if name != "Host"} == {
                "Accept": "text/html", "Content-Length": "4", "Connection": "close", "Authorization": "Bearer known",
            }  # fmt: skip
            await browser.close()

    asyncio.run(story())


def test_one_time_url_leads_to_the_page() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            url = proxy.one_time_url
            first = await Browser.open(url)
            assert first.response.start[1] == "303" and first.response.get("location") == urlsplit(proxy.url).path
            second = await Browser.open(url)
            assert second.response.start[1] == "403" and b"works once" in await second.reader.read()
            assert engine.requests == []
            for browser in (first, second):
                await browser.close()

    asyncio.run(story())


def test_wrong_path_does_not_reach_the_head() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            for path in ("/", "/status", "/open/x", "/static/x"):
                browser = await Browser.open(f"http://{urlsplit(proxy.url).netloc}{path}")
                assert browser.response.start[1] == "403"
                await browser.close()
            assert engine.requests == []

    asyncio.run(story())


def test_data_is_passed_on_as_it_arrives() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            browser = await Browser.open(proxy.url.replace("/status", "/stream"))
            assert await browser.reader.readexactly(5) == b"first"
            engine.resume.set()
            assert await browser.reader.read() == b"second"
            await browser.close()

    asyncio.run(story())


def test_websocket_carries_data_both_ways_until_the_browser_closes_it() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            upgrade = ["Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: k",
                       f"Origin: http://{urlsplit(proxy.url).netloc}"]  # fmt: skip
            browser = await Browser.open(proxy.url, *upgrade)
            assert browser.response.start[1] == "101" and browser.response.get("connection") == "Upgrade"
            for message in (b"one", b"two"):
                browser.writer.write(message)
                assert await browser.reader.readexactly(3) == message[::-1]
            assert engine.requests[0].get("sec-websocket-key") == "k" and engine.requests[0].get("origin") is None
            await browser.close()
            await engine.ended.wait()
            other = await Browser.open(proxy.url, *upgrade[:3], "Origin: https://evil.example")
            assert other.response.start[1] == "403" and len(engine.requests) == 1
            await other.close()

    asyncio.run(story())


def test_closing_ends_open_connections() -> None:
    async def story() -> None:
        async with proxied() as (engine, proxy):
            browser = await Browser.open(proxy.url, "Connection: Upgrade", "Upgrade: websocket")
            await proxy.close()
            with pytest.raises(ConnectionResetError):
                await browser.reader.read()
            await engine.ended.wait()

    asyncio.run(story())


def test_silent_head_is_reported() -> None:
    async def story() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        async with serve_dashboard(f"http://127.0.0.1:{port}", "known", 0) as proxy:
            assert proxy.url.endswith("/")
            browser = await Browser.open(proxy.url)
            assert browser.response.start[1] == "502" and b"does not answer" in await browser.reader.read()
            await browser.close()
            with pytest.raises(OarsError, match=f"Port {urlsplit(proxy.url).port} cannot be used"):
                await DashboardProxy("http://127.0.0.1:1", "known").start(urlsplit(proxy.url).port or 0)

    asyncio.run(story())


def test_every_proxy_has_its_own_keys() -> None:
    urls = [each for _ in range(2) for each in vars(DashboardProxy("http://127.0.0.1:1", "known")._keys).values()]
    assert len(set(urls)) == 4 and all(len(each) >= 32 for each in urls)
