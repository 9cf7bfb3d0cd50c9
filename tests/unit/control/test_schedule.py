"""One pass of a job that has a schedule, with runs in memory; and the runs as ComputeJobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.control.schedule import Template, reconcile_schedule
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.operator.job_runs import KubeRuns
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.state import job_codec
from oars.plan.jobs import Hold, JobPolicy
from oars.plan.schedule import RunSeen
from oars.spec.job import JobSpec
from oars.spec.job_status import JobState, JobStatus

HOUR = 3600.0
START = 1000 * HOUR
FIELDS = {"cluster": {"engine": "dask"}, "entrypoint": ["x"], "schedule": {"cron": "0 * * * *", "history": 1}}


class Runs:
    """Runs in memory. `lists`: False while the list is out of date; `error`: what start raises."""

    def __init__(self) -> None:
        self.found: dict[str, RunSeen] = {}
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.status = JobStatus()
        self.now = START + 1
        self.lists = True
        self.error: OarsError | None = None

    async def list(self) -> list[RunSeen]:
        return list(self.found.values()) if self.lists else []

    async def start(self, name: str) -> None:
        assert self.status.schedule is not None
        assert self.status.schedule.starting == name  # stored before the run exists
        if self.error is not None:
            raise self.error
        if name not in self.found:
            self.started.append(name)
            self.found[name] = RunSeen(name, self.now)

    async def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    async def remove(self, run: RunSeen) -> None:
        del self.found[run.name]

    async def record(self, status: JobStatus) -> None:
        self.status = status

    def end(self) -> None:
        self.found = {name: RunSeen(name, run.created, True) for name, run in self.found.items()}

    def look(
        self, now: float, *, cancel: bool = False, delete: bool = False, hold: Hold | None = None, **fields: Any
    ) -> float | None:
        self.now = now
        spec = JobSpec.model_validate({**FIELDS, **fields})
        template = Template("nightly", spec.schedule, START, spec.suspend, cancel, delete, hold)
        _, pause = asyncio.run(reconcile_schedule(template, self.status, self, lambda: now))
        return pause


def test_runs_are_started_kept_and_removed() -> None:
    runs = Runs()
    assert runs.look(START + 1800) == 600.0
    assert (runs.status.state, runs.status.reason, runs.found) == (JobState.QUEUED, "Scheduled", {})
    for hour in (1, 2, 3):
        runs.look(START + hour * HOUR)
        runs.end()
    runs.look(START + 3 * HOUR + 1)
    assert list(runs.found) == [f"nightly-{int(START + 3 * HOUR) // 60}"]
    assert "The next run is due at" in runs.status.message


def test_suspended_cancelled_and_deleted_schedules() -> None:
    runs = Runs()
    runs.look(START + HOUR)
    assert runs.look(START + 3 * HOUR, suspend=True) is None
    assert (runs.status.state, len(runs.found)) == (JobState.SUSPENDED, 1)
    runs.look(START + 3 * HOUR + 60)
    assert len(runs.found) == 1
    runs.look(START + 3 * HOUR + 61, cancel=True)
    assert (runs.status.state, runs.cancelled) == (JobState.CANCELLED, list(runs.found))
    assert runs.status.schedule is not None
    assert (runs.status.schedule.active, runs.status.schedule.next) == ((), None)
    runs.status = JobStatus()
    assert runs.look(START + 3 * HOUR + 62, delete=True) == 1.0
    assert (runs.status.state, runs.found) == (JobState.QUEUED, {})
    runs.look(START + 3 * HOUR + 63, delete=True)
    assert runs.status.state is JobState.CANCELLED


@pytest.mark.parametrize("history", [0, 1])
def test_run_that_was_not_created_is_created_once(history: int) -> None:
    """The process ended between the status and the creation; then between the creation and the next pass."""
    fields: dict[str, Any] = {"schedule": {"cron": "0 * * * *", "history": history}}
    runs = Runs()
    runs.error = OarsError("killed")
    for _ in range(2):
        with pytest.raises(OarsError, match="killed"):
            runs.look(START + HOUR, **fields)
    runs.error = None
    runs.look(START + HOUR + 1, **fields)
    runs.end()
    runs.look(START + HOUR + 2, **fields)
    runs.look(START + HOUR + 3, **fields)
    assert (len(runs.started), len(runs.found)) == (1, 1)
    assert runs.status.schedule is not None
    assert (runs.status.schedule.starting, runs.status.schedule.active) == ("", ())
    runs.look(START + 2 * HOUR, **fields)
    runs.look(START + 2 * HOUR + 1, **fields)
    assert len(runs.found) == 1 + history


def test_run_that_cannot_be_created_is_missed_when_the_next_one_is_due() -> None:
    runs = Runs()
    runs.error = OarsError("not a run")
    for _ in range(2):
        with pytest.raises(OarsError, match="not a run"):
            runs.look(START + HOUR)
    with pytest.raises(OarsError, match="not a run"):
        runs.look(START + 2 * HOUR)
    runs.error = None
    runs.look(START + 2 * HOUR + 1)
    assert runs.status.schedule is not None
    assert (len(runs.started), runs.status.schedule.missed) == (1, 1)


def test_run_that_is_not_listed_yet_counts_as_active() -> None:
    runs = Runs()
    runs.look(START + HOUR)
    runs.lists = False
    runs.look(START + 2 * HOUR)
    assert runs.status.schedule is not None
    assert (len(runs.started), runs.status.schedule.missed) == (1, 1)
    runs.look(START + 2 * HOUR + 1, cancel=True)
    assert (runs.status.state, runs.cancelled) == (JobState.CANCELLED, runs.started)
    runs.found["late"] = RunSeen("late", START)
    runs.lists = True
    runs.look(START + 2 * HOUR + 2, cancel=True)
    assert "late" in runs.cancelled


def test_invalid_schedule_starts_nothing_and_can_be_cancelled() -> None:
    runs = Runs()
    runs.look(START + HOUR)
    hold = Hold("InvalidSpec", "cron is wrong")
    assert runs.look(START + 2 * HOUR, hold=hold) is None
    assert (runs.status.state, runs.status.message, len(runs.started)) == (JobState.QUEUED, "cron is wrong", 1)
    runs.look(START + 2 * HOUR + 1, hold=hold, cancel=True)
    assert (runs.status.state, runs.cancelled) == (JobState.CANCELLED, runs.started)


class Api:
    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.patched: list[Object] = []

    async def create(self, obj: Object) -> Object:
        key = Key("ComputeJob", obj["metadata"]["namespace"], obj["metadata"]["name"])
        if key in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        stamped = {"uid": f"u{len(self.objects)}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.objects[key] = {**obj, "metadata": {**obj["metadata"], **stamped}}
        return obj

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        return self.objects[Key("ComputeJob", namespace, name)]

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str) -> bool:
        key = Key("ComputeJob", namespace, name)
        if self.objects[key]["metadata"]["uid"] != uid:
            raise ApiError(409, {"reason": "Conflict"})
        del self.objects[key]
        return True

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        self.patched.append(body)
        return body


def test_run_is_a_job_that_the_schedule_owns() -> None:
    api = Api()
    metadata: Object = {"name": "nightly", "namespace": "team", "uid": "u"}
    queue = {"kueue.x-k8s.io/queue-name": "team-a"}
    metadata |= {"labels": {**queue, "oars.dev/x": "y"}, "annotations": {"note": "1", names.CANCEL: "requested"}}
    template = {"metadata": metadata, "spec": {**FIELDS, "suspend": False}}

    async def write(status: JobStatus) -> None:
        raise AssertionError(status)

    runs = KubeRuns(cast(Client, api), api.objects, template, write)

    async def use() -> None:
        await runs.start("nightly-1")
        await runs.start("nightly-1")  # an earlier pass did
        (made,) = api.objects.values()
        assert made["spec"] == {key: value for key, value in FIELDS.items() if key != "schedule"}
        ours = {"app.kubernetes.io/managed-by": "oars", names.SCHEDULE: "nightly"}
        assert (made["metadata"]["labels"], made["metadata"]["annotations"]) == ({**queue, **ours}, {"note": "1"})
        assert [run.is_final for run in await runs.list()] == [False]
        made["status"] = job_codec.dump_status(JobStatus(JobState.FAILED), 1, JobPolicy())
        assert [run.is_final for run in await runs.list()] == [True]
        await runs.cancel("nightly-1")
        assert api.patched == [{"metadata": {"uid": "u0", "annotations": {names.CANCEL: "requested"}}}]
        (seen,) = await runs.list()
        await runs.remove(replace(seen, uid="of an earlier job"))
        assert api.objects
        made["metadata"]["ownerReferences"] = []
        assert await runs.list() == []
        with pytest.raises(OarsError, match="not a run"):
            await runs.start("nightly-1")

    asyncio.run(use())
