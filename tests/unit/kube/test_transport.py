"""Requests to a server with scripted faults: retries, timeouts, watches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from oars.base.errors import OarsError
from oars.kube import transport
from oars.kube.client import Client
from oars.kube.errors import ApiError, ConfigError, Unreachable
from oars.kube.kinds import CONFIG_MAP, POD
from oars.kube.target import Target

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "managedFields": [1]}}


class Server:
    """Answers each request with the next step of the script, and with an object when there are none left."""

    def __init__(self, *script: Handler | int) -> None:
        self.script = list(script)
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(json.loads(await request.text() or "null"))
        step = self.script.pop(0) if self.script else 200
        if callable(step):
            return await step(request)
        headers = {"Retry-After": "0"} if step == 429 else {}
        return web.json_response(
            OBJECT if step == 200 else {"kind": "Status", "code": step}, status=step, headers=headers
        )

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Client]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        target = Target(self.url, **options.pop("target", {}))
        try:
            async with Client(target, **options) as client:
                yield client
        finally:
            await runner.cleanup()


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


async def sleep(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_DELAY", 0.001)


def test_managed_fields_are_removed() -> None:
    async def body() -> None:
        server = Server()
        async with server.running(target={"namespace": "team"}) as client:
            assert await client.get(CONFIG_MAP, "a") == {**OBJECT, "metadata": {"name": "a"}}
        (request,) = server.requests
        assert request.path == "/api/v1/namespaces/team/configmaps/a"
        assert request.headers["User-Agent"] == "oars"

    asyncio.run(body())


def test_closed_client_opens_no_other_session() -> None:
    async def body() -> None:
        server = Server()
        async with server.running() as client:
            await client.close()
            with pytest.raises(OarsError, match="is closed"):
                await client.get(CONFIG_MAP, "a")
        assert not server.requests

    asyncio.run(body())


@pytest.mark.parametrize("script", [(500, 503), (hang_up, 500), (429,) * 5])
def test_idempotent_requests_are_retried(script: tuple[Any, ...]) -> None:
    async def body() -> None:
        server = Server(*script)
        async with server.running() as client:
            await client.get(CONFIG_MAP, "a")
            await client.apply(OBJECT)
        # aiohttp itself retries a GET once when the connection breaks.
        assert len(server.requests) >= len(script) + 2

    asyncio.run(body())


@pytest.mark.parametrize(("step", "expected"), [(500, ApiError), (hang_up, Unreachable)])
def test_create_is_not_retried(step: Any, expected: type[Exception]) -> None:
    async def body() -> None:
        server = Server(step)
        async with server.running() as client:
            with pytest.raises(expected):
                await client.create(OBJECT)
            assert len(server.requests) == 1
            server.script = [429]
            await client.create(OBJECT)  # retried: the server did not process the request

    asyncio.run(body())


def test_number_of_attempts_is_limited() -> None:
    async def body() -> None:
        server = Server(*[429] * 50)
        async with server.running() as client:
            with pytest.raises(ApiError) as throttled:
                await client.get(CONFIG_MAP, "a")
            assert (throttled.value.reason, len(server.requests)) == ("TooManyRequests", transport.THROTTLED_ATTEMPTS)
            server.script = [500] * 50
            with pytest.raises(ApiError):
                await client.get(CONFIG_MAP, "a")
            assert len(server.requests) == transport.THROTTLED_ATTEMPTS + transport.ATTEMPTS

    asyncio.run(body())


def test_timeout_is_not_retried() -> None:
    async def body() -> None:
        server = Server(sleep)
        async with server.running(timeout=0.3) as client:
            started = time.monotonic()
            with pytest.raises(Unreachable, match="Timed out waiting for API server") as late:
                await client.get(CONFIG_MAP, "a")
            assert time.monotonic() - started < 20
            assert server.url in str(late.value) and late.value.hint

    asyncio.run(body())


def test_refused_connection_is_unreachable() -> None:
    async def body() -> None:
        async with Client(Target("https://127.0.0.1:1", context="lab")) as client:
            with pytest.raises(Unreachable, match=r"Cannot reach API server https://127.0.0.1:1 of context 'lab'"):
                await client.create(OBJECT)

    asyncio.run(body())


def test_rejected_credentials_are_renewed_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def rotate(_request: web.Request) -> web.StreamResponse:
        token.write_text("new")
        return web.json_response({}, status=401)

    async def body() -> None:
        server = Server(rotate)
        async with server.running(target={"token_file": str(token)}) as client:
            await client.create(OBJECT)
            server.script = [401, 401]
            with pytest.raises(ApiError) as rejected:
                await client.get(CONFIG_MAP, "a")
        assert rejected.value.status == 401
        assert [request.headers["Authorization"] for request in server.requests[:2]] == ["Bearer old", "Bearer new"]
        assert len(server.requests) == 3, "an unchanged token is not sent again"

    asyncio.run(body())


def test_http_proxy_is_used_and_socks_is_rejected() -> None:
    async def body() -> None:
        server = Server()
        async with server.running() as client:
            target = Target("http://nowhere.invalid:80", proxy_url=client.target.server)
            async with Client(target) as proxied:
                await proxied.get(CONFIG_MAP, "a", "x")
            assert str(server.requests[0].url).startswith("http://nowhere.invalid/")

    asyncio.run(body())
    with pytest.raises(ConfigError, match="proxy scheme 'socks5'"):
        Client(Target("https://k", proxy_url="socks5://p"))


def test_list_with_an_expired_continue_token_is_read_in_one_piece() -> None:
    def page(names: list[str], more: str) -> Handler:
        async def handler(_request: web.Request) -> web.StreamResponse:
            items = [{"metadata": {"name": name, "managedFields": []}} for name in names]
            return web.json_response({"items": items, "metadata": {"resourceVersion": "7", "continue": more}})

        return handler

    async def body() -> None:
        server = Server(page(["a"], "m"), page(["b"], ""), page(["a"], "m"), 410, page(["a", "b"], ""))
        async with server.running() as client:
            for _ in range(2):
                listing = await client.list(POD, "n", labels="k=v")
                assert [item["metadata"] for item in listing.items] == [{"name": "a"}, {"name": "b"}]
                assert (listing.items[0]["kind"], listing.resource_version) == ("Pod", "7")
        assert [request.query.get("continue") for request in server.requests] == [None, "m", None, "m", None]
        assert [request.query.get("limit") for request in server.requests][-1] is None
        assert {request.query["labelSelector"] for request in server.requests} == {"k=v"}

    asyncio.run(body())


def stream(*parts: bytes, then: str = "end") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
            await asyncio.sleep(0.01)
        if then == "cut":
            return await hang_up(request)
        if then == "silence":
            await asyncio.sleep(30)
        return answer

    return handler


def event(kind: str, version: int, **parts: Any) -> bytes:
    return (
        json.dumps({"type": kind, "object": {"metadata": {"resourceVersion": str(version)}, **parts}}).encode() + b"\n"
    )


async def collected(client: Client) -> list[str]:
    events = client.watch(POD, "n", resource_version="1")
    return [f"{kind} {obj['metadata']['resourceVersion']}" async for kind, obj in events]


def test_watch_yields_one_event_per_line() -> None:
    long = event("ADDED", 2, data="x" * 500_000)
    text = long + event("BOOKMARK", 3) + event("DELETED", 4)
    parts = [text[start : start + 70_001] for start in range(0, len(text), 70_001)]

    async def body() -> None:
        server = Server(stream(*parts))
        async with server.running() as client:
            assert await collected(client) == ["ADDED 2", "BOOKMARK 3", "DELETED 4"]
        query = server.requests[0].query
        assert (query["watch"], query["allowWatchBookmarks"], query["resourceVersion"]) == ("true", "true", "1")
        assert 300 <= int(query["timeoutSeconds"]) <= 600

    asyncio.run(body())


@pytest.mark.parametrize("then", ["cut", "silence"])
def test_broken_or_silent_watch_is_unreachable(then: str) -> None:
    async def body() -> None:
        async with Server(stream(event("ADDED", 2), then=then)).running(watch_idle_timeout=0.4) as client:
            with pytest.raises(Unreachable):
                await collected(client)

    asyncio.run(body())


def test_watch_closed_within_a_line_is_unreachable() -> None:
    async def body() -> None:
        async with Server(stream(event("ADDED", 2), event("MODIFIED", 3)[:20])).running() as client:
            with pytest.raises(Unreachable):
                await collected(client)

    asyncio.run(body())


def test_expired_watch_raises_410() -> None:
    gone = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode()

    async def body() -> None:
        async with Server(stream(gone + b"\n")).running() as client:
            with pytest.raises(ApiError) as error:
                await collected(client)
        assert (error.value.status, error.value.reason) == (410, "Expired")

    asyncio.run(body())


TIMESTAMP = "2026-11-16T03:33:08.09Z"


def test_logs_yields_lines() -> None:
    async def body() -> None:
        server = Server(stream(b"one\ntw", b"o\r\n\n\xff", b" end"))
        async with server.running() as client:
            found = client.logs("p", "n", container="c", tail=5, previous=True, since=TIMESTAMP, limit_bytes=99)
            lines = [line async for line in found]
        assert lines == ["one", "two", "", "\ufffd end"]
        query = dict(server.requests[0].query)
        wanted = {"container": "c", "tailLines": "5", "previous": "true", "sinceTime": TIMESTAMP, "limitBytes": "99"}
        assert query == wanted

    asyncio.run(body())


def test_long_line_of_a_log_comes_in_pieces() -> None:
    """A program may print for ever without a line end."""
    long = b"x" * 5_000_000

    async def body() -> None:
        async with Server(stream(b"one\n", long, b"\ntwo")).running() as client:
            lines = [line async for line in client.logs("p", "n", line_bytes=100_000)]
        assert max(map(len, lines)) < 1_000_000
        assert "".join(lines) == f"one{long.decode()}two"
        assert lines[0] == "one" and lines[-1] == "two"

    asyncio.run(body())


def test_delete_options() -> None:
    async def body() -> None:
        server = Server(200, 404, 409)
        async with server.running() as client:
            assert await client.delete(POD, "p", "n", grace=0, uid="u")
            assert not await client.delete(POD, "p", "n", propagation="Foreground")
            with pytest.raises(ApiError, match="Conflict"):
                await client.delete(POD, "p", "n")
        first, second = server.bodies[:2]
        assert first["preconditions"] == {"uid": "u"} and first["gracePeriodSeconds"] == 0
        assert second["propagationPolicy"] == "Foreground" and "preconditions" not in second

    asyncio.run(body())


def test_failed_websocket_upgrade_raises_the_api_error() -> None:
    async def body() -> None:
        async with Server(403).running() as client:
            with pytest.raises(ApiError) as denied:
                await client.websocket("/x", {}, ["v5.channel.k8s.io"])
        assert denied.value.reason == "Forbidden"

    asyncio.run(body())


def test_guarded_client_checks_every_attempt_to_write() -> None:
    class Refused(Exception):
        pass

    attempts: list[int] = []

    def check() -> None:
        attempts.append(len(server.requests))
        if len(attempts) > 1:
            raise Refused

    server = Server(503)

    async def body() -> None:
        async with server.running() as client:
            guarded = client.guarded(check)
            with pytest.raises(Refused):  # the first attempt failed, and the second is not made
                await guarded.apply(OBJECT)
            await guarded.get(CONFIG_MAP, "a", "n")
            await client.apply(OBJECT)

    asyncio.run(body())
    assert attempts == [0, 1]
    assert [request.method for request in server.requests] == ["PATCH", "GET", "PATCH"]
