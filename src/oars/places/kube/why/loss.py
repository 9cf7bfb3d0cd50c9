"""Pods that Kubernetes removed: evicted, preempted, drained, or lost with their node. Pure."""

from __future__ import annotations

from oars.places.kube.names import Object
from oars.places.kube.state.observe import condition, group_name, is_ready, phase
from oars.places.kube.why import facts
from oars.places.kube.why.facts import Finding, Severity, Snapshot, strip_period

_REPLACED = "Kubernetes creates a replacement on another node."
# Reason of the condition DisruptionTarget: reason, text and hint.
_DISRUPTIONS = {
    "PreemptionByScheduler": (
        "Preempted", "was preempted by a pod of higher priority", "Set a priorityClassName in `pod`, or add nodes.",
    ),
    "DeletionByTaintManager": (
        "NodeTainted", "was evicted: its node has a taint that it does not tolerate",
        f"{_REPLACED} To let it stay, add a toleration to `pod`.",
    ),
    "EvictionByEvictionAPI": ("Drained", "was evicted through the API, for example by `kubectl drain`", _REPLACED),
    "DeletionByPodGC": ("NodeLost", "was deleted: its node no longer exists", _REPLACED),
}  # fmt: skip


def find(snapshot: Snapshot, pod: Object) -> Finding | None:
    status, node = pod.get("status", {}), pod["spec"].get("nodeName", "")
    on_node = f" (node {node})" if node else ""
    if not facts.is_disrupted(pod):
        return _node_lost(snapshot, pod, node) if node and not is_ready(pod) else None
    group = group_name(pod)
    ready = sum(group_name(other) == group and is_ready(other) for other in snapshot.pods)
    if 0 < sum(facts.replicas(each) for each in snapshot.deployments if group_name(each) == group) <= ready:
        return None  # already replaced
    target = condition(pod, "DisruptionTarget")
    if target.get("status") == "True" and target.get("reason") in _DISRUPTIONS:
        reason, text, hint = _DISRUPTIONS[target["reason"]]
        return Finding(Severity.LOST, reason, f"{text}{on_node}", hint)
    if phase(pod) != "Failed" or not status.get("reason"):
        return None
    message = strip_period(str(status.get("message", "")))
    because = f": {message}" if message else ""
    if status["reason"] == "Evicted":
        hint = f"Give it more memory or ephemeral-storage, or a volume to spill to. {_REPLACED}"
        return Finding(Severity.LOST, "Evicted", f"was evicted{on_node}{because}", hint, merge_key=message)
    hint = f"{_REPLACED} If it fails again, run `kubectl describe node {node}`."
    return Finding(Severity.LOST, status["reason"], f"failed{on_node}{because}", hint)


def _node_lost(snapshot: Snapshot, pod: Object, node: str) -> Finding | None:
    """The kubelet of a lost node reports nothing: the pod keeps its last status, except that it is not Ready."""
    known = next((each for each in snapshot.nodes or () if facts.name(each) == node), None)
    if known is None:
        is_lost = condition(pod, "ContainersReady").get("status") == "True" and bool(
            facts.events_of(snapshot, pod, "NodeNotReady")
        )
        details = ""
    else:
        ready = condition(known, "Ready")
        is_lost = ready.get("status") != "True" and phase(pod) == "Running"
        details = f" ({strip_period(str(ready.get('message', ''))) or 'it is not Ready'})"
    if not is_lost:
        return None
    hint = f"Check the node: `kubectl describe node {node}`. Its pods are replaced after a few minutes."
    return Finding(Severity.LOST, "NodeLost", f"cannot be reached: node {node} does not respond{details}", hint)
