"""The loop of a job that has a schedule: see the runs → decide → act → record. One pass, at any place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.plan.jobs import Hold
from oars.plan.schedule import POLL, RunSeen, cancelled, decide_schedule, held, run_name, shown
from oars.spec.job import Schedule
from oars.spec.job_status import JobStatus, ScheduleStatus

log = get_logger(__name__)


class Runs(Protocol):
    """The runs of one schedule. All methods can be repeated."""

    async def list(self) -> Sequence[RunSeen]: ...

    async def start(self, name: str) -> None: ...

    async def cancel(self, name: str) -> None: ...

    async def remove(self, run: RunSeen) -> None: ...

    async def record(self, status: JobStatus) -> None: ...


@dataclass(frozen=True)
class Template:
    """The job that has the schedule."""

    name: str
    schedule: Schedule | None  # None: its spec is invalid
    created: float
    is_suspended: bool = False
    is_cancelled: bool = False
    is_deleted: bool = False
    hold: Hold | None = None
    name_run: Callable[[str, float], str] = run_name


async def reconcile_schedule(
    template: Template, status: JobStatus, runs: Runs, clock: Callable[[], float]
) -> tuple[JobStatus, float | None]:
    """One pass. Returns the status that is stored now, and the seconds until the next pass; None: nothing is left to do
    until somebody changes the job."""
    found, now = await runs.list(), clock()
    if template.is_deleted and found:
        for run in found:
            await runs.remove(run)
        return status, POLL  # until all are gone
    if template.is_cancelled or template.is_deleted or status.state.is_final:
        starting = status.schedule.starting if status.schedule is not None else ""
        for name in sorted({run.name for run in found if not run.is_final} | ({starting} if starting else set())):
            await runs.cancel(name)  # also one that a late request created after the end
        if status.state.is_final:
            return status, 0.0
        after = cancelled(status, now)
        await runs.record(after)
        return after, 0.0
    if template.hold is not None or template.schedule is None:
        after = held(status, template.hold or Hold("InvalidSpec", ""), found)
        if after != status:
            await runs.record(after)
        return after, None
    return await _run_due(template, template.schedule, status, found, runs, now)


async def _run_due(
    template: Template, schedule: Schedule, status: JobStatus, found: Sequence[RunSeen], runs: Runs, now: float
) -> tuple[JobStatus, float | None]:
    if template.is_suspended:
        schedule = schedule.model_copy(update={"suspend": True})
    before = status.schedule or ScheduleStatus()
    failure: OarsError | None = None
    starting = "" if before.starting in {run.name for run in found} else before.starting
    if starting:  # the last pass ended before it was created, or it is not listed yet
        try:
            await runs.start(starting)
            found = [*found, RunSeen(starting, now)]
        except OarsError as error:
            failure = error
    decision = decide_schedule(
        template.name, schedule, template.created, before, found, now, name_run=template.name_run
    )
    if failure is not None and decision.status.last == before.last:
        raise failure
    missed = decision.status.missed + (failure is not None)  # a later run is due, and takes the place of that one
    starting = decision.start or ("" if failure is not None else starting)
    after = replace(status, schedule=replace(decision.status, missed=missed, starting=starting))
    after = shown(after, schedule)
    if after != status:
        await runs.record(after)
    for name in decision.cancel:
        await runs.cancel(name)
    for run in found:
        if run.name in decision.remove:
            await runs.remove(run)
    if decision.start:
        log.info(pairs("run starts", job=template.name, run=decision.start, missed=missed))
        await runs.start(decision.start)
    return after, decision.pause
