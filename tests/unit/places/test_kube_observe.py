"""Pods as members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from oars.model import HEAD, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.state import observe

Object = dict[str, Any]
STARTED = "2026-11-16T03:00:00Z"


def created_by(deployment: str, labels: Mapping[str, str]) -> Object:
    """Metadata of a pod that a ReplicaSet of this Deployment created."""
    owner = {"kind": "ReplicaSet", "name": f"{deployment}-t1", "uid": f"{deployment}-t1", "controller": True}
    labels = {**labels, "pod-template-hash": "t1"}
    return {"ownerReferences": [owner], "generateName": f"{deployment}-t1-", "labels": labels}


def pod(name: str, role: str = "worker", *, state: Object | None = None, **more: Any) -> Object:
    """A pod that runs and is ready, unless told otherwise."""
    container = {"name": role, "restartCount": 0, "state": state or {"running": {"startedAt": STARTED}}}
    container |= more.pop("container", {})
    ready = more.pop("ready", True)
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "annotations": {},
        "creationTimestamp": more.pop("created", STARTED),
    }
    metadata |= created_by(f"demo-{role}", names.pod_labels("demo", "head" if role == "head" else "default"))
    metadata["labels"] |= {names.REVISION: more.pop("revision", "r1")} if role == "worker" else {}
    metadata["annotations"] |= more.pop("annotations", {})
    metadata |= more.pop("metadata", {})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *more.pop("conditions", ())]
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [container]}
    return {"metadata": metadata, "spec": {}, "status": status | more}


WAITING: Object = {"waiting": {"reason": "ContainerCreating"}}
DIED: Object = {"terminated": {"exitCode": 3, "finishedAt": STARTED}}


def only(found: Object) -> Any:
    (member,) = observe.members([found], {"default": "r1"})
    return member


def test_worker_that_is_being_deleted_runs_until_its_container_ends() -> None:
    deleted: Any = {"metadata": {"deletionTimestamp": STARTED}}
    pods = [pod("a"), pod("b", **deleted), pod("c", state=DIED, **deleted), pod("d", "head", **deleted)]
    assert observe.being_deleted(pods) == {"b": "uid-b"}


def test_running_pod_is_a_member() -> None:
    member = only(pod("demo-worker-x"))
    assert (member.id, member.role, member.group) == ("demo-worker-x", Role.WORKER, "default")
    assert member.state is MemberState.RUNNING and member.probe_ready
    assert (member.incarnation, member.address, member.head_epoch) == ("uid-demo-worker-x", "10.0.0.1", 0)


@pytest.mark.parametrize(
    ("creator", "labels", "expected"),
    [
        ("demo-head", names.pod_labels("demo"), True),
        ("demo-worker", names.pod_labels("demo", "default"), True),
        ("demo-worker-abcde", {**names.pod_labels("demo", "default"), names.REVISION: "abcdef0123"}, True),
        ("demo-big", {**names.pod_labels("demo", "big"), names.REVISION: "abcdef0123"}, True),
        ("mine", names.pod_labels("demo"), False),
        ("demo-worker", names.pod_labels("demo"), False),
        ("demo-head", names.pod_labels("demo", "default"), False),
        ("demo-worker-other", {**names.pod_labels("demo", "default"), names.REVISION: "abcdef0123"}, False),
        ("other-head", names.pod_labels("demo"), False),
        ("demo-head", {names.GROUP: "head"}, False),
        ("demo-head", {names.CLUSTER: "demo"}, False),
    ],
)
def test_member_is_a_pod_of_the_deployment_that_its_labels_imply(
    creator: str, labels: dict[str, str], expected: bool
) -> None:
    """A user's own Deployment may have our labels. Its newest pod would be the head, and get the helper's token."""
    assert observe.is_member({"metadata": created_by(creator, labels)}) is expected


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (pod("w", state=WAITING, ready=False), MemberState.WAITING, "ContainerCreating"),
        (pod("w", state=DIED, ready=False), MemberState.WAITING, "exited with code 3"),
        (
            pod("w", state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, ready=False),
            MemberState.WAITING,
            "was killed: it needed more memory than its limit",
        ),
        (
            pod("w", state={"waiting": {"reason": "CrashLoopBackOff"}}, container={"lastState": DIED}, ready=False),
            MemberState.WAITING,
            "exited with code 3",
        ),
        (
            pod("w", containerStatuses=[], phase="Pending", ready=False,
                conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]),
            MemberState.WAITING,
            "Unschedulable",
        ),
        (pod("w", containerStatuses=[], phase="Pending", ready=False), MemberState.WAITING, "the pod is being created"),
    ],
)  # fmt: skip
def test_states(found: Object, state: MemberState, reason: str) -> None:
    member = only(found)
    assert (member.state, member.reason, member.probe_ready) == (state, reason, False)


@pytest.mark.parametrize(
    "gone",
    [
        pod("w", metadata={"deletionTimestamp": STARTED}),
        pod("w", annotations={names.LEAVING: "true"}),
        pod("w", phase="Failed"),
        pod("w", phase="Succeeded"),
    ],
)
def test_terminating_pods_are_not_members(gone: Object) -> None:
    assert observe.members([gone], {}) == ()


def test_pod_without_member_labels_is_ignored() -> None:
    """Anybody who may label pods can do that to one, and to the pod of another program."""
    odd = pod("w", metadata={"labels": {names.CLUSTER: "demo"}}, state=DIED)
    assert observe.members([odd, pod("v")], {})[0].id == "v"
    assert (observe.outline(odd), observe.deaths([odd], 0.0)) == ((), {})
    assert not observe.is_member({"metadata": {}})


def test_newer_of_two_heads_is_the_member() -> None:
    old, new = pod("a", "head", created="2026-11-16T03:00:00Z"), pod("b", "head", created="2026-11-16T03:00:09Z")
    (member,) = observe.members([new, old], {})
    assert (member.id, member.incarnation) == (HEAD, "uid-b:0")


def test_container_restart_keeps_the_creation_time() -> None:
    created, again = "2026-11-16T03:00:00Z", {"running": {"startedAt": "2026-11-16T09:00:00Z"}}
    old, new = (only(pod("w", created=stamp, state=again)) for stamp in (created, "2026-11-16T03:00:09Z"))
    assert new.created_at - old.created_at == 9
    assert old.started_at - old.created_at == 6 * 3600


def test_head_restarted_in_place_is_a_new_incarnation() -> None:
    first, second = only(pod("h", "head")), only(pod("h", "head", container={"restartCount": 1}))
    assert (first.incarnation, second.incarnation) == ("uid-h:0", "uid-h:1")


def test_head_that_has_not_started_has_no_incarnation() -> None:
    """The epoch counts heads that ran."""
    assert only(pod("h", "head", state=WAITING, ready=False)).incarnation == ""
    assert only(pod("h", "head", containerStatuses=[], phase="Pending", ready=False)).incarnation == ""
    looping = {"restartCount": 2, "lastState": DIED}
    assert only(pod("h", "head", state=WAITING, container=looping, ready=False)).incarnation == "uid-h:2"


def test_workers_of_an_older_description_are_a_group_of_their_own() -> None:
    assert only(pod("w", revision="r0")).group == "default@r0"
    assert only(pod("w", revision="r1")).group == "default"


def test_workers_say_which_head_they_were_started_for() -> None:
    assert only(pod("w", annotations={names.HEAD_EPOCH: "2"})).head_epoch == 2


def test_deaths_are_those_that_the_kubelet_counted() -> None:
    died = pod("w", state={"waiting": {"reason": "CrashLoopBackOff"}}, container={"restartCount": 4, "lastState": DIED})
    found = observe.deaths([died, pod("x"), pod("h", "head", state=DIED)], 5.0)
    assert {member: (death.count, death.reason, death.incarnation) for member, death in found.items()} == {
        "w": (4, "exited with code 3", "uid-w:4"),
        HEAD: (1, "exited with code 3", "uid-h:0"),
    }


def test_death_without_a_timestamp_is_dated_now() -> None:
    """The kubelet keeps only the last container's state."""
    restarted = pod("w", container={"restartCount": 2})
    assert observe.deaths([restarted], 5.0)[MemberId("w")].at == 5.0


