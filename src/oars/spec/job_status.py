"""Status of a job. Its JSON form is a stable interface for users' scripts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    QUEUED = "Queued"
    STARTING = "Starting"  # its cluster or its driver starts
    RUNNING = "Running"
    RETRYING = "Retrying"  # an attempt ended, and the next one waits for its backoff
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


COMMAND_LOST = "CommandLost"  # reason: the command that runs a job without an operator does not answer


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"  # the driver's own doing: counts against `retries`
    LOST = "Lost"  # the head, the node or the driver was lost: counts against `recoveries`
    STOPPED = "Stopped"  # cancelled, suspended or evicted by its queue: does not count


@dataclass(frozen=True)
class Attempt:
    """One run of the driver. Times in seconds since the epoch."""

    n: int
    cluster: str
    created: float
    head: str = ""  # incarnation of the head that the driver was started for
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None  # None: unknown, or the driver did not run
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""
    stopping: str = ""  # the reason for which the driver is being stopped
    stop_requested: float | None = None
    queue: str = ""  # the queue that admitted it


@dataclass(frozen=True)
class ScheduleStatus:
    """The runs of a job that has a schedule. Times in seconds since the epoch."""

    last: float | None = None  # the last time for which a run was started or missed
    next: float | None = None
    missed: int = 0
    active: tuple[str, ...] = ()  # names of the runs that have not ended
    starting: str = ""  # name of a run that is to be created, until it is seen
    since: float | None = None  # runs are due that come after this time
    cron: str = ""  # cron expression and time zone to which `since` belongs; empty: it was suspended


@dataclass(frozen=True)
class JobStatus:
    """The output of `oars jobs status -o json`."""

    state: JobState = JobState.QUEUED
    reason: str = ""
    message: str = ""
    engine: str = ""
    cluster: str = ""
    attempt: int = 0  # number of the last attempt; 0: none yet
    failed: int = 0  # attempts that count against `retries`
    lost: int = 0  # attempts that count against `recoveries`
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None  # of the driver whose end decided
    active_seconds: float = 0.0  # for `deadline`: before `active_since`
    active_since: float | None = None  # None: the clock is stopped
    retry_at: float | None = None
    attempts: tuple[Attempt, ...] = ()  # the last ones
    schedule: ScheduleStatus | None = None  # of a job that has one

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def is_abandoned(self) -> bool:
        """True if nobody brings the job to its end."""
        return self.reason == COMMAND_LOST

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
