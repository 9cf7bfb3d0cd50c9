"""The way to a cluster of bare pods by the name of its Service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oars.base.errors import EngineUnreachable
from oars.client import pod_route
from oars.client.pod_route import Patience, ServiceRoute
from oars.model import Port

PORTS = (Port("client", 8786), Port("dashboard", 8787))


async def services() -> AsyncIterator[dict[str, Any]]:
    yield {"spec": {"type": "ClusterIP"}}


async def no_head() -> None:
    return None


def dial(monkeypatch: pytest.MonkeyPatch, attempts: int, answers_after: int | None) -> tuple[dict[str, str], int]:
    """The addresses, and how often the Service was dialled. `answers_after`: that many attempts fail."""
    dialled: list[str] = []

    async def is_reachable(host: str, port: int) -> bool:
        dialled.append(f"{host}:{port}")
        return answers_after is not None and len(dialled) > answers_after

    async def body() -> dict[str, str]:
        async def ask(request: Any, seconds: float) -> None: ...

        patience = Patience(name_attempts=attempts)
        route = ServiceRoute(None, ("demo", "lab"), PORTS, no_head, ask, patience)  # type: ignore[arg-type]
        await route.open(services())
        return {port.name: await route.address(port.name) for port in PORTS}

    monkeypatch.setattr(pod_route, "is_reachable", is_reachable)
    monkeypatch.setattr(pod_route, "RETRY_SECONDS", 0)
    try:
        return asyncio.run(body()), len(dialled)
    except EngineUnreachable:  # it would forward a port, but there is no head
        return {}, len(dialled)


def test_name_is_tried_as_often_as_given_inside_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """scheduler_service_name_resolution_retries: DNS knows a new Service after a moment."""
    monkeypatch.setattr("oars.kube.config.in_cluster", lambda environ: True)
    named = {"client": "demo.lab:8786", "dashboard": "demo.lab:8787"}
    assert dial(monkeypatch, 5, answers_after=3) == (named, 4)
    assert dial(monkeypatch, 5, answers_after=None) == ({}, 5)
    assert dial(monkeypatch, 0, answers_after=None) == ({}, 1)


def test_name_is_tried_once_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oars.kube.config.in_cluster", lambda environ: False)
    assert dial(monkeypatch, 20, answers_after=None) == ({}, 1)
