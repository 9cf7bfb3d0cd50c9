"""Input and output of the explanations: a snapshot of the API objects, and one finding per member. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from oars.model import LogPattern, Role
from oars.places.kube.names import Object
from oars.places.kube.state.observe import condition, group_name, role


@dataclass(frozen=True)
class Snapshot:
    """The objects of one cluster and its namespace at one point in time."""

    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    deployments: Sequence[Object] = ()
    stalled: Sequence[Object] = ()  # Deployments whose controller has ignored the latest generation for too long
    nodes: Sequence[Object] | None = None  # None: unknown, for example because RBAC forbids listing nodes
    quotas: Sequence[Object] = ()
    limit_ranges: Sequence[Object] = ()
    # (pod, container) -> last log lines of containers that died; only samples if many died the same way.
    log_tails: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    log_patterns: Sequence[LogPattern] = ()  # of the engine


class Severity(IntEnum):
    """Order in which causes are reported: what prevents a pod from being created comes first."""

    REFUSED = 1
    IMAGE = 2
    START = 3
    NODE = 4
    SANDBOX = 5
    DEATH = 6
    LOST = 7
    PROBE = 8
    ROLLOUT = 9
    PAST = 10  # already recovered


@dataclass(frozen=True)
class Finding:
    """One cause for one member. `text` follows the member's name and fits both singular and plural."""

    severity: Severity
    reason: str
    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    merge_key: str = ""  # findings with the same key become one cause; the default is `text`
    role: Role = Role.WORKER
    group: str = ""
    pod: str = ""
    subject: str = ""  # replaces the pod's name, for pods that do not exist yet


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def spec_section(pod: Object) -> str:
    """The part of the cluster spec that configures this pod."""
    return "the head" if role(pod) is Role.HEAD else f"worker group {group_name(pod)}"


def replicas(deployment: Object) -> int:
    value = deployment.get("spec", {}).get("replicas")
    return 1 if value is None else int(value)


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_disrupted(pod: Object) -> bool:
    """True if Kubernetes evicted, preempted or failed the pod: its containers' statuses explain nothing then."""
    status = pod.get("status", {})
    has_failed = status.get("phase") == "Failed" and bool(status.get("reason"))
    return has_failed or condition(pod, "DisruptionTarget").get("status") == "True"


def container_statuses(pod: Object) -> list[Mapping[str, Any]]:
    """Statuses of init containers, then of containers."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def container_spec(pod: Object, container: str) -> Mapping[str, Any]:
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return next((each for each in containers if each["name"] == container), {})


def container_suffix(pod: Object, container: str, *details: str) -> str:
    """' (container fetch; exit code 4)'; the engine's container is not named."""
    known = details if container == role(pod) else (f"container {container}", *details)
    return f" ({'; '.join(known)})" if known else ""


def events_of(snapshot: Snapshot, obj: Object, *reasons: str) -> list[Object]:
    """Events about this object, oldest first. The UID is compared because a new pod may reuse an old one's name."""
    found = []
    for event in snapshot.events:
        involved = event.get("involvedObject") or {}
        key = "uid" if involved.get("uid") else "name"
        if event.get("reason") in reasons and involved.get(key) == obj["metadata"].get(key):
            found.append(event)
    return sorted(found, key=last_seen)


def last_seen(event: Object) -> str:
    """Time of the last occurrence, in a form that sorts. The scheduler and the kubelet fill in different fields."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next((str(time) for time in times if time), "")


def seconds_between(earlier: str, later: str) -> float:
    """0 if either time is unknown."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except ValueError:
        return 0.0


def strip_period(text: str) -> str:
    """The text without its final full stop, to be embedded in a sentence."""
    return text.strip().rstrip(".").strip()
