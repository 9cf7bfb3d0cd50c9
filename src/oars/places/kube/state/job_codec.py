"""The status of a ComputeJob: what users read, and under `record` and `policy` what the next pass reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from oars.base import codec
from oars.plan.jobs import JobPolicy
from oars.spec.job_status import Attempt, JobState, JobStatus, ScheduleStatus

Object = dict[str, Any]


def load_status(stored: Mapping[str, Any] | None) -> JobStatus:
    """The status that was stored; an empty one if there is none."""
    record = (stored or {}).get("record")
    return codec.load(JobStatus, record) if record else JobStatus()


def load_policy(stored: Mapping[str, Any] | None) -> JobPolicy:
    """The policy of the last valid spec; the default one if there is none."""
    policy = (stored or {}).get("policy")
    return codec.load(JobPolicy, policy) if policy else JobPolicy()


def dump_status(status: JobStatus, generation: int, policy: JobPolicy) -> Object:
    return {
        "state": status.state.value,
        "reason": status.reason,
        "message": status.message,
        "engine": status.engine,
        "cluster": status.cluster,
        "attempt": status.attempt,
        "exitCode": status.exit_code,
        "startTime": _time(status.started),
        "completionTime": _time(status.ended),
        "observedGeneration": generation,
        "attempts": [_attempt(each) for each in status.attempts],
        "schedule": _schedule(status.schedule),
        "conditions": list(_conditions(status, generation)),
        "record": codec.dump(status),
        "policy": codec.dump(policy),
    }


def _attempt(attempt: Attempt) -> Object:
    shown = {
        "n": attempt.n,
        "cluster": attempt.cluster,
        "started": _time(attempt.started),
        "ended": _time(attempt.ended),
        "exitCode": attempt.exit_code,
        "outcome": attempt.outcome.value if attempt.outcome is not None else None,
        "reason": attempt.reason,
        "message": attempt.message,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _schedule(schedule: ScheduleStatus | None) -> Object | None:
    if schedule is None:
        return None
    times = {"last": _time(schedule.last), "next": _time(schedule.next)}
    return {**times, "missed": schedule.missed, "active": list(schedule.active)}


def _conditions(status: JobStatus, generation: int) -> list[Object]:
    """Admitted and ClusterReady, once an attempt has begun. Complete and Failed, as a batch/v1 Job has them:
    `kubectl wait --for=condition=Complete` works."""
    found: list[tuple[str, bool, float | None, str, str]] = []
    if (last := status.last) is not None:
        is_admitted = status.state not in (JobState.QUEUED, JobState.SUSPENDED)
        is_ready = bool(last.head) and last.ended is None
        admitted_at = status.started if is_admitted else last.ended
        ready_at = last.started if is_ready else last.ended
        found.append(("Admitted", is_admitted, admitted_at or last.created, status.state, ""))
        found.append(("ClusterReady", is_ready, ready_at or last.created, status.state, ""))
    if status.state.is_final:
        kind = "Complete" if status.state is JobState.SUCCEEDED else "Failed"
        found.append((kind, True, status.ended, status.reason or status.state, status.message))
    return [
        {
            "type": kind,
            "status": "True" if is_true else "False",
            "observedGeneration": generation,
            "lastTransitionTime": _time(at),
            "reason": str(reason),
            "message": message,
        }
        for kind, is_true, at, reason, message in found
    ]


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
