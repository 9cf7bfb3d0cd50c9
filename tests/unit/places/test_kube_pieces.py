"""Pieces of the Kubernetes place: when it asks the API server for evidence, what it remembers of its own writes, and
which changes of a status are worth one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, cast

from oars.kube.client import Client, Listing
from oars.kube.kinds import NODE, Kind
from oars.model import Cause, Notes
from oars.places.kube import names
from oars.places.kube.evidence import LONG_PAUSE, PAUSE, STUCK, Evidence, Ground
from oars.places.kube.root import COUNT_SECONDS, ClusterRoot
from oars.places.kube.seen import CATCH_UP, Fresh
from oars.spec.status import GroupStatus, Phase, Status
from tests.unit.places.test_kube_observe import WAITING, Object, pod


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.written: list[Object] = []

    async def list(self, kind: Kind, namespace: str | None, *, fields: str = "") -> Listing:
        self.asked[kind.plural] += 1
        return Listing([], "1")

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str = "") -> Object:
        self.written.append(body[subresource])
        return {}

    async def create(self, obj: Object) -> Object:
        self.written.append(obj)
        return obj


def client(server: Server) -> Client:
    return cast(Client, server)


def run(work: Awaitable[Any]) -> Any:
    async def waited() -> Any:
        return await work

    return asyncio.run(waited())


def numbered(found: Object, version: str, node: str = "") -> Object:
    found["metadata"]["resourceVersion"] = version
    found["spec"] = {"nodeName": node, "containers": []} if node else {"containers": []}
    return found


def coming() -> Object:
    return numbered(pod("w", state=WAITING, ready=False), "1", "n1")


def troubled() -> Object:
    return numbered(pod("w", state={"waiting": {"reason": "ErrImagePull"}}, ready=False), "1", "n1")


# evidence


def test_many_clusters_ask_once() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        ground = Ground(client(server), clock)
        await asyncio.gather(*(ground.look(NODE, None) for _ in range(10)))
        assert server.asked == {"nodes": 1}
        clock.now += PAUSE
        await ground.look(NODE, None)
        assert server.asked == {"nodes": 2}

    run(story())


def test_a_cluster_that_takes_its_course_asks_for_nothing() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", Ground(client(server), clock), clock)
        for version in range(20):  # something happens all the time
            clock.now += STUCK - 1
            await evidence.causes([numbered(coming(), str(version), "n1")], [])
        assert not server.asked

    run(story())


def test_trouble_and_standstill_are_looked_into() -> None:
    async def story(found: Object, wait: float) -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", Ground(client(server), clock), clock)
        await evidence.causes([found], [])
        clock.now += wait
        await evidence.causes([found], [])
        assert server.asked["events"] == 1

    run(story(troubled(), 0.1))
    run(story(coming(), STUCK + 0.1))


def test_what_has_been_broken_for_long_is_looked_into_now_and_then() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", Ground(client(server), clock), clock)
        for _ in range(600):
            clock.now += 1
            await evidence.causes([troubled()], [])
        assert server.asked["events"] < 40 + 600 / LONG_PAUSE

    run(story())


# our own writes


def test_answers_to_our_writes_hold_until_the_watch_has_caught_up() -> None:
    clock = Clock()
    fresh = Fresh(clock)
    old, new = ({"metadata": {"uid": "u", "resourceVersion": version}} for version in ("9", "10"))
    fresh.note(new)
    assert fresh.newest([old]) == [new]
    assert fresh.newest([]) == [new]  # we made it, and the watch has not told yet
    later = {"metadata": {"uid": "u", "resourceVersion": "11"}}
    assert fresh.newest([later]) == [later]
    assert fresh.newest([]) == []  # seen once, and gone


def test_an_answer_does_not_hold_for_ever() -> None:
    clock = Clock()
    fresh = Fresh(clock)
    fresh.note({"metadata": {"uid": "u", "resourceVersion": "10"}})
    clock.now += CATCH_UP + 1
    assert fresh.newest([]) == []


# the status of a ComputeCluster


def told(phase: Phase, ready: int) -> Status:
    return Status("demo", "played", "kubernetes", phase, groups=(GroupStatus("default", 3, ready),), generation=1)


def root(server: Server, clock: Clock) -> ClusterRoot:
    metadata = {"name": "demo", "namespace": "lab", "uid": "u", "generation": 1}
    return ClusterRoot(client(server), {"metadata": metadata}, clock)


def test_a_start_is_told_in_few_writes() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        for phase, ready in ((Phase.PENDING, 0), (Phase.STARTING, 0), (Phase.STARTING, 2), (Phase.READY, 3)):
            await kept.save(Notes(), told(phase, ready), ())
            await kept.save(Notes(), told(phase, ready), ())
        assert [body["phase"] for body in server.written] == ["Ready"]
        selector = server.written[0]["selector"]
        assert selector == f"{names.CLUSTER}=demo,{names.ROLE}=worker,{names.GROUP}=default"

    run(story())


def test_a_long_start_is_told_as_it_goes() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        for ready in range(3):
            clock.now += COUNT_SECONDS
            await kept.save(Notes(), told(Phase.STARTING, ready), ())
            await kept.save(Notes(), told(Phase.STARTING, ready), ())
        assert [body["ready"] for body in server.written] == ["0/3", "1/3", "2/3"]

    run(story())


def test_what_is_wrong_is_told_at_once_and_as_an_event() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        cause = Cause("ImagePull", "The image cannot be pulled.", "Correct its name.")
        wrong = replace(told(Phase.STARTING, 0), reason=cause.reason, message=cause.message)
        await kept.save(Notes(), wrong, (cause,))
        assert server.written[0]["message"] == "The image cannot be pulled. Correct its name."
        assert (server.written[1]["kind"], server.written[1]["reason"]) == ("Event", "ImagePull")

    run(story())


def test_what_the_loop_must_remember_is_written_before_it_acts() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        await kept.save(Notes(), told(Phase.READY, 3), ())
        await kept.save(Notes(head="b", head_changes=1), None, ())
        assert server.written[1]["notes"]["headChanges"] == 1

    run(story())
