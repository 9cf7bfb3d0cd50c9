"""What the handles of jobs have in common: following the status and the output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from oars.base.errors import NotFound, OarsError, TimedOut, UsageError
from oars.base.settings import Settings
from oars.client.job import news, submit, wait_final, wait_suspended
from oars.client.jobs import JobHandle, JobInfo, JobLine, LocalJobs, PolledJob, generate_name
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus, ScheduleStatus

RUNNING, RETRYING = JobStatus(JobState.RUNNING, attempt=1), JobStatus(JobState.RETRYING, attempt=1)
SECOND, DONE = JobStatus(JobState.RUNNING, attempt=2), JobStatus(JobState.SUCCEEDED, attempt=2)


class Scripted(PolledJob):
    """A job with these statuses, one per look; after them it is removed."""

    name = "train"
    poll_seconds = 0.0

    def __init__(self, statuses: Sequence[JobStatus]) -> None:
        self._statuses = list(statuses)

    async def info(self) -> JobInfo:
        if not self._statuses:
            raise NotFound("There is no job 'train'.")
        return JobInfo("train", "local", 0.0, self._statuses.pop(0))

    async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        if follow and await self._is_over(number):
            return
        yield f"line of {number}"


def states(statuses: Sequence[JobStatus]) -> list[JobStatus]:
    async def watch() -> list[JobStatus]:
        return [info.status async for info in Scripted(statuses).watch()]

    return asyncio.run(watch())


def lines(statuses: Sequence[JobStatus], attempt: int | None = None, *, follow: bool = False) -> list[tuple[int, str]]:
    async def read() -> list[tuple[int, str]]:
        return [(each.attempt, each.line) async for each in Scripted(statuses).logs(attempt, follow=follow)]

    async def read_in_time() -> list[tuple[int, str]]:
        async with asyncio.timeout(30):
            return await read()

    return asyncio.run(read_in_time())


STARTED = Attempt(1, "train-1", 0.0, started=1.0)
HEAD_LOST = JobStatus(
    JobState.RUNNING, "HeadLost", "The head was lost.", attempt=1, attempts=(replace(STARTED, stopping="HeadLost"),)
)
ENDED = replace(
    HEAD_LOST,
    state=JobState.RETRYING,
    attempts=(replace(HEAD_LOST.attempts[0], ended=9.0, message="The head was lost."),),
)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (JobStatus(), JobStatus(attempts=(STARTED,)), ""),
        (JobStatus(attempts=(STARTED,)), HEAD_LOST, "attempt 1 is being stopped. The head was lost."),
        (HEAD_LOST, HEAD_LOST, ""),
        (HEAD_LOST, ENDED, "attempt 1 ended. The head was lost."),
        (ENDED, replace(ENDED, message="Still waiting."), ""),
        (ENDED, replace(ENDED, attempts=(*ENDED.attempts, Attempt(2, "train-2", 9.0))), "attempt 2 starts."),
    ],
)
def test_news_of_a_job(before: JobStatus, now: JobStatus, text: str) -> None:
    assert news(before, now) == text


def test_waiting_reports_a_lost_head_at_once() -> None:
    done = replace(DONE, attempts=ENDED.attempts)
    told: list[str] = []
    running = JobStatus(JobState.RUNNING, attempt=1, attempts=(STARTED,))
    job = Scripted([running, HEAD_LOST, ENDED, done])
    assert asyncio.run(wait_final(cast(JobHandle, job), 30.0, told.append)) == done
    assert [text.split(": ", 1)[1].split(".")[0] for text in told] == ["attempt 1 is being stopped", "attempt 1 ended"]


def test_status_is_shown_at_every_change_until_the_job_is_final_or_gone() -> None:
    assert states([RUNNING, RUNNING, RETRYING, SECOND, DONE, RUNNING]) == [RUNNING, RETRYING, SECOND, DONE]
    assert states([RUNNING]) == [RUNNING]
    with pytest.raises(NotFound):
        states([])


def test_output_is_shown_once_while_the_next_attempt_waits() -> None:
    class Whole(Scripted):
        async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
            yield f"line of {number}"

    async def read() -> list[int]:
        statuses = [RUNNING, RETRYING, RETRYING, RETRYING, SECOND, DONE]
        return [each.attempt async for each in Whole(statuses).logs(None, follow=True)]

    assert asyncio.run(read()) == [1, 2]


def test_output_is_followed_over_attempts_until_the_job_is_final_or_gone() -> None:
    both = [(1, "line of 1"), (2, "line of 2")]
    assert lines([RUNNING, RUNNING, SECOND, SECOND, DONE], follow=True) == both
    assert lines([RUNNING, RUNNING], follow=True) == both[:1]
    assert lines([SECOND]) == both[1:]
    assert lines([SECOND], 1) == both[:1]
    with pytest.raises(NotFound, match="no attempt 3"):
        lines([SECOND], 3)


class Template(Scripted):
    async def info(self) -> JobInfo:
        return replace(await super().info(), schedule="@daily")


def test_schedule_has_no_output_and_no_end() -> None:
    active = JobStatus(JobState.QUEUED, "Scheduled", "The next run is due soon.", schedule=ScheduleStatus())
    running = replace(active, schedule=ScheduleStatus(active=("train-5",)))

    async def read(status: JobStatus) -> list[JobLine]:
        return [line async for line in Template([status] * 3).logs(None, follow=True)]

    with pytest.raises(UsageError, match=r"is a schedule.*next run is due soon"):
        asyncio.run(read(active))
    with pytest.raises(UsageError, match=r"is a schedule.*train-5") as raised:
        asyncio.run(wait_final(cast(JobHandle, Template([running] * 3))))
    assert "train-5" in raised.value.hint
    ended = JobStatus(JobState.CANCELLED)
    assert asyncio.run(wait_final(cast(JobHandle, Template([running, ended])), is_cancelled=True)) == ended
    assert asyncio.run(wait_final(cast(JobHandle, Template([ended])))) == ended


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"entrypoint": ["python", "nope.py", "1"]}, "There is no script 'nope.py'"),
        ({"cluster": {"name": "nix"}}, "There is no cluster 'nix'"),
        ({"secrets": [{"name": "hf", "key": "token", "as": "TOKEN"}]}, "There is no secret "),
    ],
)
def test_job_that_cannot_run_is_refused_before_its_files_are_packed(
    own_state: Path, tmp_path: Path, fields: dict[str, Any], error: str
) -> None:
    spec = JobSpec.model_validate({"cluster": {"engine": "toy"}, "entrypoint": ["true"], **fields})
    jobs, seen = LocalJobs(Settings.from_environ(os.environ), os.environ), list[str]()
    with pytest.raises(NotFound, match=error):
        asyncio.run(submit("train", spec, tmp_path, jobs, seen.append))
    assert (seen, jobs.store.names()) == ([], [])


@pytest.mark.parametrize(("cluster", "start"), [({"engine": "toy"}, "toy-job-"), ({"name": "demo"}, "job-")])
def test_default_name(cluster: dict[str, Any], start: str) -> None:
    name = generate_name(JobSpec.model_validate({"cluster": cluster, "entrypoint": ["true"]}))
    assert name.startswith(start)
    assert len(name) == len(start) + 6


def test_wait_suspended() -> None:
    async def wait(*statuses: JobStatus, suspended: bool, seconds: float = 30.0) -> None:
        await wait_suspended(cast(JobHandle, Scripted(statuses)), seconds, suspended=suspended)

    paused = JobStatus(JobState.SUSPENDED, attempt=1)
    asyncio.run(wait(RUNNING, paused, suspended=True))
    asyncio.run(wait(paused, RETRYING, suspended=False))
    asyncio.run(wait(paused, DONE, suspended=False))
    with pytest.raises(OarsError, match="'train' has ended: Succeeded"):
        asyncio.run(wait(RUNNING, DONE, suspended=True))
    with pytest.raises(TimedOut, match=r"'train' was not suspended within 0 s\. It is Running"):
        asyncio.run(wait(*[RUNNING] * 10**5, suspended=True, seconds=0.01))
