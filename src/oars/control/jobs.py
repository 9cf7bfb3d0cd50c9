"""The loop of a job: observe → decide → record → perform. One pass for one job, at any place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.plan.jobs import JobPolicy, JobRequest, JobSeen, JobStep, decide_job
from oars.spec.job_status import JobStatus

FAILED_STEP_SECONDS = 2.0  # until a step that failed is tried again

log = get_logger(__name__)


class JobPlace(Protocol):
    """Where the attempts of one job run."""

    async def observe(self, status: JobStatus) -> JobSeen:
        """What exists of the last attempt of the status. Reads only."""

    async def record(self, status: JobStatus) -> None:
        """Store the status. It is stored when this returns."""

    async def perform(self, step: JobStep, status: JobStatus) -> None:
        """Perform a step for the last attempt of the status. Can be repeated."""


async def reconcile_job(
    name: str, policy: JobPolicy, request: JobRequest, status: JobStatus, place: JobPlace, clock: Callable[[], float]
) -> tuple[JobStatus, float | None]:
    """One pass. Returns the status that is stored now, and the seconds until the next pass; None: nothing is left to
    do until somebody changes the job. A step that fails is tried again in the next pass."""
    seen = await place.observe(status)
    decision = decide_job(name, policy, request, status, seen, clock())
    if decision.status != status:
        await place.record(decision.status)
        if decision.status.state is not status.state:
            log.info(pairs("job state", job=name, state=decision.status.state, reason=decision.status.reason or "-"))
    pause = decision.pause
    for step in decision.steps:
        log.info(pairs("job step", job=name, step=step, attempt=decision.status.attempt))
        try:
            await place.perform(step, decision.status)
        except (OarsError, OSError) as error:
            log.warning(pairs("job step failed", job=name, step=step, error=error))
            shown = replace(decision.status, message=f"Could not {step}: {error}")
            if not shown.state.is_final and shown != decision.status:
                await place.record(shown)
                return shown, FAILED_STEP_SECONDS
            return decision.status, FAILED_STEP_SECONDS
    return decision.status, pause
