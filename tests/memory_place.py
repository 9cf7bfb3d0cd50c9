"""A place without processes or pods: members are entries of a dictionary. Small, but complete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oars.base import codec
from oars.base.errors import EngineUnreachable
from oars.model import (
    HEAD,
    Cause,
    Death,
    Desired,
    Ensure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Remove,
)
from oars.places.report import Report
from oars.plan.fill import fill


@dataclass
class MemoryStore:
    """What outlives the loop: the members, and what was recorded, as JSON."""

    members: dict[MemberId, Member] = field(default_factory=dict)
    state: str = "{}"
    report: Report | None = None
    starts: int = 0
    changes: int = 0  # of what was recorded
    now: float = 0.0

    def exit(self, member: MemberId, code: int, reason: str = "") -> None:
        """End a member behind the place's back."""
        reason = reason or f"exited with code {code}"
        self.members[member] = replace(
            self.members[member], state=MemberState.EXITED, reason=reason, exit_code=code, pid=None
        )


@dataclass(frozen=True)
class MemoryWire:
    """The engine of such a cluster is part of the test: there is nothing to send a request to."""

    members: Mapping[MemberId, Member]

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        return {name: {"client": f"memory/{name}:1"} for name in self.members}

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        return {name: member.incarnation for name, member in self.members.items()}

    def fill(self, text: str) -> str:
        return fill(text, {"head.host": f"memory/{HEAD}", "host": f"memory/{HEAD}"})

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        raise EngineUnreachable(f"Nothing listens on {port} in memory.")

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 120.0) -> Any:
        raise EngineUnreachable("There is no helper in memory.")


class MemoryPlace:
    """Implements oars.places.base.Place. Members run as soon as they are ensured."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def observe(self, desired: Desired) -> Observed:
        members = tuple(self.store.members.values())
        dead = [m for m in members if m.state is MemberState.EXITED]
        deaths = {m.id: Death(m.incarnation, self.store.now, m.started_at, m.reason, m.tail) for m in dead}
        return Observed(members, codec.load(LoopState, json.loads(self.store.state)), deaths)

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        for name in step.members:
            before = self.store.members.get(name)
            if before is not None and before.state is not MemberState.EXITED:
                continue
            self.store.starts += 1
            self.store.members[name] = Member(
                id=name,
                role=step.group.role,
                group=step.group.name,
                state=MemberState.RUNNING,
                incarnation=str(self.store.starts),
                head_epoch=desired.head_epoch,
                started_at=self.store.now,
                address=f"memory/{name}:1",
            )

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        for name in step.members:
            self.store.members.pop(name, None)
        return ()

    async def collect(self, desired: Desired) -> None:
        """Nothing is left behind in memory."""

    def wire(self, desired: Desired) -> MemoryWire:
        return MemoryWire(dict(self.store.members))

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        before = self.store.state, self.store.report
        self.store.state = json.dumps(codec.dump(state))
        self.store.report = report or self.store.report
        self.store.changes += before != (self.store.state, self.store.report)

    async def close(self) -> None:
        """There are no connections."""
