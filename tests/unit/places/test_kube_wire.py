"""Where the members of a cluster are, as its engine is told."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from oars import engines
from oars.base.errors import EngineUnreachable
from oars.kube.client import Client
from oars.model import HEAD, Member, MemberId, MemberState, Role
from oars.places.kube.describe import describe
from oars.places.kube.wire import KubeWire, Reach
from oars.spec.cluster import ClusterSpec


def member(name: str, group: str, address: str = "10.0.0.1") -> Member:
    role = Role.HEAD if group == "head" else Role.WORKER
    return Member(MemberId(name), role, group, MemberState.RUNNING, address=address)


def addresses(*members: Member, workers: int | None = 1) -> dict[MemberId, dict[str, str]]:
    return {name: dict(ports) for name, ports in wire(*members, workers=workers).addresses.items()}


def wire(*members: Member, workers: int | None = 1) -> KubeWire:
    spec = ClusterSpec.model_validate({"engine": "mars", "image": "i:1", "workers": workers or []})
    shape = describe("demo", "lab", spec, engines.get("mars")).shape
    return KubeWire(shape, members, "demo-head.lab", "demo-head-1", Reach(cast(Client, None), "lab"))


def test_the_head_and_workers_have_the_ports_of_their_groups() -> None:
    found = addresses(member(HEAD, "head"), member("a", "default", "10.0.0.2"))
    assert found[HEAD]["web"] == "10.0.0.1:7104"
    assert found[MemberId("a")]["worker"] == "10.0.0.2:7105"


@pytest.mark.parametrize("group", ["default@0123456789", "removed", "removed@0123456789"])
def test_workers_of_a_group_that_is_no_longer_described_are_reached_to_be_emptied(group: str) -> None:
    assert addresses(member("a", group))[MemberId("a")]["worker"] == "10.0.0.1:7105"


def test_who_has_no_address_yet_is_not_there() -> None:
    assert addresses(member("a", "default", "")) == {}


def test_a_way_that_no_longer_leads_there_is_looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the head could be dialled; then a policy came to hold, and nobody answers there any more."""
    dialled: list[str] = []

    async def dial(host: str, port: int) -> None:
        dialled.append(f"{host}:{port}")
        raise ConnectionRefusedError  # somebody is there

    async def silence(*_: object) -> bytes:
        raise TimeoutError

    monkeypatch.setattr("oars.places.kube.wire.asyncio.open_connection", dial)
    monkeypatch.setattr("oars.places.kube.wire.request", silence)
    way = wire(member(HEAD, "head"))
    for _ in range(2):
        with pytest.raises(EngineUnreachable, match="port 7104 of the head: no answer in time"):
            asyncio.run(way.http("web", "/"))
    assert dialled == ["10.0.0.1:7104"] * 2
