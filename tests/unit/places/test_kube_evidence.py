"""The logs of what died: a few are read, at once, and stand for all that died alike."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest

from oars.kube.client import Client
from oars.model import Cause
from oars.places.kube import names
from oars.places.kube.why import evidence
from oars.places.kube.why.deaths import MOST_LOGS, SAMPLES
from oars.places.kube.why.evidence import PAUSE, Evidence, Ground
from oars.places.kube.why.explain import Snapshot, causes, logs_to_read
from tests.unit.places.test_kube_observe import Object, pod
from tests.unit.places.test_kube_pieces import LOOPING, Clock, Server, numbered, run

MISSING = ("Traceback", "ModuleNotFoundError: No module named 'pandas_of_mine'")


def dead(name: str, code: int = 4, group: str = "default") -> Object:
    """A worker that is not back."""
    container = {**LOOPING, "lastState": {"terminated": {"exitCode": code}}, "ready": False}
    found = numbered(pod(name, container=container, ready=False, metadata={"namespace": "lab"}), "1", "n1")
    found["metadata"]["labels"][names.GROUP] = group
    return found


def back(name: str) -> Object:
    container = {"lastState": {"terminated": {"exitCode": 4}}, "restartCount": 2, "ready": True}
    return numbered(pod(name, container=container, metadata={"namespace": "lab"}), "1", "n1")


def crashing(count: int) -> list[Object]:
    return [dead(f"w-{number}") for number in range(count)]


def told(pods: list[Object], **tails: tuple[str, ...]) -> tuple[Cause, ...]:
    """With what is known of the logs: w_1 stands for w-1."""
    known = {(name.replace("_", "-"), "worker"): lines for name, lines in tails.items()}
    return causes(Snapshot(pods=pods, log_tails=known), "team")


# which are read


def chosen(pods: list[Object]) -> list[str]:
    return [found["metadata"]["name"] for found, _ in logs_to_read(pods)]


def test_of_those_that_died_alike_a_few_are_read() -> None:
    assert chosen(crashing(1000)) == ["w-0", "w-1", "w-2"]
    assert chosen(crashing(2)) == ["w-0", "w-1"]


def test_pods_that_are_not_ready_come_first() -> None:
    pods = [*map(back, "abcd"), *map(dead, "efgh")]
    assert chosen(pods) == ["e", "a", "f", "b", "g", "c"]


def test_each_way_to_die_is_read_and_there_is_an_end_to_it() -> None:
    codes = {f"w-{number}": 1 + number % 5 for number in range(100)}
    read = [codes[name] for name in chosen([dead(name, code) for name, code in codes.items()])]
    assert len(read) == MOST_LOGS and read[:5] == [1, 2, 3, 4, 5]
    assert max(Counter(read).values()) <= SAMPLES
    assert len(chosen([dead(f"w-{code}", code) for code in range(1, 100)])) == MOST_LOGS


def test_every_group_and_container_is_read_for_itself() -> None:
    one, other = dead("a"), dead("b", group="gpu")
    for found in (one, other):
        found["status"]["initContainerStatuses"] = [{**found["status"]["containerStatuses"][0], "name": "agent"}]
    read = [(found["metadata"]["name"], container) for found, container in logs_to_read([one, other])]
    assert read == [("a", "agent"), ("a", "worker"), ("b", "agent"), ("b", "worker")]


# what is told


@pytest.mark.parametrize("known", ["w_0", "w_3", "w_5"])
def test_those_that_were_not_read_are_told_with_those_that_were(known: str) -> None:
    [cause] = told(crashing(6), **{known: MISSING})
    assert "(6 of 6)" in cause.message and "lacks the Python module pandas_of_mine" in cause.message
    assert cause.lines == MISSING


def test_so_are_those_that_are_back() -> None:
    [cause] = told([back(f"w-{number}") for number in range(6)], w_2=MISSING)
    assert cause.reason == "Replaced" and "(6 of 6)" in cause.message and cause.lines == MISSING


def test_nobody_has_the_lines_of_one_that_died_in_another_way() -> None:
    ended, killed = told([dead("w-0", 1), dead("w-1", 137)], w_0=MISSING)
    assert (ended.lines, killed.lines) == (MISSING, ()) and "SIGKILL" in killed.message
    still, again = told([dead("w-0"), back("w-1")], w_0=MISSING)
    assert (still.lines, again.lines) == (MISSING, ()) and again.reason == "Replaced"


def test_a_log_that_is_gone_stands_for_nobody() -> None:
    [cause] = told(crashing(3), w_0=("unable to retrieve container logs for containerd://0123",), w_1=MISSING)
    assert "(3 of 3)" in cause.message and cause.lines == MISSING


# how they are read


class Nodes(Server):
    """Where logs are read: of whom, and how many at a time."""

    def __init__(self, *silent: str) -> None:
        super().__init__()
        self.of: list[str] = []
        self.at_once = 0
        self._silent = silent
        self._reading = 0

    async def logs(self, name: str, namespace: str, *, container: str, tail: int, previous: bool) -> AsyncIterator[str]:
        self.of.append(name)
        self._reading += 1
        self.at_once = max(self.at_once, self._reading)
        await asyncio.sleep(60 if name in self._silent else 0)
        self._reading -= 1
        yield f"last words of {name}"


def looking(server: Server, clock: Clock) -> Evidence:
    client = cast(Client, server)
    return Evidence(client, "lab", Ground(client, clock), clock)


def test_a_thousand_that_died_cost_a_few_requests_at_once() -> None:
    server = Nodes()
    [cause] = run(looking(server, Clock()).causes(crashing(1000), []))
    assert len(server.of) == server.at_once == SAMPLES
    assert "(1000 of 1000)" in cause.message and cause.lines == ("last words of w-0",)


def test_a_node_that_does_not_answer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_SECONDS", 0.05)
    [cause] = run(looking(Nodes("w-0"), Clock()).causes(crashing(5), []))
    assert "(5 of 5)" in cause.message and cause.lines == ("last words of w-1",)


def test_what_was_read_in_an_earlier_look_does_not_outlive_the_next() -> None:
    """The pod may have died once more since."""

    async def story() -> None:
        clock = Clock()
        found = looking(Nodes(), clock)
        first, *others = crashing(5)
        await found.causes([first], [])
        clock.now += PAUSE
        [cause] = await found.causes([*others, first], [])
        assert cause.lines == ("last words of w-1",)
        [cause] = await found.causes([first], [])
        assert cause.lines == ()

    run(story())
