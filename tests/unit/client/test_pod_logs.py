"""Following the log of a pod: it survives failures and yields each line once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from oars.base.errors import NotFound, OarsError
from oars.client import pod_logs
from oars.client.backend import LogOptions
from oars.client.pod_logs import MAX_PAUSE, NEW_FAILURE_AFTER, REPORT_AFTER, Backoff, sort_key
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
    """A script: the pod at each lookup, and the lines or error of each connection."""

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

    def followed(self, *, follow: bool = True, **how: Any) -> list[str]:
        read = pod_logs.follow if follow else pod_logs.read

        async def collect() -> list[str]:
            return [line async for line in read(cast(Client, self), self.find, LogOptions(**how))]

        return asyncio.run(collect())

    def wanted(self, *keys: str) -> list[tuple[Any, ...]]:
        return [tuple(asked.get(key) for key in keys) for asked in self.asked]


def _placed(uid: str) -> Object:
    return pod("demo-head-x", "head", metadata={"uid": uid, "namespace": "team"})


def at(second: float, text: str) -> str:
    return f"2026-11-16T03:00:{second:06.3f}Z {text}"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.0)


def test_pauses_do_not_grow_while_every_connection_delivers_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []

    class Counted(Backoff):
        def failed(self, error: OarsError) -> float:
            failures.append(self._failures)
            return super().failed(error)

    monkeypatch.setattr(pod_logs, "Backoff", Counted)
    assert Pods(*([at(n, f"{n}"), AWAY] for n in range(1, 6))).followed() == ["1", "2", "3", "4", "5"]
    assert failures == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("error", [AWAY, KUBELET, GONE, WAITING, ApiError(503, {}), ApiError(429, {})])
def test_following_survives_transient_errors(error: OarsError) -> None:
    pods = Pods([at(1, "one"), error], [error], [at(1, "one"), at(2, "two")])
    assert pods.followed() == ["one", "two"]
    assert pods.wanted("since") == [("",), (at(1, "").strip(),), (at(1, "").strip(),)]


def test_following_survives_errors_of_the_pod_lookup() -> None:
    pods = Pods([at(1, "one"), AWAY], [at(2, "two")], there=["uid-1", AWAY, KUBELET, "uid-1", None])
    assert pods.followed() == ["one", "two"]


@pytest.mark.parametrize("error", [WAITING, GONE])
def test_log_of_an_ended_container_that_is_gone_is_not_awaited(error: ApiError) -> None:
    pods = Pods([error])

    async def is_over() -> bool:
        return True

    async def collect() -> list[str]:
        found = pod_logs.follow(cast(Client, pods), pods.find, LogOptions(), is_over)
        return [line async for line in found]

    assert asyncio.run(collect()) == [] and len(pods.asked) == 1


def test_missing_permission_ends_following() -> None:
    with pytest.raises(ApiError):
        Pods([DENIED]).followed()
    with pytest.raises(Unreachable):
        Pods([AWAY]).followed(follow=False)  # a single read does not retry


def test_lines_out_of_order_are_not_lost() -> None:
    """stdout and stderr have separate timestamps; a new connection continues after the newest one."""
    pods = Pods([at(1, "out"), at(0.9, "err"), at(1.1, "out again"), at(1.05, "err again"), AWAY],
                [at(1.05, "err again"), at(1.1, "out again"), at(1.2, "new"), at(1.15, "late")])  # fmt: skip
    assert pods.followed() == ["out", "err", "out again", "err again", "new", "late"]
    assert pods.wanted("since")[1] == (at(1.1, "").strip(),)


def test_new_pod_is_read_from_its_first_line() -> None:
    pods = Pods([at(9, "old")], [at(1, "new")], there=["uid-1", "uid-2", None])
    assert pods.followed(tail=3) == ["old", "new"]
    assert pods.wanted("since", "tail") == [("", 3), ("", None)]


@pytest.mark.parametrize("follow", [False, True])
def test_lines_since_a_time_are_requested(follow: bool) -> None:
    pods = Pods([at(1, "one"), AWAY] if follow else ["one"], [at(2, "two")])
    assert pods.followed(follow=follow, since=1000.4)[0] == "one"
    expected = [("1970-01-01T00:16:40Z",), (at(1, "").strip(),)]
    assert pods.wanted("since") == expected[: 1 + follow], "after a failure it continues after the last line"


def test_tail_is_requested_until_a_connection_succeeds() -> None:
    pods = Pods([AWAY], [], [at(1, "one")])
    assert pods.followed(tail=3) == ["one"]
    assert pods.wanted("tail") == [(3,), (3,), (None,)]


def test_message_of_the_kubelet_is_shown_once() -> None:
    sorry = "unable to retrieve container logs for containerd://9c0c"
    assert Pods([at(1, "one"), sorry], [sorry], [at(2, "two")]).followed() == ["one", sorry, "two"]


def test_container_that_never_restarted_has_no_earlier_log() -> None:
    none = ApiError(400, {"message": 'previous terminated container "head" in pod "demo-head-1" not found'})
    with pytest.raises(NotFound, match="has not restarted; there is no earlier log") as raised:
        Pods([none]).followed(follow=False, previous=True)
    assert raised.value.hint == "Omit `--previous` to read its log."
    with pytest.raises(ApiError, match="waiting to start"):
        Pods([WAITING]).followed(follow=False, previous=True)


def test_container_defaults_to_the_main_one() -> None:
    for named, read in (("", "head"), ("agent", "agent")):
        for follow in (True, False):
            pods = Pods(["one"], there=["uid-1", None])
            assert pods.followed(container=named, follow=follow) == ["one"]
            assert pods.wanted("container") == [(read,)]


def make_backoff() -> tuple[Backoff, list[str], Callable[[float], None]]:
    said: list[str] = []
    now = [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    return Backoff(said.append, lambda: now[0]), said, wait


def test_pauses_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 1.0)
    backoff, _, wait = make_backoff()
    assert [backoff.failed(AWAY) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, MAX_PAUSE, MAX_PAUSE]
    backoff.reset()
    assert backoff.failed(AWAY) == 1.0
    wait(NEW_FAILURE_AFTER + 1)
    assert backoff.failed(AWAY) == 1.0


def test_lasting_failure_is_reported_once() -> None:
    backoff, said, wait = make_backoff()
    backoff.failed(AWAY)
    wait(REPORT_AFTER - 1)
    backoff.failed(AWAY)
    assert said == []
    for _ in range(3):
        wait(2)
        backoff.failed(AWAY)
    assert said == ["The API server does not answer; the log continues when it does."]
    wait(NEW_FAILURE_AFTER + 1)
    backoff.failed(KUBELET)
    wait(REPORT_AFTER)
    backoff.failed(KUBELET)
    assert said[1:] == ["The log cannot be read (dial tcp 10.0.0.1:10250: connection refused); retrying."]


def test_timestamps_compare_as_their_times_do() -> None:
    times = ["2026-11-16T03:33:08Z", "2026-11-16T03:33:08.09Z", "2026-11-16T03:33:08.1Z", "2026-11-16T03:33:09.02Z"]
    assert sorted(reversed(times), key=sort_key) == times
    assert sort_key("") == ""
