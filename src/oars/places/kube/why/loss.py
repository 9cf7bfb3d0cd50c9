"""Pods that had to go: evicted, preempted, drained, or on a node that does not answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from oars.places.kube.names import Object
from oars.places.kube.why.facts import (
    Finding,
    Grade,
    Snapshot,
    condition,
    events_of,
    group,
    is_ready,
    name,
    replicas,
    role,
    sentence_end,
)

_BY = {
    "PreemptionByScheduler": (
        "Preempted", "had to make room for a pod of higher priority",
        "Give the pods a priorityClassName, or add nodes.",
    ),
    "DeletionByTaintManager": (
        "NodeTainted", "had to leave: the node has got a taint that is not tolerated",
        "It is made again elsewhere; a toleration in `pod` lets it stay.",
    ),
    "EvictionByEvictionAPI": (
        "Drained", "had to leave: the node is being emptied, or somebody evicted it",
        "It is made again elsewhere.",
    ),
    "DeletionByPodGC": ("NodeLost", "had to go: the node no longer exists", "It is made again elsewhere."),
}  # fmt: skip


def findings(snapshot: Snapshot, pod: Object) -> Iterable[Finding]:
    status = pod.get("status", {})
    target = condition(pod, "DisruptionTarget")
    node = pod["spec"].get("nodeName", "")
    on = f" (node {node})" if node else ""
    if target.get("status") == "True" and target.get("reason") in _BY:
        if not _is_whole(snapshot, pod):
            reason, text, hint = _BY[target["reason"]]
            yield Finding(Grade.LOST, reason, f"{text}{on}", hint)
        return
    if status.get("phase") == "Failed" and status.get("reason"):
        if not _is_whole(snapshot, pod):
            yield _failed(status["reason"], sentence_end(str(status.get("message", ""))), on)
        return
    if not is_ready(pod) and node:
        yield from _silent_node(snapshot, pod, node)


def is_over(pod: Object) -> bool:
    """It is not the pod's own story any more: something took it away."""
    status = pod.get("status", {})
    by = condition(pod, "DisruptionTarget")
    return bool(by.get("status") == "True" or (status.get("phase") == "Failed" and status.get("reason")))


def _failed(reason: str, message: str, on: str) -> Finding:
    words = f": {message}" if message else ""
    if reason == "Evicted":
        hint = "Give it more memory or ephemeral-storage, or a volume to spill to; it is made again."
        return Finding(Grade.LOST, "Evicted", f"had to leave{on}{words}", hint, alike=message)
    hint = "It is made again; look at the node if this goes on."
    return Finding(Grade.LOST, reason, f"failed{on}{words}", hint)


def _silent_node(snapshot: Snapshot, pod: Object, node: str) -> Iterable[Finding]:
    """Of a node that is away nobody reports: the pod still looks as it did, only not Ready."""
    hint = f"Look at the node (`kubectl describe node {node}`); its pods are made again elsewhere after some minutes."
    known = next((n for n in snapshot.nodes or () if name(n) == node), None)
    if known is not None:
        ready = condition(known, "Ready")
        if ready.get("status") != "True" and _did_run(pod):
            words = sentence_end(str(ready.get("message", ""))) or "it is not Ready"
            yield Finding(Grade.LOST, "NodeLost", f"cannot be reached: node {node} is away ({words})", hint)
        return
    looks_well = condition(pod, "ContainersReady").get("status") == "True"
    if looks_well and events_of(snapshot, pod, "NodeNotReady"):
        yield Finding(Grade.LOST, "NodeLost", f"cannot be reached: node {node} is away", hint)


def _did_run(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


def _is_whole(snapshot: Snapshot, pod: Object) -> bool:
    """Its place has been taken by another: that it went is history."""
    alike = [other for other in snapshot.pods if role(other) == role(pod) and group(other) == group(pod)]
    wanted = sum(replicas(d) for d in snapshot.deployments
                 if role(d) == role(pod) and group(d) == group(pod))  # fmt: skip
    return 0 < wanted <= sum(map(is_ready, alike))
