"""The keeper of a local job, without a cluster and without a driver."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oars.base.settings import Settings
from oars.client.job_keeper import LONGEST_WAIT, JobKeeper
from oars.client.jobs import LocalJobs, has_leftovers
from oars.client.local import LocalHandle
from oars.model import Pause
from oars.places.local.host import this_host
from oars.places.local.jobs import JobDir, JobRecord, JobStore
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome, ScheduleStatus
from tests.unit.local_clusters import record, store

SECONDS = 30.0
OWN = {"cluster": {"engine": "toy"}, "entrypoint": ["true"]}
SPEC = {"cluster": {"name": "gone"}, "entrypoint": ["true"]}


def create(state: Path, spec: dict[str, Any]) -> JobDir:
    record = JobRecord("train", spec, "mark", created=0.0, host=this_host(), engine="toy")
    return JobStore(state).create(record, b"")


def keep(job: JobDir, correct: Callable[[], object]) -> JobStatus:
    """Run a keeper until nothing is left to do. Returns the status with the failed pass, after which `correct` is
    called."""

    def failed_status() -> JobStatus:
        deadline = time.monotonic() + SECONDS
        while (shown := job.read_status()).reason != "PassFailed":
            assert time.monotonic() < deadline
            time.sleep(0.01)  # poll: a file cannot be awaited portably
        return shown

    async def run() -> JobStatus:
        async with asyncio.timeout(2 * SECONDS):
            keeper = asyncio.create_task(JobKeeper(job.read(), job, os.environ).run())
            shown = await asyncio.to_thread(failed_status)
            correct()
            await keeper
            return shown

    return asyncio.run(run())


def test_pass_that_raises_is_reported_and_retried(own_state: Path) -> None:
    job = create(own_state, SPEC)
    job.change(lambda record: replace(record, cancel=True))
    running = JobStatus(JobState.RUNNING, engine="toy", cluster="gone", attempt=1, attempts=(Attempt(1, "gone", 0.0),))
    job.write_status(running)
    claim = job.attempt(1).path / "claim"
    claim.parent.mkdir(parents=True)
    claim.write_text("{damaged")
    shown = keep(job, claim.unlink)
    assert (shown.state, shown.attempts) == (JobState.RUNNING, running.attempts)
    assert "JSONDecodeError" in shown.message and str(job.keeper_log) in shown.message
    status = job.read_status()
    assert (status.state, status.reason) == (JobState.CANCELLED, "Cancelled")


class DeafKeeper(JobKeeper):
    """A keeper that does not ask for the reports of its cluster, which has no keeper."""

    def _watch(self, name: str, handle: LocalHandle) -> None:
        pass


def end(job: JobDir, **cleanup: Any) -> None:
    """The job has ended; its cluster has not been removed."""
    job.change(lambda record: replace(record, spec={**OWN, "cleanup": cleanup}))
    now = time.time()
    attempt = Attempt(1, "train-1", now, started=now, ended=now, exit_code=1, outcome=Outcome.FAILED, reason="BadExit")
    job.write_status(
        JobStatus(JobState.FAILED, "BadExit", cluster="train-1", attempt=1, ended=now, attempts=(attempt,))
    )


@pytest.mark.parametrize(
    ("cleanup", "is_needed"),
    [({}, True), ({"after": {"failed": 600}}, True), ({"policy": "all"}, True), ({"policy": "none"}, False)],
)
def test_keeper_is_needed_until_the_cluster_of_an_ended_job_is_removed(
    own_state: Path, cleanup: dict[str, Any], is_needed: bool
) -> None:
    """Its keeper may have been killed between the verdict and the removal."""
    job, cluster = create(own_state, OWN), store().create(record("train-1", job="mark"), {})
    end(job, **cleanup)
    jobs = LocalJobs(Settings.from_environ(os.environ), os.environ)
    assert has_leftovers(job, job.read(), job.read_status(), jobs.backend) is is_needed
    cluster.remove()
    assert not has_leftovers(job, job.read(), job.read_status(), jobs.backend)


def test_keeper_waits_for_the_time_of_the_cleanup(own_state: Path) -> None:
    job = create(own_state, OWN)
    store().create(record("train-1", job="mark"), {})
    end(job, after={"failed": 600})
    pause = asyncio.run(DeafKeeper(job.read(), job, os.environ).reconcile("train"))
    assert pause is not None
    assert pause.seconds > LONGEST_WAIT


def test_keeper_does_not_wait_for_the_ttl(own_state: Path) -> None:
    job = create(own_state, OWN)
    end(job)
    job.change(lambda record: replace(record, spec={**OWN, "ttlAfterFinished": 86400}))
    assert asyncio.run(JobKeeper(job.read(), job, os.environ).reconcile("train")) is None


def test_foreign_cluster_of_the_same_name_stays(own_state: Path) -> None:
    job = create(own_state, OWN)
    cluster = store().create(record("train-1", job="another"), {})
    end(job)
    assert asyncio.run(JobKeeper(job.read(), job, os.environ).reconcile("train")) is None
    assert cluster.read().job == "another"


def test_keeper_of_a_schedule_starts_the_run_that_was_missed_last(own_state: Path) -> None:
    """Three minutes have passed since the submission. The run fails at once: its cluster does not exist."""
    spec = {**SPEC, "recoveries": 0, "schedule": {"cron": "* * * * *"}}
    job = create(own_state, spec)
    job.change(lambda record: replace(record, created=time.time() - 180))
    keeper = JobKeeper(job.read(), job, os.environ)
    pause = asyncio.run(keeper.reconcile("train"))
    status = job.read_status()
    assert status.schedule is not None
    (name,) = status.schedule.active
    assert pause is not None
    assert (status.reason, status.schedule.missed in (1, 2)) == ("Scheduled", True)
    run = JobStore(own_state).job(name)
    assert "schedule" not in run.read().spec
    deadline = time.monotonic() + SECONDS
    while not run.read_status().state.is_final:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # poll: another process writes the file
    assert run.read_status().reason == "ClusterFailed"
    job.change(lambda record: replace(record, delete=True))
    run_keeper(job)
    assert not job.exists and not run.exists


def with_schedule(state: Path, status: JobStatus, **fields: Any) -> JobDir:
    job = create(state, {**SPEC, "schedule": {"cron": "* * * * *"}, **fields})
    job.write_status(status)
    return job


def add_run(state: Path, name: str, status: JobStatus) -> JobDir:
    record = JobRecord(name, SPEC, f"mark-{name}", created=0.0, host=this_host(), engine="toy", schedule="mark")
    run = JobStore(state).create(record, b"")
    run.write_status(status)
    return run


def run_keeper(job: JobDir) -> None:
    """Run a keeper until nothing is left to do."""

    async def run() -> None:
        async with asyncio.timeout(2 * SECONDS):
            await JobKeeper(job.read(), job, os.environ).run()

    asyncio.run(run())


def look(job: JobDir) -> Pause | None:
    return asyncio.run(JobKeeper(job.read(), job, os.environ).reconcile(job.name))


def is_keeper_needed(job: JobDir) -> bool:
    jobs = LocalJobs(Settings.from_environ(os.environ), os.environ)
    return jobs.job(job.name)._needs_keeper(job.read(), job.read_status())


ENDED = JobStatus(JobState.SUCCEEDED, ended=1.0)


@pytest.mark.parametrize("is_expired", [True, False])
def test_runs_are_removed_with_a_schedule_that_was_cancelled(own_state: Path, is_expired: bool) -> None:
    """By `oars jobs rm`, or because its ttl is over."""
    cancelled = JobStatus(JobState.CANCELLED, ended=1.0, schedule=ScheduleStatus())
    job = with_schedule(own_state, cancelled, **({"ttlAfterFinished": 1} if is_expired else {}))
    run = add_run(own_state, "train-1", ENDED)
    if not is_expired:
        job.change(lambda record: replace(record, delete=True))
    run_keeper(job)
    assert not job.exists and not run.exists


def test_damaged_record_of_another_job_stops_no_schedule(own_state: Path) -> None:
    job = with_schedule(own_state, JobStatus(schedule=ScheduleStatus(since=time.time() + 3600)))
    add_run(own_state, "other", ENDED).record_file.write_text("{damaged")
    assert look(job) is not None
    assert job.read_status().reason == "Scheduled"
    add_run(own_state, "train-1", ENDED)
    found = asyncio.run(LocalJobs(Settings.from_environ(os.environ), os.environ).list())
    assert {each.name: (each.schedule, each.run_of) for each in found if each.name != "other"} == {
        "train": ("* * * * *", ""), "train-1": ("", "train")
    }  # fmt: skip
    assert {each.name: each.status.reason for each in found} == {
        "other": "RecordDamaged",
        "train": "Scheduled",
        "train-1": "",
    }


def test_keeper_of_a_suspended_schedule_stays_until_its_run_has_ended(own_state: Path) -> None:
    job = with_schedule(own_state, JobStatus(), suspend=True)
    add_run(own_state, "train-1", JobStatus(JobState.SUSPENDED)).change(
        lambda record: replace(record, spec={**SPEC, "suspend": True})
    )
    assert look(job) is not None
    assert is_keeper_needed(job)
    JobStore(own_state).job("train-1").write_status(ENDED)
    assert look(job) is None
    status = job.read_status()
    assert status.schedule is not None
    assert (status.schedule.active, is_keeper_needed(job)) == ((), False)
    job.change(lambda record: replace(record, spec={**record.spec, "suspend": False}))
    assert is_keeper_needed(job)


@pytest.mark.parametrize("schedule", [{"cron": "* * * * *", "suspend": True}, {"cron": "0 0 31 2 *"}])
def test_schedule_that_starts_nothing_needs_no_keeper(own_state: Path, schedule: dict[str, Any]) -> None:
    job = with_schedule(own_state, JobStatus(), schedule=schedule)
    assert is_keeper_needed(job)
    assert look(job) is None
    assert not is_keeper_needed(job)


def test_resume_also_resumes_the_schedule(own_state: Path) -> None:
    job = with_schedule(own_state, JobStatus(), schedule={"cron": "0 0 31 2 *", "suspend": True})
    jobs = LocalJobs(Settings.from_environ(os.environ), os.environ)
    asyncio.run(jobs.job("train").suspend(suspended=False))
    assert job.read().spec["schedule"]["suspend"] is False
    deadline = time.monotonic() + 2 * SECONDS
    while job.has_keeper or job.read_status().state is not JobState.QUEUED or not job.read_status().schedule:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # poll: another process writes the file


def test_changed_record_wakes_the_keeper_which_ends_with_its_job(own_state: Path) -> None:
    job = create(own_state, {**SPEC, "entrypoint": 5})
    keep(job, lambda: job.change(lambda record: replace(record, spec=SPEC, delete=True)))
    assert not job.exists
