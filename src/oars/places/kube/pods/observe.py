"""Derives members and deaths from pods that no controller owns. The engine's container is the first of a pod. Pure.

A pod whose containers have ended for good is a dead member until another pod replaces it. The replacement names it in
an annotation, and carries the number of its predecessors that died soon after their start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.model import HEAD, Death, Member, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.state.observe import (
    annotation,
    blocked,
    container_state,
    ending,
    group,
    head_epoch,
    is_ready,
    phase,
    role,
    seconds,
)
from oars.plan.decide import STABLE

REPLACES = "oars.dev/replaces"  # annotation: name of the dead pod that this one replaces
EARLIER_DEATHS = "oars.dev/earlier-deaths"  # annotation: how many predecessors in a row died soon after their start

_ENDED = ("Failed", "Succeeded")


def has_ended(pod: Object) -> bool:
    """True if none of its containers will run again."""
    return phase(pod) in _ENDED


def is_deleted(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def current(pods: Sequence[Object]) -> list[Object]:
    """The pods that are members: the newest head, and the workers that are neither being deleted nor replaced."""
    present = sorted((pod for pod in pods if not is_deleted(pod)), key=_age)
    replaced = {annotation(pod, REPLACES) for pod in present}
    heads = [pod for pod in present if role(pod) is Role.HEAD]
    workers = [pod for pod in present if role(pod) is Role.WORKER and pod["metadata"]["name"] not in replaced]
    return heads[-1:] + workers


def replaced(pods: Sequence[Object]) -> list[Object]:
    """Dead workers that have been replaced. A dead head stays: it may own the other objects."""
    members = {pod["metadata"]["uid"] for pod in current(pods)}
    return [
        pod
        for pod in pods
        if role(pod) is Role.WORKER and pod["metadata"]["uid"] not in members and has_ended(pod) and not is_deleted(pod)
    ]


def _age(pod: Object) -> tuple[str, int]:
    """Sorts older pods first. Times have a resolution of a second; versions order pods of the same second."""
    return str(pod["metadata"]["creationTimestamp"]), int(annotation(pod, EARLIER_DEATHS) or 0)


def member(pod: Object, revisions: Mapping[str, str]) -> Member:
    metadata, is_head, status = pod["metadata"], role(pod) is Role.HEAD, _container(pod)
    ended, restarts = _terminated(status), status.get("restartCount", 0)
    if has_ended(pod):
        state, reason = MemberState.EXITED, _end_of(pod)
    else:
        state, reason = container_state(pod, status)
    has_started = bool({"running", "terminated"} & status.get("state", {}).keys() or status.get("lastState"))
    return Member(
        id=HEAD if is_head else MemberId(metadata["name"]),
        role=role(pod),
        group=HEAD if is_head else group(pod, revisions),
        state=state,
        incarnation=(f"{metadata['uid']}:{restarts}" if has_started else "") if is_head else metadata["uid"],
        head_epoch=head_epoch(pod),
        started_at=seconds(status.get("state", {}).get("running", {}).get("startedAt")),
        created_at=seconds(metadata["creationTimestamp"]),
        address=pod.get("status", {}).get("podIP", ""),
        reason=reason,
        exit_code=ended.get("exitCode") if state is MemberState.EXITED else None,
        probe_ready=is_ready(pod),
        blocked=blocked(pod),
    )


def death(pod: Object, now: float) -> Death | None:
    """The last time that the engine's container died."""
    status = _container(pod)
    restarts, last = status.get("restartCount", 0), _terminated(status)
    if not has_ended(pod) and not last and not restarts:
        return None
    is_running = "running" in status.get("state", {})
    dead = restarts - 1 if is_running else restarts  # which start of the container
    at, started_at = seconds(last.get("finishedAt")) or now, seconds(last.get("startedAt"))
    count = earlier_deaths(pod) + max(1, restarts if is_running else restarts + 1)
    return Death(f"{pod['metadata']['uid']}:{dead}", at, started_at, _end_of(pod), count=count)


def earlier_deaths(pod: Object) -> int:
    return int(annotation(pod, EARLIER_DEATHS) or 0)


def deaths_before_successor(pod: Object, now: float) -> int:
    """How many deaths in a row the successor of this dead pod has behind it. One that ran well for a while counts as
    none."""
    found = death(pod, now)
    if found is None or (found.started_at and found.at - found.started_at > STABLE):
        return 0
    return found.count


def _end_of(pod: Object) -> str:
    """Why it ended: what Kubernetes did to the pod, or how its process exited."""
    last = _terminated(_container(pod))
    done_to_it = pod.get("status", {}).get("reason", "")
    return f"was ended by Kubernetes ({done_to_it})" if done_to_it else ending(last)


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    state, before = status.get("state", {}), status.get("lastState", {})
    found: Mapping[str, Any] = state.get("terminated") or before.get("terminated") or {}
    return found


def _container(pod: Object) -> Mapping[str, Any]:
    """The status of the pod's first container."""
    first = pod["spec"]["containers"][0]["name"]
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in found if status["name"] == first), {})


def owner_of(pods: Sequence[Object]) -> Object | None:
    """The oldest head pod that exists. It owns all other objects of the cluster: they are collected with it."""
    heads = sorted((pod for pod in pods if role(pod) is Role.HEAD and not is_deleted(pod)), key=_age)
    return heads[0] if heads else None


def instance_selector(instance: str) -> str:
    return names.selector({names.INSTANCE: instance})
