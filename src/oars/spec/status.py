"""Status: what every front door shows. The JSON form is a contract with users' scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Of a cluster and, as far as they fit, of its members."""

    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    DEGRADED = "Degraded"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
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
    """The contract of `oars status -o json`."""

    name: str
    engine: str
    place: str
    phase: Phase
    reason: str = ""
    message: str = ""
    endpoints: Endpoints = Endpoints()
    groups: tuple[GroupStatus, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    mode: str = ""  # Kubernetes: who looks after it, "operator" or "direct"
    namespace: str = ""
    generation: int = 0  # of the description it speaks of; not part of the contract

    @property
    def ready(self) -> int:
        """Workers ready, over all groups."""
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

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Status:
        return cls(
            name=data["name"],
            engine=data["engine"],
            place=data["place"],
            phase=Phase(data["phase"]),
            reason=data["reason"],
            message=data["message"],
            endpoints=Endpoints(**data["endpoints"]),
            groups=tuple(GroupStatus(**group) for group in data["groups"]),
            members=tuple(
                MemberStatus(**{**member, "phase": Phase(member["phase"])}) for member in data.get("members", ())
            ),
            mode=data.get("mode", ""),
            namespace=data.get("namespace", ""),
            generation=data.get("generation", 0),
        )
