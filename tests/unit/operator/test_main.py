"""The operator process without an API server: when it exits, and what a deposed leader does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.operator import RunOptions
from oars.operator.main import Operator
from oars.operator.resources import Key


@pytest.mark.parametrize("broken", ["_list", "_watch"])
def test_operator_exits_when_an_informer_fails(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would continue with outdated caches and look healthy."""

    async def wait(_: Informer) -> None:
        await asyncio.Event().wait()

    async def fail(_: Informer) -> None:
        raise KeyError("bug")

    async def run() -> None:
        async with Client(Target("https://127.0.0.1:1")) as client:
            await asyncio.wait_for(Operator(client, options).run(), 5)

    options = RunOptions(metrics_port=0, health_port=0, lease_namespace="n")
    methods: dict[str, Any] = {"_list": wait, "_watch": wait, broken: fail}
    for name, method in methods.items():
        monkeypatch.setattr(Informer, name, method)
    if broken == "_watch":
        monkeypatch.setattr(Informer, "_list", _sync)
    with pytest.raises(KeyError, match="bug"):
        asyncio.run(run())
    assert "the operator exits" in caplog.text and "KeyError" in caplog.text


async def _sync(informer: Informer) -> None:
    informer.synced.set()


class LeaseOnly:
    """An API server that knows only Leases, and counts other writes."""

    def __init__(self) -> None:
        self.lease: Object = {}
        self.writes: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text() or "null")
        if "/leases" not in request.path:
            self.writes.append(request.method)
            return web.json_response(body)
        if request.method == "GET" and not self.lease:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        self.lease = body or self.lease
        self.lease["metadata"]["resourceVersion"] = "1"
        return web.json_response(self.lease)


def test_deposed_leader_neither_reconciles_nor_writes() -> None:
    """A replica that was suspended does not know yet that another one leads: the check needs no request."""
    server, seconds = LeaseOnly(), [0.0]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}

    async def body() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with Client(Target(url)) as client:
            operator = Operator(client, RunOptions(metrics_port=0, health_port=0, lease_namespace="n"))
            operator._elector._clock = lambda: seconds[0]
            await operator._elector.lead()
            await operator._reconciler._client.apply(config_map)
            seconds[0] += 16  # longer than the Lease
            with pytest.raises(OarsError, match="Lease"):
                await operator._reconciler._client.apply(config_map)
            assert await operator._reconciler.reconcile(Key("ComputeCluster", "n", "demo")) is not None
            await operator._elector.release()
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(body(), 10))
    assert server.writes == ["PATCH"]
