"""`oars logs`: whose, of which container, and following through trouble; `oars exec`: where it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oars.base.errors import NotFound, OarsError, UsageError
from oars.cli import failures, in_cluster, logs
from oars.cli.main import _call
from oars.cli.options import kept
from oars.client.backend import PLAIN, Reading
from oars.client.kubernetes import KubeBackend
from oars.kube.errors import ApiError, Unreachable
from oars.places.kube.state import observe
from tests.unit.cli.test_look import intent
from tests.unit.places.test_kube_observe import pod

AWAY = Unreachable("The API server does not answer.")


def wanted(**more: Any) -> logs.Wanted:
    return logs.Wanted(**{"member": None, "follow": False, "tail": None, "previous": False, "container": None, **more})


def with_containers(name: str, role: str, *named: str, **spec: Any) -> dict[str, Any]:
    found = pod(name, role, metadata={"namespace": "team"})
    return {**found, "spec": {"containers": [{"name": each} for each in named], **spec}}


class Played(KubeBackend):
    """Looks, one after the other; each is the pods that are there, or an error. The last means that it is gone."""

    def __init__(self, *looks: Any) -> None:
        self.looks = list(looks)
        self.read: list[tuple[str, str]] = []

    async def mode(self, name: str) -> str:
        return "direct"

    async def names(self) -> list[str]:
        return ["demo"] if self.looks else []

    def namespace_of(self, name: str) -> str:
        return "team"

    async def pods(self, name: str) -> dict[str, Any]:
        found = self.looks.pop(0) if self.looks else {}
        if isinstance(found, OarsError):
            raise found
        return dict(found)

    async def lines(self, name: str, member: str, how: Reading = PLAIN) -> AsyncIterator[str]:
        self.read.append((member, how.container))
        yield f"a line of {member}"


HEAD = with_containers("demo-head-x", "head", "head", "oars")
WORKER = with_containers(
    "w", "worker", "agent", "worker", initContainers=[{"name": "fetch"}], ephemeralContainers=[{"name": "look"}]
)
PODS = {"head": HEAD, "w": WORKER}


def test_all_containers_of_a_pod_are_known_the_members_own_first() -> None:
    assert observe.containers(WORKER) == ["worker", "agent", "fetch", "look"]


@pytest.mark.parametrize(
    ("asked", "members"),
    [
        ({}, ["head", "w"]),
        ({"member": "w"}, ["w"]),
        ({"container": "oars"}, ["head"]),
        ({"container": "fetch"}, ["w"]),
        ({"container": "fetch", "member": "w"}, ["w"]),
    ],
)
def test_whose_log(asked: dict[str, str], members: list[str]) -> None:
    assert list(asyncio.run(logs._members(Played(PODS), "demo", wanted(**asked)))) == members


@pytest.mark.parametrize(
    ("asked", "sentence", "hint"),
    [
        ({"member": "v"}, "has no member 'v'", "It has: head, w."),
        ({"container": "agnet"}, "no container 'agnet'. Did you mean 'agent'?",
         "There are: head, oars, worker, agent, fetch, look."),
        ({"container": "oars", "member": "w"}, "no container 'oars'", "There are: worker, agent, fetch, look."),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_what_is(asked: dict[str, str], sentence: str, hint: str) -> None:
    with pytest.raises(NotFound) as error:
        asyncio.run(logs._members(Played(PODS), "demo", wanted(**asked)))
    assert sentence in error.value.message and error.value.hint == hint


def followed(home: Played, **more: Any) -> list[tuple[str, str]]:
    written: list[tuple[str, str]] = []
    work = logs._follow(home, "demo", wanted(follow=True, **more), lambda *line: written.append(line))
    asyncio.run(asyncio.wait_for(work, 10))
    return written


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_following_outlives_looks_that_fail() -> None:
    assert followed(Played(AWAY, {"head": HEAD}, ApiError(500, {}), AWAY, {})) == [("head", "a line of head")]
    with pytest.raises(ApiError):
        followed(Played(ApiError(403, {})))


@pytest.mark.usefixtures("quick")
def test_a_head_that_was_away_for_a_moment_is_followed_again() -> None:
    home = Played({"head": HEAD}, {"w": WORKER}, {"head": HEAD})
    assert followed(home, member="head") == [("head", "a line of head")] * 2


@pytest.mark.usefixtures("quick")
def test_of_all_that_are_followed_those_with_the_container_are_read() -> None:
    home = Played(PODS)
    assert followed(home, container="fetch") == [("w", "a line of w")]
    assert home.read == [("w", "fetch")]


def test_what_all_members_meet_at_once_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    now = [50.0]
    notes = logs.LoopState(lambda: now[0])
    for moment, text in ((50.0, "away"), (51.0, "away"), (52.0, "other"), (50.0 + logs.SAY_AGAIN, "away")):
        now[0] = moment
        notes(text)
    assert capsys.readouterr().err.split() == ["away", "other", "away"]


# exec


@pytest.mark.parametrize(
    ("member", "container", "expected"),
    [
        ("head", None, ("demo-head-x", "head", True)),
        ("w", None, ("w", "worker", True)),
        ("w", "worker", ("w", "worker", True)),
        ("w", "agent", ("w", "agent", False)),
    ],
)
def test_where_a_program_runs(member: str, container: str | None, expected: tuple[str, str, bool]) -> None:
    spot = asyncio.run(in_cluster.spot_of(Played(PODS), "demo", member, container))
    assert (spot.pod, spot.container, spot.is_own) == expected


def test_a_container_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFound, match="no container 'oars'"):
        asyncio.run(in_cluster.spot_of(Played(PODS), "demo", "w", "oars"))


def test_here_and_in_a_pod_is_a_contradiction(capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.guard(lambda: _call(["exec", "demo", "--local", "-c", "x", "--", "ls"])) == UsageError.exit_code
    assert "--local means this machine, and --container a pod" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["logs", "demo", "-c", "agent"], "Its members have no containers: leave out --container."),
        (["exec", "demo", "-c", "agent", "--", "ls"], "Its members have no pods: leave out --container."),
        (["exec", "demo", "--member", "worker-0", "--", "ls"], "Its members have no pods: leave out --member."),
    ],
)
def test_processes_of_this_machine_have_neither(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept().store.create(intent("demo", spec={"engine": "toy"}), {})
    assert failures.guard(lambda: _call(words)) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "The cluster 'demo' runs on this machine." in said and told in said
