"""decide_job: the next steps of a job. Pure: a function of the spec, the recorded status, what exists, and the time.

An attempt goes through these writes, each of which can be repeated: its number and names in the status; its cluster;
its driver; the kept log; its end in the status, which is the verdict; the removal of its cluster. The caller stores the
status before it performs the steps. After a crash the next pass derives the rest from what exists, so there is nothing
else to recover. The driver's own exit is the verdict: a driver that ended before it was asked to stop has won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from oars.plan.why import pass_failure
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome

if TYPE_CHECKING:
    from oars.spec.job import JobSpec

MAX_ATTEMPTS = 10  # that the status lists
STOP_PAUSE = 1.0  # between two requests to stop a driver
POLL = 1.0
POLL_SOON = 0.2
REMOVAL_POLL = 10.0  # while a cluster is being deleted: the place announces the end

CANCELLED = "Cancelled"
SUSPENDED = "Suspended"
EVICTED = "QueueEvicted"
DEADLINE = "DeadlineExceeded"
ATTEMPT_DEADLINE = "AttemptDeadlineExceeded"
START_DEADLINE = "StartDeadlineExceeded"
HEAD_LOST = "HeadLost"
NODE_LOST = "NodeLost"
DRIVER_LOST = "DriverLost"
CLUSTER_FAILED = "ClusterFailed"
BAD_EXIT = "BadExit"
PASS_FAILED = "PassFailed"
_FINAL_STOPS = (DEADLINE, START_DEADLINE)
_LOSSES = (HEAD_LOST, CLUSTER_FAILED, DRIVER_LOST)
_SENTENCES = {
    CANCELLED: "The job was cancelled.",
    SUSPENDED: "The job was suspended.",
    EVICTED: "The queue took back the resources of the job.",
    DEADLINE: "The job did not end within its deadline.",
    ATTEMPT_DEADLINE: "The driver did not end within attemptDeadline.",
    START_DEADLINE: "The driver did not start within startDeadline.",
    HEAD_LOST: "The head of the cluster was lost while the driver ran.",
    DRIVER_LOST: "The driver was lost: it ended without an exit code.",
    CLUSTER_FAILED: "The cluster could not be created.",
}


@dataclass(frozen=True)
class JobPolicy:
    """What a JobSpec says about attempts and times. Times in seconds; None: no limit."""

    retries: int = 0
    recoveries: int = 3
    retried: tuple[tuple[int, int], ...] = ()  # ranges of exit codes; empty: all
    never: tuple[tuple[int, int], ...] = ()
    first_backoff: float = 10.0
    longest_backoff: float = 300.0
    deadline: float | None = None
    attempt_deadline: float | None = None
    start_deadline: float | None = None
    cleanup: str = "running"
    after_success: float = 0.0
    after_failure: float = 0.0
    ttl: float | None = None
    has_own_cluster: bool = True


@dataclass(frozen=True)
class Hold:
    """Why nothing may be created for the job at present. A driver that runs continues."""

    reason: str
    message: str


@dataclass(frozen=True)
class JobRequest:
    """What users want of a job besides its spec."""

    cancel: bool = False
    suspend: bool = False
    delete: bool = False
    hold: Hold | None = None
    queue: str = ""  # the queue that admits the next attempt; empty: none
    evicted: str = ""  # why the queue no longer admits the open attempt; empty: it does, or there is no queue


class ClusterState(StrEnum):
    ABSENT = "Absent"
    STARTING = "Starting"
    READY = "Ready"
    TERMINATING = "Terminating"  # its deletion was requested
    FAILED = "Failed"  # it cannot be created
    FOREIGN = "Foreign"  # its name is taken by a cluster that does not belong to the job
    UNKNOWN = "Unknown"  # nobody answers, which does not mean that it is lost


class DriverState(StrEnum):
    ABSENT = "Absent"
    STARTING = "Starting"  # it exists and does not run yet
    RUNNING = "Running"
    ENDED = "Ended"  # with an exit code
    LOST = "Lost"  # it ran, and its exit code is unknown
    UNREACHABLE = "Unreachable"  # as LOST, but it may still run on a machine that does not answer
    CLOSED = "Closed"  # it never ran, and cannot start any more
    UNKNOWN = "Unknown"


_STOPPABLE = (DriverState.STARTING, DriverState.RUNNING, DriverState.UNKNOWN)
_OVER = (DriverState.ENDED, DriverState.LOST, DriverState.UNREACHABLE, DriverState.CLOSED)
_NOTHING_TO_REMOVE = (ClusterState.ABSENT, ClusterState.FOREIGN, ClusterState.TERMINATING)


@dataclass(frozen=True)
class ClusterSeen:
    state: ClusterState = ClusterState.ABSENT
    head: str = ""  # incarnation of the head; empty: unknown
    message: str = ""


@dataclass(frozen=True)
class DriverSeen:
    state: DriverState = DriverState.ABSENT
    exit_code: int | None = None
    ended: float | None = None
    reason: str = ""  # such as Evicted; DEADLINE: the place stopped it; empty: the exit code says it all
    message: str = ""
    started: float | None = None  # None: unknown


@dataclass(frozen=True)
class JobSeen:
    """What exists of the last attempt."""

    cluster: ClusterSeen = ClusterSeen()
    driver: DriverSeen = DriverSeen()
    is_log_kept: bool = True  # or cannot be kept


class JobStep(StrEnum):
    """What to do for the last attempt. All can be repeated."""

    MAKE_CLUSTER = "make cluster"
    START_DRIVER = "start driver"
    STOP_DRIVER = "stop driver"  # also makes sure that a driver that has not started does not start later
    KEEP_LOG = "keep log"
    REMOVE_CLUSTER = "remove cluster"
    REMOVE_DRIVER = "remove driver"
    DELETE_JOB = "delete job"


@dataclass(frozen=True)
class JobDecision:
    """The status to store, then the steps to perform. pause: seconds until the next pass at the latest; None: nothing
    is left to do until somebody changes the job."""

    status: JobStatus
    steps: tuple[JobStep, ...] = ()
    pause: float | None = POLL


def policy_of(spec: JobSpec) -> JobPolicy:
    from oars.spec.job import parse_codes

    return JobPolicy(
        retries=spec.retries,
        recoveries=spec.recoveries,
        retried=tuple(map(parse_codes, spec.retry_on.exit_codes)),
        never=tuple(map(parse_codes, spec.retry_on.never)),
        first_backoff=spec.backoff.first,
        longest_backoff=spec.backoff.most,
        deadline=spec.deadline,
        attempt_deadline=spec.attempt_deadline,
        start_deadline=spec.start_deadline,
        cleanup=spec.cleanup.policy,
        after_success=spec.cleanup.after.succeeded,
        after_failure=spec.cleanup.after.failed,
        ttl=spec.ttl_after_finished,
        has_own_cluster=spec.cluster is not None,
    )


def cluster_name(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"


def decide_job(
    name: str, policy: JobPolicy, request: JobRequest, status: JobStatus, seen: JobSeen, now: float
) -> JobDecision:
    """The next status and steps of a job. `seen` is about the last attempt of `status`."""
    status = _without_failed_pass(status)
    if status.state.is_final:
        return _after_end(policy, request, status, seen, now)
    attempt = status.last
    if attempt is not None and attempt.ended is None:
        return _open_attempt(policy, request, status, attempt, seen, now)
    return _between_attempts(name, policy, request, status, seen, now)


def with_failed_pass(status: JobStatus, error: Exception, log: str) -> JobStatus:
    """The status that shows why a pass failed; `log` is where its traceback is. A verdict does not change."""
    if status.state.is_final:
        return status
    cause = pass_failure(error, log, "job")
    return replace(status, reason=PASS_FAILED, message=f"{cause.message} {cause.hint}".strip())


def _without_failed_pass(status: JobStatus) -> JobStatus:
    if status.reason != PASS_FAILED:
        return status
    last = status.last
    if last is None or last.ended is None:
        return replace(status, reason="", message="")
    return replace(status, reason=last.reason, message=last.message)  # as its end left them


# an attempt that has not ended


def _open_attempt(
    policy: JobPolicy, request: JobRequest, status: JobStatus, attempt: Attempt, seen: JobSeen, now: float
) -> JobDecision:
    driver = seen.driver
    if driver.state in _OVER:
        if not seen.is_log_kept:
            return JobDecision(status, (JobStep.KEEP_LOG,), POLL)
        return _settle(policy, status, attempt, seen, now)
    reason = attempt.stopping or _stop_reason(policy, request, status, attempt, seen, now)
    if reason:
        return _stop(status, attempt, reason, now, request.evicted if reason == EVICTED else "")
    hold = request.hold
    if driver.state is DriverState.UNKNOWN:
        return JobDecision(status)
    if driver.state is DriverState.STARTING:
        return JobDecision(replace(status, state=JobState.STARTING, reason="", message=driver.message), (), POLL)
    if driver.state is DriverState.RUNNING:
        running = _with_last(status, replace(attempt, started=_started(attempt, driver, now)))
        running = replace(running, state=JobState.RUNNING, reason="", message="")
        return JobDecision(_held(running, hold) if hold else running, (), _until_deadline(policy, running, now))
    if hold:
        return JobDecision(_held(replace(status, state=JobState.STARTING), hold))
    return _start(status, attempt, seen, now)


def _held(status: JobStatus, hold: Hold) -> JobStatus:
    return replace(status, reason=hold.reason, message=hold.message)


def _started(attempt: Attempt, driver: DriverSeen, now: float) -> float:
    """When the driver began to run, never before the attempt: the clocks of other machines differ."""
    if attempt.started is not None:
        return attempt.started
    return max(attempt.created, min(now, driver.started if driver.started is not None else now))


def _start(status: JobStatus, attempt: Attempt, seen: JobSeen, now: float) -> JobDecision:
    starting = replace(status, state=JobState.STARTING, reason="", message=seen.cluster.message)
    match seen.cluster.state:
        case ClusterState.ABSENT:
            return JobDecision(starting, (JobStep.MAKE_CLUSTER,), POLL_SOON)
        case ClusterState.READY:
            with_head = _with_last(replace(starting, message=""), replace(attempt, head=seen.cluster.head))
            return JobDecision(with_head, (JobStep.START_DRIVER,), POLL_SOON)
        case ClusterState.FAILED | ClusterState.FOREIGN:
            return _stop(status, attempt, CLUSTER_FAILED, now, seen.cluster.message)
    return JobDecision(starting, (), POLL)


def _stop_reason(
    policy: JobPolicy, request: JobRequest, status: JobStatus, attempt: Attempt, seen: JobSeen, now: float
) -> str:
    """Why the driver must be stopped, or must not start; empty: it may run."""
    if request.cancel or request.delete:
        return CANCELLED
    if request.suspend:
        return SUSPENDED
    if request.evicted:
        return EVICTED
    if policy.deadline is not None and active_seconds(status, now) >= policy.deadline:
        return DEADLINE
    if seen.driver.state is DriverState.RUNNING:
        if _is_head_lost(attempt, seen):
            return HEAD_LOST
        limit = policy.attempt_deadline
        if limit is not None and attempt.started is not None and now - attempt.started >= limit:
            return ATTEMPT_DEADLINE
    elif attempt.started is None and policy.start_deadline is not None:
        return START_DEADLINE if now - attempt.created >= policy.start_deadline else ""
    elif seen.driver.state is DriverState.ABSENT and attempt.started is not None:
        return DRIVER_LOST
    return ""


def _is_head_lost(attempt: Attempt, seen: JobSeen) -> bool:
    cluster = seen.cluster
    if cluster.state in (ClusterState.ABSENT, ClusterState.FOREIGN):
        return True
    if cluster.state is ClusterState.FAILED and not cluster.head:
        return True
    return bool(cluster.head and attempt.head) and cluster.head != attempt.head


def _stop(status: JobStatus, attempt: Attempt, reason: str, now: float, detail: str = "") -> JobDecision:
    """Record the reason first: if the driver ends meanwhile, the time decides whether it ended by itself."""
    if not attempt.stopping:
        attempt = replace(attempt, stopping=reason, stop_requested=now, message=detail)
    message = " ".join(filter(None, (_SENTENCES[reason], attempt.message, "The driver is being stopped.")))
    stopping = replace(_with_last(status, attempt), reason=reason, message=message)
    return JobDecision(stopping, (JobStep.STOP_DRIVER,), STOP_PAUSE)


def _settle(policy: JobPolicy, status: JobStatus, attempt: Attempt, seen: JobSeen, now: float) -> JobDecision:
    """The verdict. It is stored with the state that follows from it in one write, and never changes."""
    driver = seen.driver
    outcome, reason, message = _verdict(attempt, seen, _stopped_for(policy, status, attempt, driver))
    has_code = driver.state is DriverState.ENDED
    started = _started(attempt, driver, driver.ended or now) if has_code else attempt.started
    earliest = attempt.created if started is None else started
    ended = max(earliest, min(now, driver.ended if driver.ended is not None else now))
    attempt = replace(
        attempt, ended=ended, exit_code=driver.exit_code if has_code else None, outcome=outcome, reason=reason,
        message=message, started=started,
    )  # fmt: skip
    status = replace(_with_last(status, attempt), reason=reason, message=message)
    status = replace(
        status, failed=status.failed + (outcome is Outcome.FAILED), lost=status.lost + (outcome is Outcome.LOST)
    )
    if outcome is Outcome.SUCCEEDED:
        return _finish(status, JobState.SUCCEEDED, now)
    if outcome is Outcome.STOPPED:
        return _finish(status, JobState.CANCELLED, now) if reason == CANCELLED else JobDecision(status, (), 0.0)
    if reason in _FINAL_STOPS or not _may_retry(policy, status, attempt):
        return _finish(status, JobState.FAILED, now)
    times = status.failed if outcome is Outcome.FAILED else status.lost
    delay = min(policy.longest_backoff, policy.first_backoff * 2.0 ** min(times - 1, 30))
    return JobDecision(replace(status, state=JobState.RETRYING, retry_at=now + delay), (), 0.0)


def _stopped_for(policy: JobPolicy, status: JobStatus, attempt: Attempt, driver: DriverSeen) -> str:
    """The reason for which the driver was stopped; empty: it ended by itself."""
    requested, ended = attempt.stop_requested, driver.ended
    if attempt.stopping and not (requested is not None and ended is not None and ended < requested):
        return attempt.stopping
    if driver.reason == DEADLINE and ended is not None:
        if policy.attempt_deadline is None:
            return DEADLINE
        is_over = policy.deadline is not None and active_seconds(status, ended) >= policy.deadline
        return DEADLINE if is_over else ATTEMPT_DEADLINE
    return ""


def _verdict(attempt: Attempt, seen: JobSeen, stop: str) -> tuple[Outcome, str, str]:
    """Outcome, reason and message of an attempt whose driver has ended or cannot start."""
    driver = seen.driver
    if driver.state is DriverState.ENDED and driver.exit_code == 0 and not stop:
        return Outcome.SUCCEEDED, "", ""
    if stop:
        message = " ".join(filter(None, (_SENTENCES.get(stop, ""), attempt.message)))
        if stop in (CANCELLED, SUSPENDED, EVICTED):
            return Outcome.STOPPED, stop, message
        return (Outcome.LOST if stop in _LOSSES else Outcome.FAILED), stop, message
    if driver.state is not DriverState.ENDED:
        reason = driver.reason or DRIVER_LOST
        return Outcome.LOST, reason, driver.message or _SENTENCES[DRIVER_LOST]
    if _is_head_lost(attempt, seen):
        return Outcome.LOST, HEAD_LOST, f"{_SENTENCES[HEAD_LOST]} It exited with code {driver.exit_code}."
    return (
        Outcome.FAILED,
        driver.reason or BAD_EXIT,
        driver.message or f"The driver exited with code {driver.exit_code}.",
    )


def _may_retry(policy: JobPolicy, status: JobStatus, attempt: Attempt) -> bool:
    if attempt.outcome is Outcome.LOST:
        return status.lost <= policy.recoveries
    if attempt.reason != ATTEMPT_DEADLINE and attempt.exit_code is not None:
        if _contains(policy.never, attempt.exit_code):
            return False
        if policy.retried and not _contains(policy.retried, attempt.exit_code):
            return False
    return status.failed <= policy.retries


def _contains(ranges: tuple[tuple[int, int], ...], code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


# no attempt, or one that has ended


def _between_attempts(
    name: str, policy: JobPolicy, request: JobRequest, status: JobStatus, seen: JobSeen, now: float
) -> JobDecision:
    if request.cancel or request.delete:
        return _finish(replace(status, reason=CANCELLED, message=_SENTENCES[CANCELLED]), JobState.CANCELLED, now)
    if policy.deadline is not None and active_seconds(status, now) >= policy.deadline:
        return _finish(replace(status, reason=DEADLINE, message=_SENTENCES[DEADLINE]), JobState.FAILED, now)
    steps = _removal(policy, status, seen)
    is_left = bool(steps) or (policy.has_own_cluster and seen.cluster.state is ClusterState.TERMINATING)
    if request.suspend:
        if is_left:
            return JobDecision(replace(status, reason=SUSPENDED), steps, _pause_after(steps))
        stopped = _with_clock_stopped(replace(status, state=JobState.SUSPENDED, reason=SUSPENDED, retry_at=None), now)
        return JobDecision(replace(stopped, message=f"Continue it with `oars jobs resume {name}`."), (), None)
    if is_left:
        return JobDecision(status, steps, _pause_after(steps))
    if not policy.has_own_cluster and seen.driver.state is DriverState.UNREACHABLE:
        waits = f"Another attempt starts when the last driver is gone: it may still use cluster {status.cluster}."
        return JobDecision(replace(status, message=waits), (), _until_deadline(policy, status, now))
    if status.state is JobState.RETRYING and status.retry_at is not None and now < status.retry_at:
        return JobDecision(status, (), min(status.retry_at - now, _until_deadline(policy, status, now)))
    if request.hold is not None:
        return JobDecision(
            _with_clock_stopped(_held(replace(status, state=JobState.QUEUED), request.hold), now), (), None
        )
    return _next_attempt(name, policy, request, status, now)


def _next_attempt(name: str, policy: JobPolicy, request: JobRequest, status: JobStatus, now: float) -> JobDecision:
    number = status.attempt + 1
    cluster = cluster_name(name, number) if policy.has_own_cluster else status.cluster
    attempt = Attempt(number, cluster, now, queue=request.queue)
    status = replace(
        status, state=JobState.STARTING, reason="", message="", cluster=cluster, attempt=number, retry_at=None,
        started=status.started if status.started is not None else now,
        active_since=status.active_since if status.active_since is not None else now,
        attempts=(*status.attempts, attempt)[-MAX_ATTEMPTS:],
    )  # fmt: skip
    return JobDecision(status, (), 0.0)


def _removal(policy: JobPolicy, status: JobStatus, seen: JobSeen) -> tuple[JobStep, ...]:
    """The steps that remove what is left of the last attempt: its cluster, and a driver that should have ended."""
    if status.last is None:
        return ()
    steps = (JobStep.STOP_DRIVER,) if seen.driver.state in _STOPPABLE else ()
    if policy.has_own_cluster and seen.cluster.state not in _NOTHING_TO_REMOVE:
        steps = (*steps, JobStep.REMOVE_CLUSTER)
    return steps


def _pause_after(steps: Sequence[JobStep]) -> float:
    if JobStep.STOP_DRIVER in steps:
        return STOP_PAUSE
    return POLL_SOON if steps else REMOVAL_POLL


# after the verdict


def _finish(status: JobStatus, state: JobState, now: float) -> JobDecision:
    last = status.last
    ended = _with_clock_stopped(replace(status, state=state, ended=now, retry_at=None), now)
    return JobDecision(replace(ended, exit_code=last.exit_code if last is not None else None), (), 0.0)


def _after_end(policy: JobPolicy, request: JobRequest, status: JobStatus, seen: JobSeen, now: float) -> JobDecision:
    """Clean up. The status does not change any more."""
    ended = status.ended if status.ended is not None else now
    if request.delete or (policy.ttl is not None and now >= ended + policy.ttl):
        return JobDecision(status, (JobStep.DELETE_JOB,), POLL)
    due: list[float] = [] if policy.ttl is None else [ended + policy.ttl]
    steps: list[JobStep] = []
    after = policy.after_success if status.state is JobState.SUCCEEDED else policy.after_failure
    if seen.driver.state in (DriverState.RUNNING, DriverState.STARTING):
        steps.append(JobStep.STOP_DRIVER)
    if policy.cleanup != "none" and status.last is not None:
        found = []
        if policy.has_own_cluster and seen.cluster.state not in _NOTHING_TO_REMOVE:
            found.append(JobStep.REMOVE_CLUSTER)
        if policy.cleanup == "all" and seen.driver.state in (DriverState.ENDED, DriverState.LOST, DriverState.CLOSED):
            found.append(JobStep.REMOVE_DRIVER)
        if found and now >= ended + after:
            steps += found
        elif found:
            due.append(ended + after)
    if steps:
        return JobDecision(status, tuple(steps), _pause_after(steps))
    return JobDecision(status, (), max(0.0, min(due) - now) if due else None)


# the clock of `deadline`


def active_seconds(status: JobStatus, now: float) -> float:
    """Seconds that count for `deadline`. A clock that was set back counts as 0."""
    since = 0.0 if status.active_since is None else max(0.0, now - status.active_since)
    return status.active_seconds + since


def _with_clock_stopped(status: JobStatus, now: float) -> JobStatus:
    return replace(status, active_seconds=active_seconds(status, now), active_since=None)


def _until_deadline(policy: JobPolicy, status: JobStatus, now: float) -> float:
    """Seconds until the next deadline, but at most a minute: what exists is looked at now and then."""
    due = [60.0]
    attempt = status.last
    if policy.deadline is not None:
        due.append(policy.deadline - active_seconds(status, now))
    started = attempt.started if attempt is not None and attempt.ended is None else None
    if policy.attempt_deadline is not None and started is not None:
        due.append(started + policy.attempt_deadline - now)
    return max(0.0, min(due))


def driver_seconds(policy: JobPolicy, status: JobStatus, now: float) -> float | None:
    """How long a driver that starts now may exist at most, so that the place stops it if nobody else does. None: no
    limit."""
    due = []
    if policy.deadline is not None:
        due.append(policy.deadline - active_seconds(status, now))
    if policy.attempt_deadline is not None and policy.start_deadline is not None and status.last is not None:
        due.append(status.last.created + policy.start_deadline - now + policy.attempt_deadline)
    return max(0.0, min(due)) if due else None


def _with_last(status: JobStatus, attempt: Attempt) -> JobStatus:
    return replace(status, attempts=(*status.attempts[:-1], attempt))
