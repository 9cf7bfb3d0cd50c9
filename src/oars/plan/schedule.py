"""decide_schedule: the runs of a job that has a schedule. Pure: a function of the schedule, what is recorded, the runs
that exist, and the time.

Each run is a job of its own, named after the minute for which it is due, so that it is started once. Runs that were
missed are counted, and only the last of them is made up for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from oars.plan.jobs import CANCELLED, SUSPENDED, Hold
from oars.spec.cron import find_zone, last_time, next_time, parse_cron
from oars.spec.job_status import JobState, JobStatus, ScheduleStatus

if TYPE_CHECKING:
    from oars.spec.job import Schedule

MOST_MISSED = 100  # that are counted at a time
LONGEST_PAUSE = 600.0  # clocks are set
POLL = 1.0
SCHEDULED = "Scheduled"


@dataclass(frozen=True)
class RunSeen:
    """A run of the schedule that exists."""

    name: str
    created: float
    is_final: bool = False
    uid: str = ""  # distinguishes it from a later one of the same name, if the place needs that


@dataclass(frozen=True)
class ScheduleDecision:
    """The status to store; then the runs to cancel, to remove and to start. pause: seconds until the next pass."""

    status: ScheduleStatus
    cancel: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    start: str = ""
    pause: float | None = None


def run_name(job: str, at: float) -> str:
    return f"{job}-{int(at) // 60}"


def due_of(run: str) -> float | None:
    """The time for which the run is due; None: that is not the name of a run."""
    minute = re.search(r"-(\d{1,9})$", run)
    return float(minute[1]) * 60 if minute else None


def schedule_of(run: str) -> str:
    """The name of the job that has the schedule."""
    return run.rpartition("-")[0]


def decide_schedule(  # noqa: PLR0913 (its inputs)
    job: str, schedule: Schedule, created: float, status: ScheduleStatus, runs: Sequence[RunSeen], now: float, *,
    name_run: Callable[[str, float], str] = run_name,
) -> ScheduleDecision:  # fmt: skip
    """The status is stored before the steps, so that a run is not started again after it has ended and was removed."""
    cron, zone = parse_cron(schedule.cron), find_zone(schedule.time_zone)
    ended = sorted((run for run in runs if run.is_final), key=lambda run: run.created, reverse=True)
    newest = name_run(job, status.last) if status.last is not None else ""  # a late request could create it again
    remove = tuple(run.name for run in ended[schedule.history :] if run.name != newest)
    active = tuple(sorted(run.name for run in runs if not run.is_final))
    status, since = _begun(replace(status, active=active), schedule, created, now)
    if schedule.suspend:
        return ScheduleDecision(status, remove=remove)
    at = last_time(cron, zone, now)
    following = next_time(cron, zone, now)
    pause = None if following is None else min(LONGEST_PAUSE, max(POLL, following - now))
    status = replace(status, next=following)
    if at is None or at <= since:
        return ScheduleDecision(status, remove=remove, pause=pause)
    missed = status.missed + _count(schedule, since, at)
    name = name_run(job, at)
    others = tuple(each for each in active if each != name)
    if others and schedule.concurrency == "Forbid":
        status = replace(status, last=at, since=at, missed=missed + 1)
        return ScheduleDecision(status, remove=remove, pause=pause)
    if others and schedule.concurrency == "Replace":
        return ScheduleDecision(status, cancel=others, remove=remove, pause=POLL)
    started = replace(status, last=at, since=at, missed=missed, active=tuple(sorted((*others, name))))
    return ScheduleDecision(started, (), remove, name, pause)


def _begun(status: ScheduleStatus, schedule: Schedule, created: float, now: float) -> tuple[ScheduleStatus, float]:
    """The status with `since`: the creation of the job; the present time if the schedule was changed or resumed."""
    since = status.since if status.since is not None else created
    if schedule.suspend:
        return replace(status, cron="", since=since, next=None), since
    cron = f"{schedule.cron} {schedule.time_zone}"
    if status.since is not None and status.cron != cron:
        since = max(since, now)
    return replace(status, cron=cron, since=since), since


def _count(schedule: Schedule, last: float, at: float) -> int:
    """How many runs were due between two times."""
    cron, zone = parse_cron(schedule.cron), find_zone(schedule.time_zone)
    count = 0
    while count < MOST_MISSED and (found := next_time(cron, zone, last)) is not None and found < at:
        count, last = count + 1, found
    return count


def shown(status: JobStatus, schedule: Schedule) -> JobStatus:
    """The status of the job that has the schedule, as users read it. Times are those of its zone."""
    if schedule.suspend:
        return replace(status, state=JobState.SUSPENDED, reason=SUSPENDED, message="No run starts.")
    following = status.schedule.next if status.schedule is not None else None
    message = "No run is due any more."
    if following is not None:
        at = datetime.fromtimestamp(following, find_zone(schedule.time_zone))
        message = f"The next run is due at {at:%Y-%m-%d %H:%M} ({schedule.time_zone})."
    return replace(status, state=JobState.QUEUED, reason=SCHEDULED, message=message)


def held(status: JobStatus, hold: Hold, runs: Sequence[RunSeen]) -> JobStatus:
    """The status of a schedule of which no run may start at present."""
    active = tuple(sorted(run.name for run in runs if not run.is_final))
    schedule = replace(status.schedule or ScheduleStatus(), active=active, next=None)
    return replace(status, state=JobState.QUEUED, reason=hold.reason, message=hold.message, schedule=schedule)


def cancelled(status: JobStatus, now: float) -> JobStatus:
    schedule = replace(status.schedule or ScheduleStatus(), active=(), next=None, starting="")
    return replace(
        status, state=JobState.CANCELLED, reason=CANCELLED, message="The schedule was cancelled.", ended=now,
        schedule=schedule,
    )  # fmt: skip


def is_template(status: JobStatus, *, has_schedule: bool) -> bool:
    """True if the job starts runs and does not run itself. What it was at first it stays."""
    return status.schedule is not None or (has_schedule and not status.attempt)


def refused_edit(status: JobStatus, *, has_schedule: bool) -> Hold | None:
    """Why a job with this status cannot have, or not have, a schedule."""
    if has_schedule and not is_template(status, has_schedule=has_schedule):
        return Hold("InvalidSpec", "schedule: a job that has run cannot get one. Create another job with the schedule.")
    if not has_schedule and status.schedule is not None:
        return Hold("InvalidSpec", "schedule: it cannot be removed. Suspend the job, or delete it.")
    return None
