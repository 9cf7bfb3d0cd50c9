"""An HTTP server on this machine in the place of an API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from oars.kube.client import Client
from oars.kube.target import Target


@asynccontextmanager
async def client_of(serve: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Client]:
    """A client whose requests this handler answers."""
    app = web.Application()
    app.router.add_get("/{tail:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Target(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield client
    finally:
        await runner.cleanup()
