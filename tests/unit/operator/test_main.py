"""The operator as a whole, without an API server: what ends it."""

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
def test_a_watch_that_breaks_by_our_own_mistake_ends_it(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would go on with what it saw last, and look well."""

    async def wait(_: Informer) -> None:
        await asyncio.Event().wait()

    async def fail(_: Informer) -> None:
        raise KeyError("mine")

    async def run() -> None:
        async with Client(Target("https://127.0.0.1:1")) as client:
            await asyncio.wait_for(Operator(client, options).run(), 5)

    options = RunOptions(metrics_port=0, health_port=0, lease_namespace="n")
    doing: dict[str, Any] = {"_list": wait, "_watch": wait, broken: fail}
    for name, step in doing.items():
        monkeypatch.setattr(Informer, name, step)
    if broken == "_watch":
        monkeypatch.setattr(Informer, "_list", _listed)
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(run())
    assert "a mistake of ours" in caplog.text and "KeyError" in caplog.text


async def _listed(informer: Informer) -> None:
    informer.synced.set()
