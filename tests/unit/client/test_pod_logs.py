"""Logs that are followed: through whatever happens on the way, each line once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.client import pod_logs
from oars.client.backend import Reading
from oars.client.pod_logs import FORGOTTEN, LASTING, LONGEST_PAUSE, Trouble, moment
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Object
from tests.unit.places.test_kube_observe import pod

AWAY = Unreachable("The API server does not answer.")
KUBELET = ApiError(500, {"message": "dial tcp 10.0.0.1:10250: connection refused"})
GONE = ApiError(404, {})
WAITING = ApiError(400, {"message": "container is waiting to start"})
DENIED = ApiError(403, {})

Answer = list[Any]  # lines, and perhaps the error that ends them


class Pods:
    """A script: who is there at each look, and what each connection brings."""

    def __init__(self, *answers: Answer, there: list[Any] | None = None) -> None:
        self.answers = list(answers)
        self.there = there
        self.asked: list[dict[str, Any]] = []

    async def find(self) -> Object | None:
        if self.there is not None:
            found = self.there.pop(0)
            if isinstance(found, OarsError):
                raise found
            return _placed(found) if found else None
        return _placed("uid-1") if self.answers else None

    async def logs(self, name: str, namespace: str, **asked: Any) -> AsyncIterator[str]:
        self.asked.append(asked)
        for each in self.answers.pop(0):
            if isinstance(each, OarsError):
                raise each
            yield each

    def followed(self, **how: Any) -> list[str]:
        async def collect() -> list[str]:
            found = pod_logs.lines(cast(Client, self), self.find, Reading(**{"follow": True, **how}))
            return [line async for line in found]

        return asyncio.run(collect())

    def wanted(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(asked.get(key) for key in keys) for asked in self.asked]


def _placed(uid: str) -> Object:
    return pod("demo-head-x", "head", metadata={"uid": uid, "namespace": "team"})


def at(second: float, text: str) -> str:
    return f"2026-11-16T03:00:{second:06.3f}Z {text}"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.0)


@pytest.mark.parametrize("error", [AWAY, KUBELET, GONE, WAITING, ApiError(503, {}), ApiError(429, {})])
def test_following_outlives(error: OarsError) -> None:
    pods = Pods([at(1, "one"), error], [error], [at(1, "one"), at(2, "two")])
    assert pods.followed() == ["one", "two"]
    assert pods.wanted("since") == [(None,), (at(1, "").strip(),), (at(1, "").strip(),)]


def test_following_outlives_an_outage_while_it_looks_for_the_pod() -> None:
    pods = Pods([at(1, "one"), AWAY], [at(2, "two")], there=["uid-1", AWAY, KUBELET, "uid-1", None])
    assert pods.followed() == ["one", "two"]


def test_a_missing_right_ends_it() -> None:
    with pytest.raises(ApiError):
        Pods([DENIED]).followed()
    with pytest.raises(Unreachable):
        Pods([AWAY]).followed(follow=False)  # whoever reads once wants to know


def test_lines_of_one_connection_may_come_out_of_order() -> None:
    """A program's stdout and stderr are stamped apart; a new connection begins after the newest."""
    pods = Pods([at(1, "out"), at(0.9, "err"), at(1.1, "out again"), at(1.05, "err again"), AWAY],
                [at(1.05, "err again"), at(1.1, "out again"), at(1.2, "new"), at(1.15, "late")])  # fmt: skip
    assert pods.followed() == ["out", "err", "out again", "err again", "new", "late"]
    assert pods.wanted("since")[1] == (at(1.1, "").strip(),)


def test_a_new_pod_is_read_from_its_first_line_whatever_its_clock_says() -> None:
    pods = Pods([at(9, "old")], [at(1, "new")], there=["uid-1", "uid-2", None])
    assert pods.followed(tail=3) == ["old", "new"]
    assert pods.wanted("since", "tail") == [(None, 3), (None, None)]


def test_the_last_lines_are_asked_for_until_there_was_an_answer() -> None:
    pods = Pods([AWAY], [], [at(1, "one")])
    assert pods.followed(tail=3) == ["one"]
    assert pods.wanted("tail") == [(3,), (3,), (None,)]


def test_what_the_kubelet_says_in_place_of_a_log_is_no_line_of_it() -> None:
    sorry = "unable to retrieve container logs for containerd://9c0c"
    assert Pods([at(1, "one"), sorry], [sorry], [at(2, "two")]).followed() == ["one", sorry, "two"]


def test_the_container_is_the_members_own_or_the_one_that_is_named() -> None:
    for named, read in (("", "head"), ("agent", "agent")):
        for follow in (True, False):
            pods = Pods(["one"], there=["uid-1", None])
            assert pods.followed(container=named, follow=follow) == ["one"]
            assert pods.wanted("container") == [(read,)]


def trouble() -> tuple[Trouble, list[str], Callable[[float], None]]:
    said: list[str] = []
    now = [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    return Trouble(said.append, lambda: now[0]), said, wait


def test_pauses_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 1.0)
    met, _, wait = trouble()
    assert [met.met(AWAY) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
    met.over()
    assert met.met(AWAY) == 1.0
    wait(FORGOTTEN + 1)
    assert met.met(AWAY) == 1.0


def test_trouble_that_lasts_is_told_once_each_time() -> None:
    met, said, wait = trouble()
    met.met(AWAY)
    wait(LASTING - 1)
    met.met(AWAY)
    assert said == []
    for _ in range(3):
        wait(2)
        met.met(AWAY)
    assert said == ["The API server does not answer; the log goes on when it does."]
    wait(FORGOTTEN + 1)
    met.met(KUBELET)
    wait(LASTING)
    met.met(KUBELET)
    assert said[1:] == ["The log cannot be read now (dial tcp 10.0.0.1:10250: connection refused); it is tried again."]


def test_log_lines_compare_as_their_times_do() -> None:
    key: Callable[[str], str] = moment
    times = ["2026-11-16T03:33:08Z", "2026-11-16T03:33:08.09Z", "2026-11-16T03:33:08.1Z", "2026-11-16T03:33:09.02Z"]
    assert sorted(reversed(times), key=key) == times
    assert moment("") == ""
