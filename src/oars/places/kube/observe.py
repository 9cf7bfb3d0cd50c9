"""Pods as members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from oars.model import HEAD, Failure, Member, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.names import Object


def is_staying(pod: Object) -> bool:
    """It counts: it is not on its way out, and has not ended for good (an evicted pod is replaced by another)."""
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") or names.GOING in metadata.get("annotations", {}):
        return False
    return phase(pod) not in ("Failed", "Succeeded")


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_ready(pod: Object) -> bool:
    """Its probes say so."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def role(pod: Object) -> Role:
    return Role(pod["metadata"]["labels"][names.ROLE])


def group(pod: Object, revisions: Mapping[str, str]) -> str:
    """The group's name; a pod of an older description of it belongs to a group of its own."""
    labels = pod["metadata"]["labels"]
    name = str(labels[names.GROUP])
    revision = labels.get(names.REVISION, "")
    return name if revisions.get(name, revision) == revision else f"{name}@{revision}"


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
        head=own if is_head else metadata.get("annotations", {}).get(names.HEAD_SEEN, "0"),
        started=_seconds(container.get("state", {}).get("running", {}).get("startedAt")),
        address=pod.get("status", {}).get("podIP", ""),
        reason=reason,
        answers=is_ready(pod),
    )


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
