"""Pieces of the Kubernetes place: when it asks the API server for evidence, what it remembers of its own writes, and
which changes of a status are worth one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.kube.client import Client, Listing
from oars.kube.kinds import NODE, Kind
from oars.model import Cause, LoopState, MemberId, Retiring
from oars.places.kube import names
from oars.places.kube.evidence import POLL, SLOW_POLL, STALLED, STUCK, Evidence, SharedLists
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.cache import CATCH_UP, ReadYourWrites
from oars.places.kube.state.root import PROGRESS_SECONDS, ResourceRoot
from oars.places.kube.state.status_codec import COMPUTE_CLUSTER_STATUS
from oars.places.report import Report
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
        self.written: list[Object] = []  # statuses
        self.events: list[Object] = []
        self.read: list[tuple[str, bool]] = []

    async def logs(
        self, name: str, namespace: str, *, container: str, tail: int, previous: bool, limit_bytes: int
    ) -> AsyncIterator[str]:
        self.read.append((container, previous))
        yield f"last words of {container}"

    async def list(self, kind: Kind, namespace: str | None, *, fields: str = "") -> Listing:
        self.asked[kind.plural] += 1
        return Listing([], "1")

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str = "") -> Object:
        self.written.append(body[subresource])
        return {}

    async def create(self, obj: Object) -> Object:
        self.events.append(obj)
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
        lists = SharedLists(client(server), clock)
        await asyncio.gather(*(lists.get(NODE, None) for _ in range(10)))
        assert server.asked == {"nodes": 1}
        clock.now += POLL
        await lists.get(NODE, None)
        assert server.asked == {"nodes": 2}

    run(story())


def test_healthy_start_reads_no_evidence() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", SharedLists(client(server), clock), clock)
        for version in range(20):  # something happens all the time
            clock.now += STUCK - 1
            await evidence.causes([numbered(coming(), str(version), "n1")], [])
        assert not server.asked

    run(story())


def test_failures_and_stalled_starts_are_examined() -> None:
    async def story(found: Object, wait: float) -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", SharedLists(client(server), clock), clock)
        await evidence.causes([found], [])
        clock.now += wait
        await evidence.causes([found], [])
        assert server.asked["events"] == 1

    run(story(troubled(), 0.1))
    run(story(coming(), STUCK + 0.1))


def test_deployment_that_no_controller_observes_is_reported() -> None:
    async def story(observed: int, wait: float) -> tuple[int, list[str]]:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", SharedLists(client(server), clock), clock)
        metadata = {"name": "demo-head", "labels": names.pod_labels("demo"), "generation": 1, "resourceVersion": "1"}
        deployment = {"metadata": metadata, "spec": {}, "status": {"observedGeneration": observed}}
        await evidence.causes([], [deployment])
        clock.now += wait
        found = await evidence.causes([], [deployment])
        return server.asked["events"], [cause.reason for cause in found]

    assert run(story(0, STALLED + 0.1)) == (1, ["RolloutStuck"])
    assert run(story(0, STALLED - 0.1)) == (0, [])
    assert run(story(1, STALLED + 0.1)) == (0, [])


def test_long_failures_are_polled_slowly() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        evidence = Evidence(client(server), "lab", SharedLists(client(server), clock), clock)
        for _ in range(600):
            clock.now += 1
            await evidence.causes([troubled()], [])
        assert server.asked["events"] < 40 + 600 / SLOW_POLL

    run(story())


ENDED: Object = {"terminated": {"exitCode": 4}}
LOOPING: Object = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED, "restartCount": 2}


@pytest.mark.parametrize(
    ("where", "status", "read"),
    [
        ("initContainerStatuses", {"name": "fetch", **LOOPING}, ("fetch", True)),
        ("initContainerStatuses", {"name": "fetch", "state": ENDED, "restartCount": 0}, ("fetch", False)),
        ("initContainerStatuses", {"name": "agent", **LOOPING}, ("agent", True)),
        ("containerStatuses", {"name": "proxy", **LOOPING}, ("proxy", True)),
    ],
)
def test_the_log_is_that_of_the_container_that_died(where: str, status: Object, read: tuple[str, bool]) -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        found = numbered(pod("w", ready=False), "1", "n1")
        found["status"][where] = [*found["status"].get(where, ()), {**status, "ready": False}]
        evidence = Evidence(client(server), "lab", SharedLists(client(server), clock), clock)
        [cause] = await evidence.causes([found | {"metadata": found["metadata"] | {"namespace": "lab"}}], [])
        assert server.read == [read]
        assert cause.lines == (f"last words of {read[0]}",) and f"container {read[0]}" in cause.message

    run(story())


# our own writes


def test_answers_to_our_writes_hold_until_the_watch_has_caught_up() -> None:
    clock = Clock()
    fresh = ReadYourWrites(clock)
    old, new = ({"metadata": {"uid": "u", "resourceVersion": version}} for version in ("9", "10"))
    fresh.note(new)
    assert fresh.newest([old]) == [new]
    assert fresh.newest([]) == [new]  # we made it, and the watch has not told yet
    later = {"metadata": {"uid": "u", "resourceVersion": "11"}}
    assert fresh.newest([later]) == [later]
    assert fresh.newest([]) == []  # seen once, and gone


def test_cached_evidence_expires() -> None:
    clock = Clock()
    fresh = ReadYourWrites(clock)
    fresh.note({"metadata": {"uid": "u", "resourceVersion": "10"}})
    clock.now += CATCH_UP + 1
    assert fresh.newest([]) == []


# the status of a ComputeCluster


def told(phase: Phase, ready: int) -> Status:
    return Status("demo", "simulated", "kubernetes", phase, groups=(GroupStatus("default", 3, ready),), generation=1)


def root(server: Server, clock: Clock, status: Object | None = None) -> ResourceRoot:
    metadata = {"name": "demo", "namespace": "lab", "uid": "u", "generation": 1}
    resource = {"metadata": metadata, "status": status or {"phase": "Pending"}}  # the definition's default
    return ResourceRoot(client(server), COMPUTE_CLUSTER, resource, COMPUTE_CLUSTER_STATUS, clock)


async def save(kept: ResourceRoot, status: Status, *causes: Cause) -> None:
    await kept.save(LoopState(), Report(status, causes))
    await kept.publish()


def events(server: Server) -> list[str]:
    return [f"{event['type']} {event['reason']}" for event in server.events]


def test_normal_life_has_normal_events_only() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        clock.now += PROGRESS_SECONDS
        starting = Cause("HeadStarting", "The head is running but does not answer yet.", "", ("refused",))
        await save(kept, replace(told(Phase.STARTING, 0), reason=starting.reason), starting)
        await save(kept, told(Phase.READY, 3))
        larger = replace(told(Phase.STARTING, 3), groups=(GroupStatus("default", 5, 3),))
        await save(kept, larger)
        leaving = LoopState(retiring={MemberId("w"): Retiring(1.0, drained=True)}, head_epoch=1)
        await kept.save(leaving, Report(told(Phase.READY, 3)))
        replaced = Cause("HeadReplaced", "The head was replaced.", "Connect again.")
        await kept.save(LoopState(head_epoch=1), Report(told(Phase.READY, 3), (replaced,)))
        await kept.publish()
        assert events(server) == [
            "Normal Starting", "Normal HeadStarting", "Normal Ready", "Normal Scaled", "Normal Ready",
            "Normal Scaled", "Normal Drained", "Normal HeadReplaced",
        ]  # fmt: skip
        assert server.events[2]["message"] == "The head and 3/3 workers are ready."
        assert server.events[3]["message"] == "Group default: from 3 to 5 workers."

    run(story())


KSTATUS = {  # phase → what kstatus makes of the conditions
    Phase.PENDING: "InProgress",
    Phase.STARTING: "InProgress",
    Phase.READY: "Current",
    Phase.DEGRADED: "InProgress",
    Phase.STOPPING: "InProgress",
    Phase.FAILED: "Failed",
}


def kstatus(conditions: list[Object]) -> str:
    """The rules of sigs.k8s.io/cli-utils for resources that it does not know, which Flux uses."""
    state = {each["type"]: each["status"] for each in conditions}
    if state.get("Stalled") == "True":
        return "Failed"
    if state.get("Reconciling") == "True" or state.get("Ready") in ("False", "Unknown"):
        return "InProgress"
    return "Current"


@pytest.mark.parametrize("phase", KSTATUS)
def test_kstatus_understands_the_conditions(phase: Phase) -> None:
    found = COMPUTE_CLUSTER_STATUS.dump_report(Report(told(phase, 2)), {}, "now")["conditions"]
    assert kstatus(found) == KSTATUS[phase]
    assert {each["message"] for each in found} == {"2/3 workers are ready."}
    invalid = COMPUTE_CLUSTER_STATUS.dump_failure(Cause("InvalidSpec", "No."), Phase.FAILED, 2, {}, "now")
    assert kstatus(invalid["conditions"]) == "Failed"


def test_condition_shows_that_the_head_is_held_back() -> None:
    cause = Cause("HeadOutdated", "It waits.", "Delete it.")
    found = COMPUTE_CLUSTER_STATUS.dump_report(Report(told(Phase.READY, 3), (cause,)), {}, "now")["conditions"]
    assert [(each["type"], each["status"], each["message"]) for each in found] == [
        ("Ready", "True", "3/3 workers are ready."), ("HeadOutdated", "True", "It waits."),
    ]  # fmt: skip


def test_start_takes_few_status_writes() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        for phase, ready in ((Phase.PENDING, 0), (Phase.STARTING, 0), (Phase.STARTING, 2), (Phase.READY, 3)):
            await save(kept, told(phase, ready))
            await save(kept, told(phase, ready))
        assert [body["phase"] for body in server.written] == ["Ready"]
        selector = server.written[0]["selector"]
        assert selector == f"{names.CLUSTER}=demo,{names.GROUP}=default"

    run(story())


def test_long_start_shows_progress() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        for ready in range(3):
            clock.now += PROGRESS_SECONDS
            await save(kept, told(Phase.STARTING, ready))
            await save(kept, told(Phase.STARTING, ready))
        assert [body["ready"] for body in server.written] == ["0/3", "1/3", "2/3"]

    run(story())


def test_failure_is_written_at_once_and_as_an_event() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        cause = Cause("ImagePull", "The image cannot be pulled.", "Correct its name.")
        wrong = replace(told(Phase.STARTING, 0), reason=cause.reason, message=cause.message)
        await save(kept, wrong, cause)
        assert server.written[0]["message"] == "The image cannot be pulled. Correct its name."
        assert events(server) == ["Normal Starting", "Warning ImagePull"]

    run(story())


def test_saving_a_status_creates_nothing() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        await kept.save(LoopState(), Report(crashed(), (CRASH,)))
        await kept.refuse(REFUSED, 1)
        assert (len(server.written), server.events) == (2, []), "Events have their own step"
        for _ in range(2):
            await kept.publish()
        assert events(server) == ["Warning RightMissing"]

    run(story())


def test_loop_state_is_written_before_it_acts() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        await save(kept, told(Phase.READY, 3))
        await kept.save(LoopState(head="b", head_epoch=1), None)
        assert server.written[1]["head"] == {"incarnation": "b", "epoch": 1}

    run(story())


CRASH = Cause("CrashLoop", "The head keeps dying (3 times).", "Read its log.", ("Traceback", "at 10:01"))


def crashed(cause: Cause = CRASH) -> Status:
    return replace(told(Phase.DEGRADED, 0), reason=cause.reason, message=cause.message)


def test_causes_are_written_with_lines_and_removed_when_resolved() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        long = replace(CRASH, lines=(*(str(number) for number in range(20)), "x" * 1000))
        await save(kept, crashed(), long)
        (listed,) = server.written[0]["causes"]
        assert (listed["reason"], listed["hint"]) == ("CrashLoop", "Read its log.")
        assert listed["lines"] == ["13", "14", "15", "16", "17", "18", "19", "x" * 300]
        await save(kept, told(Phase.READY, 3))
        assert server.written[-1]["causes"] is None
        before = len(server.written)
        await save(kept, told(Phase.READY, 3))
        assert len(server.written) == before

    run(story())


def test_other_lines_of_the_same_cause_are_no_news() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        quiet = replace(CRASH, lines=())
        await save(kept, crashed(), quiet)
        server.written.clear()
        for second in range(5):
            clock.now += PROGRESS_SECONDS
            await save(kept, crashed(), replace(CRASH, lines=(f"at 10:0{second}",)))
            await save(kept, crashed(), quiet)
        assert [body["causes"][0]["lines"] for body in server.written] == [["at 10:00"]], "they came, and stay"

    run(story())


def test_status_of_another_replica_is_not_written_again() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        await save(root(server, clock), crashed(), CRASH)
        status = server.written[0]
        server.written.clear()
        kept = root(server, clock, status)
        clock.now += PROGRESS_SECONDS
        await save(kept, crashed(), replace(CRASH, lines=("at 10:09",)))
        assert server.written == []

    run(story())


def test_number_of_causes_is_limited_and_draining_is_left_out() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        many = [replace(CRASH, message=f"Pod {number} died.") for number in range(9)]
        leaving = Cause("Draining", "w is kept.", "It goes when that is done.")
        course = Cause("Loading", "It takes its course.")
        await save(root(server, clock), crashed(many[0]), many[0], leaving, course, *many[1:])
        assert [cause["message"] for cause in server.written[0]["causes"]] == [f"Pod {n} died." for n in range(5)]

    run(story())


REFUSED = Cause("RightMissing", "The operator may not create secrets.", "Add this rule.")


def test_refusal_is_written_once_and_removed_when_resolved() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        for _ in range(3):
            await kept.refuse(REFUSED, 1)
            await kept.publish()
        (status,), (event,) = server.written, server.events
        assert (status["reason"], status["observedGeneration"]) == ("RightMissing", 1)
        assert status["message"] == "The operator may not create secrets. Add this rule."
        assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ("False", "RightMissing")
        assert (event["kind"], event["reason"]) == ("Event", "RightMissing")
        await save(kept, told(Phase.STARTING, 0))
        assert (server.written[-1]["reason"], server.written[-1]["causes"]) == ("", None)

    run(story())


def test_ready_cluster_with_a_refused_pass_stays_ready_until_its_spec_changes() -> None:
    async def story() -> None:
        server, clock = Server(), Clock()
        kept = root(server, clock)
        await save(kept, told(Phase.READY, 3))
        await kept.refuse(REFUSED, 1)
        assert "phase" not in server.written[1]
        await kept.refuse(REFUSED, 2)
        assert server.written[-1]["phase"] == "Degraded"

    run(story())


def test_object_that_the_server_does_not_know_is_hidden_until_the_watch_catches_up() -> None:
    now = 0.0
    fresh = ReadYourWrites(lambda: now)
    pod = {"metadata": {"uid": "1", "resourceVersion": "7"}}
    fresh.note_deleted("1")
    assert fresh.newest([pod]) == []
    now = CATCH_UP + 1
    assert fresh.newest([pod]) == [pod]
