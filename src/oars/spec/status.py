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
    name: str
    wanted: int
    ready: int


@dataclass(frozen=True)
class MemberStatus:
    id: str
    role: str
    group: str
    phase: Phase
    address: str = ""
    pid: int | None = None
    reason: str = ""


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
    generation: int = 0  # of the spec that was observed; not in the JSON form

    @property
    def ready(self) -> int:
        """Ready workers of all groups."""
        return sum(group.ready for group in self.groups)

    @property
    def wanted(self) -> int:
        return sum(group.wanted for group in self.groups)

    def to_dict(self, *, members: bool = True) -> dict[str, Any]:
        data = {**asdict(self), "groups": [asdict(group) for group in self.groups]}
        data["members"] = [asdict(member) for member in self.members]
        del data["generation"]
        if not members:
            del data["members"]
        return data
