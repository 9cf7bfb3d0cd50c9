"""Logs of dead containers: a few are read concurrently, as samples of all that died the same way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest

from oars.kube.client import Client
from oars.model import Cause
from oars.places.kube import evidence, names
from oars.places.kube.evidence import LOG_BYTES, LOG_LINES, POLL, Evidence, SharedLists
from oars.places.kube.why.deaths import MAX_LOGS, SAMPLES, logs_to_read
from oars.places.kube.why.explain import causes
from oars.places.kube.why.facts import Snapshot
from tests.unit.places.test_kube_observe import Object, pod
from tests.unit.places.test_kube_pieces import LOOPING, Clock, Server, numbered, run

MISSING = ("Traceback", "ModuleNotFoundError: No module named 'pandas_of_mine'")


def dead(name: str, code: int = 4, group: str = "default") -> Object:
    """A worker that has not recovered."""
    container = {**LOOPING, "lastState": {"terminated": {"exitCode": code}}, "ready": False}
    found = numbered(pod(name, container=container, ready=False, metadata={"namespace": "lab"}), "1", "n1")
    found["metadata"]["labels"][names.GROUP] = group
    return found


def recovered(name: str) -> Object:
    container = {"lastState": {"terminated": {"exitCode": 4}}, "restartCount": 2, "ready": True}
    return numbered(pod(name, container=container, metadata={"namespace": "lab"}), "1", "n1")


def crashing(count: int) -> list[Object]:
    return [dead(f"w-{number}") for number in range(count)]


def explained(pods: list[Object], **tails: tuple[str, ...]) -> tuple[Cause, ...]:
    """The causes, given log tails by pod (w_1 for w-1)."""
    known = {(name.replace("_", "-"), "worker"): lines for name, lines in tails.items()}
    return causes(Snapshot(pods=pods, log_tails=known), "team")


# which logs are read


def chosen(pods: list[Object]) -> list[str]:
    return [found["metadata"]["name"] for found, _ in logs_to_read(pods)]


def test_only_samples_of_equal_deaths_are_read() -> None:
    assert chosen(crashing(1000)) == ["w-0", "w-1", "w-2"]
    assert chosen(crashing(2)) == ["w-0", "w-1"]


def test_logs_of_unready_pods_are_read_first() -> None:
    pods = [*map(recovered, "abcd"), *map(dead, "efgh")]
    assert chosen(pods) == ["e", "a", "f", "b", "g", "c"]


def test_each_kind_of_death_is_sampled_up_to_the_limit() -> None:
    codes = {f"w-{number}": 1 + number % 5 for number in range(100)}
    read = [codes[name] for name in chosen([dead(name, code) for name, code in codes.items()])]
    assert len(read) == MAX_LOGS and read[:5] == [1, 2, 3, 4, 5]
    assert max(Counter(read).values()) <= SAMPLES
    assert len(chosen([dead(f"w-{code}", code) for code in range(1, 100)])) == MAX_LOGS


def test_groups_and_containers_are_sampled_separately() -> None:
    one, other = dead("a"), dead("b", group="gpu")
    for found in (one, other):
        found["status"]["initContainerStatuses"] = [{**found["status"]["containerStatuses"][0], "name": "agent"}]
    read = [(found["metadata"]["name"], container) for found, container in logs_to_read([one, other])]
    assert read == [("a", "agent"), ("a", "worker"), ("b", "agent"), ("b", "worker")]


# causes


@pytest.mark.parametrize("known", ["w_0", "w_3", "w_5"])
def test_unread_deaths_share_the_cause_of_the_sample(known: str) -> None:
    [cause] = explained(crashing(6), **{known: MISSING})
    assert "(6 of 6)" in cause.message and "the Python module pandas_of_mine is missing" in cause.message
    assert cause.lines == MISSING


def test_recovered_deaths_share_the_cause_of_the_sample() -> None:
    [cause] = explained([recovered(f"w-{number}") for number in range(6)], w_2=MISSING)
    assert cause.reason == "Replaced" and "(6 of 6)" in cause.message and cause.lines == MISSING


def test_log_lines_are_not_shared_between_kinds_of_death() -> None:
    ended, killed = explained([dead("w-0", 1), dead("w-1", 137)], w_0=MISSING)
    assert (ended.lines, killed.lines) == (MISSING, ()) and "SIGKILL" in killed.message
    still, again = explained([dead("w-0"), recovered("w-1")], w_0=MISSING)
    assert (still.lines, again.lines) == (MISSING, ()) and again.reason == "Replaced"


def test_deleted_log_is_not_a_sample() -> None:
    [cause] = explained(crashing(3), w_0=("unable to retrieve container logs for containerd://0123",), w_1=MISSING)
    assert "(3 of 3)" in cause.message and cause.lines == MISSING


# how logs are read


class LogServer(Server):
    """Records which logs are read, and how many at a time."""

    def __init__(self, *silent: str) -> None:
        super().__init__()
        self.read_pods: list[str] = []
        self.max_concurrent = 0
        self._silent = silent
        self._reading = 0

    async def logs(
        self, name: str, namespace: str, *, container: str, tail: int, previous: bool, limit_bytes: int
    ) -> AsyncIterator[str]:
        assert (tail, limit_bytes) == (LOG_LINES, LOG_BYTES)
        self.read_pods.append(name)
        self._reading += 1
        self.max_concurrent = max(self.max_concurrent, self._reading)
        await asyncio.sleep(60 if name in self._silent else 0)
        self._reading -= 1
        yield f"last line of {name}"


def evidence_of(server: Server, clock: Clock) -> Evidence:
    client = cast(Client, server)
    return Evidence(client, "lab", SharedLists(client, clock), clock)


def test_thousand_deaths_cost_a_few_concurrent_requests() -> None:
    server = LogServer()
    [cause] = run(evidence_of(server, Clock()).causes(crashing(1000), []))
    assert len(server.read_pods) == server.max_concurrent == SAMPLES
    assert "(1000 of 1000)" in cause.message and cause.lines == ("last line of w-0",)


def test_unresponsive_node_does_not_delay_the_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_TIMEOUT", 0.3)
    [cause] = run(evidence_of(LogServer("w-0"), Clock()).causes(crashing(5), []))
    assert "(5 of 5)" in cause.message and cause.lines == ("last line of w-1",)


def test_pods_that_are_no_members_are_not_explained() -> None:
    """Users can put the cluster's label on any pod."""
    foreign = dead("debug")
    del foreign["metadata"]["labels"][names.GROUP]
    server = LogServer()
    assert run(evidence_of(server, Clock()).causes([foreign], [])) == ()
    assert server.read_pods == []


def test_log_lines_are_discarded_by_the_next_collection() -> None:
    """The pod may have died again since."""

    async def scenario() -> None:
        clock = Clock()
        found = evidence_of(LogServer(), clock)
        first, *others = crashing(5)
        await found.causes([first], [])
        clock.now += POLL
        [cause] = await found.causes([*others, first], [])
        assert cause.lines == ("last line of w-1",)
        [cause] = await found.causes([first], [])
        assert cause.lines == ()

    run(scenario())
