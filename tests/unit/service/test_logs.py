"""Logs of a cluster: of which members and containers, and following through failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oars.base.errors import NotFound, OarsError
from oars.client.backend import WHOLE_LOG, LogOptions, ignore
from oars.client.kubernetes import KubeHandle
from oars.kube.errors import ApiError, Unreachable
from oars.places.kube.state import observe
from oars.service import LogRequest, logs
from tests.unit.places.test_kube_observe import pod

UNREACHABLE = Unreachable("The API server does not answer.")


def with_containers(name: str, role: str, *named: str, **spec: Any) -> dict[str, Any]:
    found = pod(name, role, metadata={"namespace": "team"})
    return {**found, "spec": {"containers": [{"name": each} for each in named], **spec}}


class ScriptedHandle(KubeHandle):
    """Each lookup returns the next pods, or raises the next error. After the last one the cluster is gone."""

    def __init__(self, *lookups: Any) -> None:
        self.name, self.namespace, self._mode = "demo", "team", "direct"
        self.lookups = list(lookups)
        self.read: list[tuple[str, str]] = []

    async def exists(self) -> bool:
        return bool(self.lookups)

    async def _pods(self) -> dict[str, Any]:
        found = self.lookups.pop(0) if self.lookups else {}
        if isinstance(found, OarsError):
            raise found
        return dict(found)

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        self.read.append((member, options.container))
        yield f"a line of {member}"


HEAD = with_containers("demo-head-x", "head", "head", "oars")
WORKER = with_containers(
    "w", "worker", "agent", "worker", initContainers=[{"name": "fetch"}], ephemeralContainers=[{"name": "debug"}]
)
PODS = {"head": HEAD, "w": WORKER}


def test_main_container_is_listed_first() -> None:
    assert observe.containers(WORKER) == ["worker", "agent", "fetch", "debug"]


@pytest.mark.parametrize(
    ("request_fields", "members"),
    [
        ({}, ["head", "w"]),
        ({"member": "w"}, ["w"]),
        ({"container": "oars"}, ["head"]),
        ({"container": "fetch"}, ["w"]),
        ({"container": "fetch", "member": "w"}, ["w"]),
    ],
)
def test_members_of_a_request(request_fields: dict[str, Any], members: list[str]) -> None:
    assert list(asyncio.run(logs.members(ScriptedHandle(PODS), LogRequest(**request_fields)))) == members


@pytest.mark.parametrize(
    ("request_fields", "message", "hint"),
    [
        ({"member": "v"}, "has no member 'v'", "Members: head, w."),
        ({"container": "agnet"}, "no container 'agnet'. Did you mean 'agent'?",
         "Containers: head, oars, worker, agent, fetch, debug."),
        ({"container": "oars", "member": "w"}, "no container 'oars'", "Containers: worker, agent, fetch, debug."),
    ],
)  # fmt: skip
def test_unknown_member_or_container_is_not_found(request_fields: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(NotFound) as error:
        asyncio.run(logs.members(ScriptedHandle(PODS), LogRequest(**request_fields)))
    assert message in error.value.message and error.value.hint == hint


def follow(handle: ScriptedHandle, **fields: Any) -> list[tuple[str, str]]:
    async def collect() -> list[tuple[str, str]]:
        request = LogRequest(follow=True, **fields)
        return [(each.member, each.line) async for each in logs.follow(handle, request, ignore)]

    return asyncio.run(asyncio.wait_for(collect(), 10))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_following_survives_failed_lookups() -> None:
    handle = ScriptedHandle(UNREACHABLE, {"head": HEAD}, ApiError(500, {}), UNREACHABLE, {})
    assert follow(handle) == [("head", "a line of head")]
    with pytest.raises(ApiError):
        follow(ScriptedHandle(ApiError(403, {})))


@pytest.mark.usefixtures("quick")
def test_head_that_comes_back_is_followed_again() -> None:
    handle = ScriptedHandle({"head": HEAD}, {"w": WORKER}, {"head": HEAD})
    assert follow(handle, member="head") == [("head", "a line of head")] * 2


@pytest.mark.usefixtures("quick")
def test_only_members_with_the_container_are_followed() -> None:
    handle = ScriptedHandle(PODS)
    assert follow(handle, container="fetch") == [("w", "a line of w")]
    assert handle.read == [("w", "fetch")]


@pytest.mark.usefixtures("quick")
def test_slow_reader_loses_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_QUEUED_LINES", 1)
    lookups = [PODS] * 20
    assert sorted(set(follow(ScriptedHandle(*lookups)))) == [("head", "a line of head"), ("w", "a line of w")]


def test_member_that_cannot_be_read_does_not_hide_the_others() -> None:
    class Waiting(ScriptedHandle):
        async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
            if member == "head":
                raise ApiError(400, {"message": "container is waiting to start"})
            yield "ready"

    async def collect(**fields: Any) -> list[str]:
        return [each.line async for each in logs.read(Waiting(PODS), LogRequest(**fields), troubles.append)]

    troubles: list[str] = []
    assert asyncio.run(collect()) == ["ready"]
    assert troubles == ["head: container is waiting to start"]
    with pytest.raises(ApiError):
        asyncio.run(collect(member="head"))


def test_same_trouble_of_several_members_is_reported_once() -> None:
    now = [50.0]
    said: list[str] = []
    report = logs.Deduplicated(said.append, lambda: now[0])
    for moment, text in ((50.0, "away"), (51.0, "away"), (52.0, "other"), (50.0 + logs.REPEAT_SECONDS, "away")):
        now[0] = moment
        report(text)
    assert said == ["away", "other", "away"]


@pytest.mark.parametrize(
    ("member", "container", "expected"),
    [
        ("head", None, ("demo-head-x", "head", True)),
        ("w", None, ("w", "worker", True)),
        ("w", "worker", ("w", "worker", True)),
        ("w", "agent", ("w", "agent", False)),
    ],
)
def test_container_of_a_program(member: str, container: str | None, expected: tuple[str, str, bool]) -> None:
    assert asyncio.run(ScriptedHandle(PODS)._container(member, container)) == expected


def test_program_in_an_unknown_container_is_not_found() -> None:
    with pytest.raises(NotFound, match="no container 'oars'"):
        asyncio.run(ScriptedHandle(PODS)._container("w", "oars"))
    with pytest.raises(NotFound, match="Cluster 'demo' has no head pod"):
        asyncio.run(ScriptedHandle({})._container("head"))
