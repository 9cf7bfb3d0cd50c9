"""Input and output of the explanations: a snapshot of the API objects, and one finding per member. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from oars.model import HEAD, LogPattern
from oars.places.kube.names import GROUP, Object
from oars.places.kube.state.observe import condition


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
    role: str = ""
    group: str = ""
    pod: str = ""
    subject: str = ""  # replaces the pod's name, for pods that do not exist yet


def group(obj: Object) -> str:
    return str((obj["metadata"].get("labels") or {}).get(GROUP, ""))


def role(obj: Object) -> str:
    """'head', 'worker' or, without a group label, ''. It is also the name of the engine's container."""
    return HEAD if group(obj) == HEAD else "worker" if group(obj) else ""


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def spec_section(obj: Object) -> str:
    """The part of the cluster spec that configures this pod."""
    if role(obj) == HEAD:
        return "the head"
    return f"worker group {group(obj)}" if group(obj) else "the pod"


def replicas(deployment: Object) -> int:
    value = deployment.get("spec", {}).get("replicas")
    return 1 if value is None else int(value)


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_disrupted(pod: Object) -> bool:
    """True if Kubernetes evicted, preempted or failed the pod: its containers' statuses explain nothing then."""
    status = pod.get("status", {})
    if condition(pod, "DisruptionTarget").get("status") == "True":
        return True
    return bool(status.get("phase") == "Failed" and status.get("reason"))


def container_statuses(pod: Object) -> list[Mapping[str, Any]]:
    """Statuses of init containers, then of containers."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def container_spec(pod: Object, container: str) -> Mapping[str, Any]:
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return next((each for each in containers if each["name"] == container), {})


def container_suffix(pod: Object, container: str) -> str:
    """' (container x)', or '' for the engine's container."""
    return "" if container == role(pod) else f" (container {container})"


def events_of(snapshot: Snapshot, obj: Object, *reasons: str) -> list[Object]:
    """Events about this object, oldest first. The UID is compared because a new pod may reuse an old one's name."""

    def is_about(involved: Mapping[str, Any]) -> bool:
        if involved.get("uid"):
            return bool(involved["uid"] == obj["metadata"].get("uid"))
        return bool(involved.get("name") == name(obj))

    found = [
        event for event in snapshot.events
        if event.get("reason") in reasons and is_about(event.get("involvedObject") or {})
    ]  # fmt: skip
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
