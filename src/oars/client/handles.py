"""Operations on any cluster: wait until it is ready, read its logs, change its number of workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oars.base.errors import ClusterLost, Denied, NotFound, OarsError, SpecError, StartFailed, TimedOut, UsageError
from oars.base.text import command, join_names
from oars.client.backend import ClusterHandle, LogOptions, Progress, check_member, ignore
from oars.model import HEAD
from oars.places.report import Report
from oars.spec.status import Phase, Status

if TYPE_CHECKING:  # loads pydantic
    from oars.spec.cluster import ClusterSpec, WorkerGroup

LAST_LINES = 12
_READS_CLUSTER = re.compile(r"(?:^|(?<=[.!?] ))[^`.]*`oars (?:why|logs|status|scale|drain|down|exec) [^`]*`[^`.]*\.\s*")


async def wait_ready(
    handle: ClusterHandle, workers: int | None, seconds: float, progress: Progress,
    on_report: Callable[[Report], None] | None = None,
) -> Status:  # fmt: skip
    """Wait until the head and that many workers are ready; None: until the cluster matches its spec. Raises TimedOut,
    StartFailed or Denied (waiting longer would not help), or ClusterLost. `progress` gets a line whenever it differs
    from the one before, `on_report` every report."""
    last: Report | None = None
    progress = _without_repeats(progress)
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            async for report in handle.watch():
                status, last = report.status, report
                if on_report is not None:
                    on_report(report)
                if status.generation < await handle.generation():
                    if report.causes:  # such as a missing operator
                        progress(f"{status.name}: {report.causes[0].message}")
                    continue
                if workers is not None and workers > status.wanted:
                    raise UsageError(
                        f"{workers} workers can never be ready: cluster {status.name!r} has {status.wanted}.",
                        f"Scale it first: scale({workers}), or `{scale_command(handle, workers)}`.",
                    )
                message = f": {status.message}" if status.message else ""
                progress(f"{status.name}: {status.phase}, {status.ready}/{status.wanted} workers ready{message}")
                if is_ready(status, workers):
                    return status
                _raise_if_hopeless(report)
    except TimeoutError:
        raise await _timed_out(handle, seconds, last) from None
    raise ClusterLost(f"Cluster {handle.name!r} was stopped while waiting for it.")


def _without_repeats(progress: Progress) -> Progress:
    """Pass on lines that differ from the one before."""
    last = ""

    def changed(line: str) -> None:
        nonlocal last
        if line != last:
            last = line
            progress(line)

    return changed


def _raise_if_hopeless(report: Report) -> None:
    for cause in report.causes:
        if cause.reason == "CrashLoop":
            raise StartFailed(cause.message, cause.hint, cause.lines)
        if cause.reason == "RightMissing":
            raise Denied(cause.message, cause.hint)
    if report.status.phase is Phase.FAILED:
        raise StartFailed(report.status.message or f"Cluster {report.status.name!r} failed.")


def scale_command(handle: ClusterHandle, workers: int) -> str:
    return command("scale", handle.name, str(workers), namespace=handle.namespace)


def is_ready(status: Status, workers: int | None) -> bool:
    """True if the head and that many workers are ready. None: all are ready, and no worker is still draining."""
    if workers is not None:
        has_head = any(member.id == HEAD and member.phase is Phase.READY for member in status.members)
        return has_head and status.ready >= workers
    return status.phase is Phase.READY and all(member.phase is not Phase.STOPPING for member in status.members)


async def _timed_out(handle: ClusterHandle, seconds: float, last: Report | None) -> TimedOut:
    state, cause, stays = "it has not reported its status.", None, ""
    if last is not None:
        cause = last.causes[0] if last.causes else None
        state = f"{last.status.ready} of {last.status.wanted} workers ready"
        if last.status.ready >= last.status.wanted and (leaving := _leaving_members(last)):
            state = f"{join_names(leaving)} {'has' if len(leaving) == 1 else 'have'} not left yet"
            stays = "The request stays. "
        state = f"{state}. {cause.message if cause else ''}".rstrip()
    hint = (
        cause.hint if cause else ""
    ) or f"Increase the timeout, or run `{command('why', handle.name, namespace=handle.namespace)}`."
    lines = cause.lines if cause else ()
    if not lines:
        try:
            lines = tuple((await _last_lines(handle, last))[-LAST_LINES:])
        except OarsError:  # such as a container that never started: the cause says enough
            lines = ()
    return TimedOut(
        f"Timed out after {seconds:.0f} s waiting for cluster {handle.name!r}: {state}", stays + hint, lines
    )


async def _last_lines(handle: ClusterHandle, last: Report | None) -> list[str]:
    """The ends of the logs of those that the wait is for; of all members if there is no report."""
    known = await handle.members()
    late = known if last is None else [member for member in known if member in _late_members(last)]
    options = LogOptions(tail=LAST_LINES)
    return [f"[{each}] {line}" for each in late async for line in handle.logs(each, options)]


def _late_members(report: Report) -> Sequence[str]:
    """The members of the gravest cause. If it names none: the head or, if that is ready, the workers that are not. Not
    those that leave: the log does not say what they wait for."""
    if report.causes and report.causes[0].members:
        leaving = _leaving_members(report)
        return [member for member in report.causes[0].members if member not in leaving]
    late = [member.id for member in report.status.members if member.phase not in (Phase.READY, Phase.STOPPING)]
    return [HEAD] if HEAD in late else late


def _leaving_members(report: Report) -> Sequence[str]:
    return [member.id for member in report.status.members if member.phase is Phase.STOPPING]


def removed_hint(error: OarsError, name: str) -> str:
    """The hint of an error after which a new cluster was removed: without commands that read the cluster."""
    hint = _READS_CLUSTER.sub("", error.hint)
    longer = " To wait longer, use `--timeout 10m`, in Python `timeout='10m'`." if isinstance(error, TimedOut) else ""
    return f"{hint} Cluster {name!r} was removed again.{longer}".strip()


async def read_logs(handle: ClusterHandle, member: str | None = None, tail: int | None = None) -> str:
    """The log of one member, or of all members with the member's name before each line."""
    known = await handle.members()
    options = LogOptions(tail=tail)
    if member is not None:
        check_member(handle.name, member, known)
        return "\n".join([line async for line in handle.logs(member, options)])
    return "\n".join([f"[{each}] {line}" for each in known async for line in handle.logs(each, options)])


