"""Operations on any cluster: wait until it is ready, read its logs, change its number of workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oars.base.errors import ClusterLost, NotFound, OarsError, SpecError, StartFailed, TimedOut
from oars.base.text import command
from oars.client.backend import ClusterHandle, LogOptions, Progress, check_member
from oars.model import HEAD
from oars.places.report import Report
from oars.spec.status import Phase, Status

if TYPE_CHECKING:  # loads pydantic
    from oars.spec.cluster import ClusterSpec

LAST_LINES = 12


async def wait_ready(handle: ClusterHandle, workers: int | None, seconds: float, progress: Progress) -> Status:
    """Wait until the head and that many workers are ready; None: until the cluster matches its spec. Raises TimedOut,
    StartFailed (waiting longer would not help) or ClusterLost."""
    last: Report | None = None
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            async for report in handle.watch():
                status = report.status
                if status.generation < await handle.generation():
                    continue
                last = report
                message = f": {status.message}" if status.message else ""
                progress(f"{status.name}: {status.phase}, {status.ready}/{status.wanted} workers ready{message}")
                if is_ready(status, workers):
                    return status
                for cause in report.causes:
                    if cause.reason == "CrashLoop":
                        raise StartFailed(cause.message, cause.hint, cause.lines)
                if status.phase is Phase.FAILED:
                    raise StartFailed(status.message or f"Cluster {status.name!r} failed.")
    except TimeoutError:
        raise await _timed_out(handle, seconds, last) from None
    raise ClusterLost(f"Cluster {handle.name!r} was stopped while waiting for it.")


def is_ready(status: Status, workers: int | None) -> bool:
    """True if the head and that many workers are ready. None: all are ready, and no worker is still draining."""
    if workers is not None:
        has_head = any(member.id == HEAD and member.phase is Phase.READY for member in status.members)
        return has_head and status.ready >= workers
    return status.phase is Phase.READY and all(member.phase is not Phase.STOPPING for member in status.members)


async def _timed_out(handle: ClusterHandle, seconds: float, last: Report | None) -> TimedOut:
    state, cause = "it has not reported its status.", None
    if last is not None:
        cause = last.causes[0] if last.causes else None
        state = f"{last.status.ready} of {last.status.wanted} workers ready. {cause.message if cause else ''}".rstrip()
    hint = (
        cause.hint if cause else ""
    ) or f"Increase the timeout, or run `{command('why', handle.name, namespace=handle.namespace)}`."
    lines = cause.lines if cause else ()
    if not lines:
        try:
            lines = tuple((await read_logs(handle, tail=LAST_LINES)).splitlines()[-LAST_LINES:])
        except OarsError:  # such as a container that never started: the cause says enough
            lines = ()
    return TimedOut(f"Timed out after {seconds:.0f} s waiting for cluster {handle.name!r}: {state}", hint, lines)


async def read_logs(handle: ClusterHandle, member: str | None = None, tail: int | None = None) -> str:
    """The log of one member, or of all members with the member's name before each line."""
    known = await handle.members()
    options = LogOptions(tail=tail)
    if member is not None:
        check_member(handle.name, member, known)
        return "\n".join([line async for line in handle.logs(member, options)])
    return "\n".join([f"[{each}] {line}" for each in known async for line in handle.logs(each, options)])


def with_workers(name: str, spec: ClusterSpec, replicas: int, group: str | None) -> ClusterSpec:
    """The spec of cluster `name` with that many workers in a group; None: the first group."""
    chosen = spec.group(group)
    if chosen is None:
        known = ", ".join(g.name for g in spec.workers)
        raise NotFound(f"Cluster {name!r} has no worker group {group!r}.", f"Groups: {known}.")
    try:
        return spec.with_replicas(chosen.name, replicas)
    except ValueError as error:
        raise SpecError(f"{replicas} is not a valid number of workers.", "Use a whole number, 0 or more.") from error
