"""The operator process without an API server: when it exits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.target import Target
from oars.operator import RunOptions
from oars.operator.main import Operator


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