def test_one_death_has_one_incarnation_before_and_after_the_restart() -> None:
    """The loop counts deaths by it."""
    ended = {"terminated": {"exitCode": 3, "startedAt": "2026-11-16T02:00:00Z", "finishedAt": STARTED}}
    looping: Object = {"waiting": {"reason": "CrashLoopBackOff"}}
    life = [
        pod("w", state=ended),
        pod("w", container={"restartCount": 1, "lastState": ended}),
        pod("w", state=ended, container={"restartCount": 1, "lastState": ended}),
        pod("w", state=looping, container={"restartCount": 1, "lastState": ended}),
        pod("w", container={"restartCount": 2, "lastState": ended}),
    ]
    deaths = [observe.deaths([each], 5.0)[MemberId("w")] for each in life]
    assert [death.incarnation for death in deaths] == ["uid-w:0", "uid-w:0", "uid-w:1", "uid-w:1", "uid-w:1"]
    assert {death.at - death.started_at for death in deaths} == {3600}


def test_the_pod_of_the_newest_head_is_dialled() -> None:
    old, new = pod("a", "head", created="2026-11-16T03:00:00Z"), pod("b", "head", created="2026-11-16T03:00:09Z")
    assert observe.head_pod([new, old, pod("w")]) is new
    assert observe.head_pod([pod("w")]) is None


def test_head_being_replaced_is_not_ready() -> None:
    head = observe.replaced(only(pod("h", "head")))
    assert (head.state, head.incarnation, head.probe_ready) == (MemberState.WAITING, "", False)


@pytest.mark.parametrize(
    ("generation", "status", "is_it"),
    [
        (1, {}, True),
        (2, {}, False),
        (2, {"observedGeneration": 1, "updatedReplicas": 1}, False),
        (2, {"observedGeneration": 2}, False),
        (2, {"observedGeneration": 2, "updatedReplicas": 1}, True),
    ],
    ids=["as it was made", "edited", "edited, not seen yet", "seen, old pods go", "carried out"],
)
def test_head_is_current_once_its_deployment_is_rolled_out(generation: int, status: Object, is_it: bool) -> None:
    assert observe.is_rolled_out({"metadata": {"generation": generation}, "status": status}) is is_it
