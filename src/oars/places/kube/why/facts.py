"""What the explanations are made from: the objects as the API server gave them, and one finding per member. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from oars.places.kube.names import CLUSTER, GROUP, Object

HEAD = "head"


@dataclass(frozen=True)
class Snapshot:
    """What was seen of one cluster and its namespace at one time."""

    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    deployments: Sequence[Object] = ()
    unheeded: Sequence[Object] = ()  # those of them that Kubernetes should have acted on by now
    nodes: Sequence[Object] | None = None  # None: not allowed to look
    quotas: Sequence[Object] = ()
    limit_ranges: Sequence[Object] = ()
    # By pod and container: the last lines of what died. Where many died alike, of some of them.
    log_tails: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


class Grade(IntEnum):
    """How grave: what keeps members from being made comes before what happened to them later."""

    REFUSED = 1
    IMAGE = 2
    START = 3
    NODE = 4
    SANDBOX = 5
    DEATH = 6
    LOST = 7
    PROBE = 8
    ROLLOUT = 9
    PAST = 10  # over; told so that nobody has to wonder


@dataclass(frozen=True)
class Finding:
    """One cause for one member. `text` goes on after the member's name and reads the same for one and for many."""

    grade: Grade
    reason: str
    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    alike: str = ""  # findings with the same word are told as one; without it, those with the same text
    role: str = ""
    group: str = ""
    pod: str = ""
    subject: str = ""  # for what has no pod yet


def labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def role(obj: Object) -> str:
    """Also the name of its container that runs the engine."""
    return HEAD if group(obj) == HEAD else "worker" if group(obj) else ""


def group(obj: Object) -> str:
    return labels(obj).get(GROUP, "")


def name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def whose(obj: Object) -> str:
    """Where in the description its settings are."""
    if role(obj) == HEAD:
        return "the head"
    return f"worker group {group(obj)}" if group(obj) else "the pod"


def cluster_of(snapshot: Snapshot) -> str:
    """The cluster's name, from whatever carries it."""
    for obj in (*snapshot.pods, *snapshot.deployments):
        if CLUSTER in labels(obj):
            return labels(obj)[CLUSTER]
    return ""


def replicas(owner: Object) -> int:
    """How many pods it shall have; not said means one."""
    wanted = owner.get("spec", {}).get("replicas")
    return 1 if wanted is None else int(wanted)


def condition(obj: Object, kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty when there is none."""
    found: Iterable[Mapping[str, Any]] = obj.get("status", {}).get("conditions") or ()
    return next((c for c in found if c.get("type") == kind), {})


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def events_of(snapshot: Snapshot, obj: Object, *reasons: str) -> list[Object]:
    """Events about this very object (a new pod may have an old one's name), the oldest first."""
    found = [
        event for event in snapshot.events
        if event.get("reason") in reasons and _is_about(event.get("involvedObject") or {}, obj)
    ]  # fmt: skip
    return sorted(found, key=when)


def _is_about(involved: Mapping[str, Any], obj: Object) -> bool:
    uid = involved.get("uid")
    if uid:
        return bool(uid == obj["metadata"].get("uid"))
    return bool(involved.get("name") == name(obj))


def when(event: Object) -> str:
    """When it was last seen, in a form that sorts. The scheduler writes other fields than the kubelet does."""
    series = event.get("series") or {}
    moments = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next((str(moment) for moment in moments if moment), "")


def seconds_between(earlier: str, later: str) -> float:
    """0 when either is not known."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except ValueError:
        return 0.0


def sentence_end(text: str) -> str:
    """Without the full stop and space at its end, to be followed by ours."""
    return text.strip().rstrip(".").strip()
