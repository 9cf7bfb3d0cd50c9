"""What the worker groups and the members of a cluster need, have and use, over time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oars.client.backend import ClusterHandle, SupportsUsage, Usage
from oars.places.report import Report
from oars.spec.status import GroupStatus, Status

KEPT = 150  # samples of a meter, for the lines of the notebook view: five minutes
FIRST_SECONDS = 0.5  # between the two measurements of the first sample


@dataclass(frozen=True)
class Load:
    """cpu: processors in use; memory: bytes; None: not measured at this place."""

    cpu: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class GroupLoad:
    """A worker group at one moment. cpu and memory: as in Load; tasks: those that its members report."""

    group: GroupStatus
    cpu: float | None
    memory: int | None
    tasks: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.group), "cpu": self.cpu, "memory": self.memory, "tasks": self.tasks}


@dataclass(frozen=True)
class Sample:
    at: float  # seconds since 1970
    groups: tuple[GroupLoad, ...]
    members: Mapping[str, Load] = field(default_factory=dict)  # those that were measured

    def to_dict(self) -> dict[str, Any]:
        return {"time": self.at, "groups": [each.to_dict() for each in self.groups]}


class Meter:
    """Takes samples of one cluster. The use of processors is that since the sample before."""

    def __init__(self, handle: ClusterHandle) -> None:
        self._handle = handle
        self.kept: deque[Sample] = deque(maxlen=KEPT)
        self._before: Mapping[str, Usage] | None = None
        self._at: float | None = None

    async def sample(self, pause: float = 0.0, timeout: float | None = None) -> tuple[Report, Sample]:  # noqa: ASYNC109 (of the report)
        """Wait for `pause` seconds, or less before the first sample; then take one."""
        if self._at is None:
            pause = min(FIRST_SECONDS, pause or FIRST_SECONDS)
            self._before, self._at = await _usage(self._handle), time.monotonic()
        await asyncio.sleep(pause)
        report, after = await self._handle.report(timeout), await _usage(self._handle)
        now = time.monotonic()
        sample = make_sample(time.time(), report.status, self._before, after, now - self._at)
        self._before, self._at = after, now
        self.kept.append(sample)
        return report, sample


async def samples(handle: ClusterHandle, interval: float) -> AsyncIterator[Sample]:
    """A sample every `interval` seconds, the first one sooner."""
    meter = Meter(handle)
    while True:
        _, sample = await meter.sample(interval)
        yield sample


async def _usage(handle: ClusterHandle) -> Mapping[str, Usage] | None:
    return await handle.usage() if isinstance(handle, SupportsUsage) else None


def make_sample(
    at: float, status: Status, before: Mapping[str, Usage] | None, after: Mapping[str, Usage] | None, seconds: float
) -> Sample:
    """`before` and `after`: two measurements that are that many seconds apart; None: the place cannot measure."""
    tasks = {group.name: _tasks(status, group.name) for group in status.groups}
    if after is None:
        return Sample(at, tuple(GroupLoad(group, None, None, tasks[group.name]) for group in status.groups))
    known = before or {}
    members = {member: _load(known.get(member, Usage()), used, seconds) for member, used in after.items()}
    groups = []
    for group in status.groups:
        ids = [each.id for each in status.members if each.group == group.name]
        loads = [members[each] for each in ids if each in members]
        is_known = bool(loads) or not ids  # the metrics API measures a new pod after a while
        cpu, memory = round(sum(load.cpu or 0.0 for load in loads), 2), sum(load.memory or 0 for load in loads)
        load = Load(cpu, memory) if is_known else Load()
        groups.append(GroupLoad(group, load.cpu, load.memory, tasks[group.name]))
    return Sample(at, tuple(groups), members)


def _tasks(status: Status, group: str) -> int | None:
    found = [each.tasks for each in status.members if each.group == group and each.tasks is not None]
    return sum(found) if found else None


def _load(before: Usage, after: Usage, seconds: float) -> Load:
    if after.cpu is not None:
        return Load(after.cpu, after.memory)
    # A member that was restarted has used less than the one before.
    return Load(max(0.0, after.cpu_seconds - before.cpu_seconds) / max(seconds, 1e-3), after.memory)
