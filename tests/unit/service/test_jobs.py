"""Explanations of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from oars.client.backend import Location, no_answer
from oars.client.jobs import JobHandle, JobInfo, PolledJob
from oars.service.jobs import JobService, explain_job
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome


class Ended(PolledJob):
    """A job whose driver has printed three lines."""

    name = "train"
    poll_seconds = 0.0

    async def info(self) -> JobInfo:
        return JobInfo("train", "local", 0.0, JobStatus(JobState.SUCCEEDED, attempt=1))

    async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        for line in ("a", "b", "c"):
            yield line


LOST = Attempt(1, "train-1", 0.0, ended=1.0, outcome=Outcome.LOST, reason="HeadLost", message="The head was lost.")


def test_hints_are_complete_commands() -> None:
    service = JobService({}, Location("kubernetes", context="prod"))
    job, cluster = (service.reference(name, "team") for name in ("train", "train-2"))
    starting = JobStatus(JobState.STARTING, message="Waiting.", cluster="train-2", attempt=2, attempts=(LOST,))
    found = explain_job(starting, ["line"], job=job, cluster=cluster)
    assert [each.hint for each in found] == [
        "Run `oars why train-2 --context prod -n team`.",
        "Read its output: `oars jobs logs train --context prod -n team --attempt 1`.",
    ]
    suspended = JobStatus(JobState.SUSPENDED, "Suspended", "Stopped.")
    (cause,) = explain_job(suspended, [], job="train", cluster="")
    assert cause.hint == "Run `oars jobs resume train`."


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("tail", "lines"), [(None, ["a", "b", "c"]), (0, []), (1, ["c"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])]
)
def test_only_the_last_lines(tail: int | None, lines: list[str], follow: bool) -> None:
    class Attached(JobService):
        def __init__(self) -> None:
            super().__init__({})
            self._attached["train"] = cast(JobHandle, Ended())

    async def read() -> list[str]:
        return [each.line async for each in Attached().logs("train", follow=follow, tail=tail)]

    assert asyncio.run(read()) == lines


def test_place_that_does_not_answer() -> None:
    assert no_answer("local", "jobs", 5.0).message == "The local jobs did not answer within 5 s."
    assert no_answer("kubernetes", "jobs", 5.0).message == "Kubernetes did not answer within 5 s."
