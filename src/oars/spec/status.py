"""Status of a cluster. Its JSON form is a stable interface for users' scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Phase of a cluster or of a member."""

    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    DEGRADED = "Degraded"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"  # of a member that exits by design
    FAILED = "Failed"


@dataclass(frozen=True)
class Endpoints:
    client: str = ""
    dashboard: str = ""


@dataclass(frozen=True)
class GroupStatus:
    """A worker group. With autoscaling it has bounds, and the reason for the number that is wanted."""

    name: str
    wanted: int
    ready: int
    min: int | None = None
    max: int | None = None
    reason: str = ""
    message: str = ""
    needed: int | None = None  # by the demand now

    def to_dict(self) -> dict[str, Any]:
        """Without the fields of autoscaling if the group has none."""
        data = asdict(self)
        return data if self.max is not None else {key: data[key] for key in ("name", "wanted", "ready")}


@dataclass(frozen=True)
class MemberStatus:
    id: str
    role: str
    group: str
    phase: Phase
    address: str = ""
    pid: int | None = None
    reason: str = ""
    tasks: int | None = None  # that it runs or has in its queue; None: the engine does not report it, or not here


@dataclass(frozen=True)
class Expires:
    """When the cluster ends by itself, unless something changes, and which rule of its lifetime ends it: Idle, NoClient
    or MaxLifetime. `at` in seconds since the epoch."""

    at: float
    reason: str
    message: str


@dataclass(frozen=True)
class Status:
    """The output of `oars status -o json`."""

    name: str
    engine: str
    place: str
    phase: Phase
    reason: str = ""
    message: str = ""
    endpoints: Endpoints = Endpoints()
    groups: tuple[GroupStatus, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    mode: str = ""  # Kubernetes: "operator" or "direct"
    namespace: str = ""
    expires: Expires | None = None  # None: nothing is going to end it
    host: str = ""  # of a local cluster that belongs to another host, which shares the state directory
    created: float | None = None  # seconds since the epoch; None: unknown
    # Not in the JSON form:
    generation: int = 0  # of the spec that was observed
    has_guarded_dashboard: bool = False  # the dashboard requires the cluster's token

    @property
    def ready(self) -> int:
        """Ready workers of all groups."""
        return sum(group.ready for group in self.groups)

    @property
    def wanted(self) -> int:
        return sum(group.wanted for group in self.groups)

    def to_dict(self, *, members: bool = True) -> dict[str, Any]:
        data = {**asdict(self), "groups": [group.to_dict() for group in self.groups]}
        data["members"] = [asdict(member) for member in self.members]
        del data["generation"], data["has_guarded_dashboard"]
        if not members:
            del data["members"]
        return data


@dataclass(frozen=True)
class Gone:
    """A cluster that has ended by itself: an entry of `oars ls --gone -o json`. The reason is one of those of Expires,
    or OwnerGone. `ended` in seconds since the epoch."""

    name: str
    engine: str
    place: str
    ended: float
    reason: str
    message: str
    mode: str = ""
    namespace: str = ""