async def scale(
    handle: ClusterHandle, workers: int, group: str | None = None, *, force: bool = False, note: Progress = ignore
) -> None:
    """Set the number of workers of a group; None: the first one. Ends its autoscaling, and says so by `note`. force: do
    not drain."""
    spec = await handle.spec()
    chosen = _group(handle.name, spec, group).name
    await handle.change(lambda spec: with_workers(handle.name, spec, workers, group), force=force)
    if chosen in spec.autoscaled:
        note(f"{handle.name}: autoscaling of group {chosen} is off from now on")


def with_workers(name: str, spec: ClusterSpec, replicas: int, group: str | None) -> ClusterSpec:
    """The spec of cluster `name` with that many workers in a group; None: the first group. Its autoscaling ends: that
    would change the number again. Other groups stay as they are."""
    try:
        return spec.with_group(_group(name, spec, group).name, replicas=replicas, min=None, max=None)
    except ValueError as error:
        raise SpecError(f"{replicas!r} is not a valid number of workers.", "Use a whole number, 0 or more.") from error


@dataclass(frozen=True)
class Bounds:
    """For autoscaling: the least and the largest number of workers of a group; None for the group: the first one.
    `options` are other fields of `autoscale`."""

    minimum: int
    maximum: int
    group: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


async def adapt(handle: ClusterHandle, bounds: Bounds) -> Status:
    """Let the number of workers of a group follow the load, within these bounds."""
    wanted = _wanted((await handle.report()).status)
    await handle.change(lambda spec: with_bounds(handle.name, spec, bounds, wanted))
    return (await handle.report()).status


async def stop_adapting(handle: ClusterHandle, group: str | None = None) -> Status:
    """End autoscaling of a group; None: of all. The present numbers of workers stay."""
    wanted = _wanted((await handle.report()).status)
    await handle.change(lambda spec: without_bounds(handle.name, spec, group, wanted))
    return (await handle.report()).status


def _wanted(status: Status) -> dict[str, int]:
    return {group.name: group.wanted for group in status.groups}


def without_bounds(name: str, spec: ClusterSpec, group: str | None, wanted: Mapping[str, int]) -> ClusterSpec:
    """The spec of cluster `name` without autoscaling of a group; None: of all. `wanted`, the present numbers of
    workers, stay."""
    chosen = spec.autoscaled if group is None else (_group(name, spec, group).name,)
    for each in chosen:
        spec = with_workers(name, spec, wanted.get(each, _group(name, spec, each).replicas), each)
    return spec


def with_bounds(name: str, spec: ClusterSpec, bounds: Bounds, wanted: Mapping[str, int]) -> ClusterSpec:
    """The spec of cluster `name` with autoscaling of a group within these bounds. It begins with `wanted`, the present
    numbers of workers. Counted, so that it is no number set by hand, and ends what was."""
    group = _group(name, spec, bounds.group)
    replicas = min(max(wanted.get(group.name, group.replicas), bounds.minimum), bounds.maximum)
    numbers = {"min": bounds.minimum, "max": bounds.maximum, "replicas": replicas, "adapted": group.adapted + 1}
    try:
        return spec.with_group(group.name, **numbers).with_autoscaling(enabled=True, **bounds.options)
    except ValueError as error:
        hint = "Use whole numbers, with 0 <= minimum <= maximum and 1 <= maximum."
        raise SpecError(f"Autoscaling is not possible with these settings: {first_problem(error)}.", hint) from error


def first_problem(error: ValueError) -> str:
    """The first problem, if pydantic lists them; with the name of the field, if it is that of one."""
    problems: Sequence[Mapping[str, Any]] = getattr(error, "errors", list)()
    if not problems:
        return str(error)
    field, text = problems[0]["loc"][-1:], str(problems[0]["msg"]).removeprefix("Value error, ")
    return f"{field[0]}: {text}" if field and isinstance(field[0], str) else text


def _group(name: str, spec: ClusterSpec, group: str | None) -> WorkerGroup:
    chosen = spec.group(group)
    if chosen is None:
        known = ", ".join(g.name for g in spec.workers)
        raise NotFound(f"Cluster {name!r} has no worker group {group!r}.", f"Groups: {known}.")
    return chosen
