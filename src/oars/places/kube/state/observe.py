"""Pods as members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from oars.model import HEAD, Failure, Member, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.names import Object


def is_member(pod: Object) -> bool:
    """Whoever may label a pod can give it a cluster's name, or take from a member what makes it one. Such a pod is
    nothing to us."""
    return names.GROUP in (pod["metadata"].get("labels") or ())


def is_staying(pod: Object) -> bool:
    """It counts: it is a member, not on its way out, and has not ended for good (an evicted pod is replaced)."""
    return is_member(pod) and is_up(pod) and names.GOING not in pod["metadata"].get("annotations", {})


def is_up(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and phase(pod) not in ("Failed", "Succeeded")


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_ready(pod: Object) -> bool:
    """Its probes say so."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_running(pod: Object) -> bool:
    """Its engine's process runs, ready or not."""
    return _state(pod, _container(pod, role(pod).value))[0] is MemberState.RUNNING


def role(pod: Object) -> Role:
    return Role.HEAD if pod["metadata"]["labels"][names.GROUP] == HEAD else Role.WORKER


def group(pod: Object, revisions: Mapping[str, str]) -> str:
    """The group's name; a pod of an older description of it belongs to a group of its own."""
    labels = pod["metadata"]["labels"]
    name = str(labels[names.GROUP])
    revision = labels.get(names.REVISION, "")
    return name if revisions.get(name, revision) == revision else f"{name}@{revision}"


def containers(pod: Object) -> list[str]:
    """All of them, the member's own first: those beside it, those that came before, those that people added to look."""
    spec, own = pod["spec"], role(pod).value
    kinds = ("containers", "initContainers", "ephemeralContainers")
    named = [str(container["name"]) for kind in kinds for container in spec.get(kind) or ()]
    return sorted(named, key=lambda name: name != own)


def members(pods: Iterable[Object], revisions: Mapping[str, str]) -> tuple[Member, ...]:
    """`revisions`: of each worker group, as it shall be."""
    staying = sorted(filter(is_staying, pods), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    heads = [pod for pod in staying if role(pod) is Role.HEAD][-1:]
    workers = [pod for pod in staying if role(pod) is Role.WORKER]
    return tuple(_member(pod, revisions) for pod in [*heads, *workers])


def _member(pod: Object, revisions: Mapping[str, str]) -> Member:
    metadata, kind = pod["metadata"], role(pod)
    container = _container(pod, kind.value)
    state, reason = _state(pod, container)
    is_head = kind is Role.HEAD
    own = f"{metadata['uid']}:{container.get('restartCount', 0)}"
    return Member(
        id=HEAD if is_head else MemberId(metadata["name"]),
        role=kind,
        group="head" if is_head else group(pod, revisions),
        state=state,
        incarnation=metadata["uid"],
        head=own if is_head else metadata.get("annotations", {}).get(names.HEAD_EPOCH, "0"),
        started=_seconds(container.get("state", {}).get("running", {}).get("startedAt")),
        address=pod.get("status", {}).get("podIP", ""),
        reason=reason,
        answers=is_ready(pod),
        made=_seconds(metadata["creationTimestamp"]),
    )


def outline(pod: Object) -> tuple[object, ...]:
    """What is different if a pod has become another member than it was, or none: to make members to compare is dear."""
    if not is_staying(pod):
        return ()
    container = _container(pod, role(pod).value)
    address = pod.get("status", {}).get("podIP", "")
    return is_ready(pod), address, container.get("restartCount", 0), *_state(pod, container)


def is_starting(old: Object, new: Object) -> bool:
    """A pod that comes up as it should: it was not ready, has not failed, and was not started anew."""
    if is_ready(old) or not is_staying(old) or not is_staying(new):
        return False
    before, after = (_container(pod, role(pod).value) for pod in (old, new))
    failed = _state(new, after)[0] is MemberState.EXITED
    return not failed and before.get("restartCount", 0) == after.get("restartCount", 0)


def _container(pod: Object, name: str) -> Mapping[str, Any]:
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in found if status["name"] == name), {})


def _state(pod: Object, container: Mapping[str, Any]) -> tuple[MemberState, str]:
    state = container.get("state", {})
    if "running" in state:
        return MemberState.RUNNING, ""
    if "terminated" in state:
        return MemberState.EXITED, _ending(state["terminated"])
    waiting = state.get("waiting", {}).get("reason", "")
    if waiting == "CrashLoopBackOff":
        return MemberState.EXITED, _ending(container.get("lastState", {}).get("terminated", {}))
    return MemberState.WAITING, waiting or _pending(pod)


def _pending(pod: Object) -> str:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("reason", "Unschedulable"))
    return "the pod is being created"


def _ending(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "was killed: it needed more memory than its limit"
    code = terminated.get("exitCode")
    return "ended" if code is None else f"exited with code {code}"


def failures(pods: Iterable[Object], now: float) -> dict[MemberId, Failure]:
    """Members whose container died; Kubernetes counts for us."""
    found = {}
    for pod in filter(is_staying, pods):
        kind = role(pod)
        container = _container(pod, kind.value)
        ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated")
        if not container.get("restartCount") and not container.get("state", {}).get("terminated"):
            continue
        member = HEAD if kind is Role.HEAD else MemberId(pod["metadata"]["name"])
        last = _seconds((ended or {}).get("finishedAt")) or now
        reason = _ending(ended or {})
        found[member] = Failure(max(1, container.get("restartCount", 1)), last, 0.0, pod["metadata"]["uid"], reason)
    return found


def _seconds(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def is_of(pod: Object, deployment: Object) -> bool:
    wanted = deployment["spec"]["selector"]["matchLabels"]
    labels = pod["metadata"]["labels"]
    return all(labels.get(name) == value for name, value in wanted.items())


def is_rolled_out(deployment: Object) -> bool:
    """Its pods are none of an older description. Of one that is as it was made there is no older one; its controller,
    which may have much to do, need not have said so."""
    if deployment["metadata"]["generation"] == 1:
        return True
    return is_acted_on(deployment) and deployment["status"].get("updatedReplicas", 0) >= 1


def replaced(head: Member) -> Member:
    """One that stands for a moment longer, but is not the one that was asked for."""
    return replace(head, state=MemberState.WAITING, answers=False, reason="it is being replaced")


def is_settled(deployment: Object, pods: list[Object]) -> bool:
    """No more of its pods are left than there shall be."""
    return is_acted_on(deployment) and len(list(filter(is_up, pods))) <= deployment["spec"].get("replicas", 1)


def has_unseen(deployment: Object, pods: Iterable[Object]) -> bool:
    """Its controller counts more pods than we have been shown: our watch lags, and a ReplicaSet that is lowered now may
    take one that we know nothing of."""
    seen = sum(is_of(pod, deployment) and is_up(pod) for pod in pods)
    return bool(deployment.get("status", {}).get("replicas", 0) > seen)


def is_acted_on(deployment: Object) -> bool:
    """Its controller has seen what was last asked of it."""
    seen = deployment.get("status", {}).get("observedGeneration", 0)
    return bool(seen >= deployment["metadata"]["generation"])
