"""The interface of jobs at a place, and jobs on this machine. kube_jobs.py has those on Kubernetes."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from oars.base.errors import NotFound, OarsError, UsageError
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import Progress, ignore
from oars.client.driver_env import without_cluster
from oars.client.local import LocalBackend, check_spec
from oars.places.local.host import Residence, this_host
from oars.places.local.jobs import JobDir, JobRecord, JobStore, LogReader, start_keeper
from oars.places.local.process import has_ended
from oars.plan.schedule import due_of, schedule_of
from oars.spec.job_status import JobState, JobStatus
from oars.spec.load_job import NO_METADATA, JobMetadata

if TYPE_CHECKING:
    from oars.client.archive import Archive
    from oars.spec.job import JobSpec

POLL_SECONDS = 0.1  # how often files are looked at
KEEPER_SECONDS = 1.0  # between two looks for a keeper
_DRIVER_VARIABLES = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class JobInfo:
    """A job and its status, as `oars jobs ls` shows it."""

    name: str
    place: str
    created: float
    status: JobStatus
    namespace: str = ""
    host: str = ""  # of a local job that belongs to another host, which shares the state directory
    directory: str = ""  # where the last attempt's driver runs, on this machine
    ttl: float | None = None
    deadline: float | None = None
    schedule: str = ""  # its cron expression
    run_of: str = ""  # name of the job with the schedule of which this is a run

    @property
    def due(self) -> float | None:
        """The time for which the run of a schedule is due; None: it is none."""
        return due_of(self.name) if self.run_of else None

    def to_dict(self) -> dict[str, Any]:
        status = self.status.to_dict()
        head = {"name": self.name, "place": self.place, "namespace": self.namespace, "created": self.created}
        head |= {"cron": self.schedule, "run_of": self.run_of}
        return {**head, "host": self.host, "directory": self.directory, **status}

    def check_has_not_ended(self) -> None:
        """Raises OarsError for a job that can no longer be suspended or resumed."""
        if self.status.state.is_final:
            raise OarsError(f"Job {self.name!r} has ended: {self.status.state}.", "Submit it again.")

    def check_can_end(self) -> None:
        """Raises OarsError if nobody brings the job to its end."""
        if self.status.is_abandoned:
            hint = f"Remove it with `oars jobs rm {self.name} -n {self.namespace}`."
            raise OarsError(f"Job {self.name!r} does not end: {self.status.message}", hint)

    def check_has_driver(self) -> None:
        """Raises UsageError for a schedule, which has no output and no end of its own."""
        if not self.schedule or self.status.state.is_final:
            return
        runs = self.status.schedule.active if self.status.schedule is not None else ()
        running = f" Its runs at present: {', '.join(runs)}." if runs else f" {self.status.message}".rstrip()
        hint = f"Name a run, such as {runs[0]}." if runs else "`oars jobs ls` lists its runs."
        raise UsageError(f"Job {self.name!r} is a schedule: each run is a job of its own.{running}", hint)


@dataclass(frozen=True)
class JobLine:
    """A line of a driver's output."""

    attempt: int
    line: str


class JobHandle(Protocol):
    """One job. Making a handle sends no request."""

    @property
    def name(self) -> str: ...

    async def info(self) -> JobInfo:
        """The present status. Raises NotFound."""

    def watch(self) -> AsyncIterator[JobInfo]:
        """The status now and at every change, until the job is final or gone."""

    def logs(self, attempt: int | None, *, follow: bool = False) -> AsyncIterator[JobLine]:
        """The output of an attempt; None: of the last one, or with `follow` of this and all later ones to the end."""

    async def cancel(self) -> None:
        """Stop the driver. The job ends as Cancelled, unless it has ended before."""

    async def suspend(self, *, suspended: bool) -> None:
        """Request that the job stops its attempt, or that it continues. Raises OarsError if it has ended."""

    async def delete(self, timeout: float) -> None:  # noqa: ASYNC109 (it is removed nevertheless)
        """Cancel the job and remove everything that belongs to it. Raises OarsError after the timeout."""


@runtime_checkable
class AttachedJob(Protocol):
    """A JobHandle whose job runs in this process and ends with it."""

    async def attach(self) -> None:
        """Run the job's loop in the present event loop, unless it runs there."""

    async def close(self) -> None:
        """Cancel the job, unless it has ended, and wait until nothing is left."""


class PolledJob(ABC):
    """`watch` and `logs` of a JobHandle that reads the status every `poll_seconds`."""

    name: str
    poll_seconds: float

    @abstractmethod
    async def info(self) -> JobInfo: ...

    @abstractmethod
    def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        """The output of an attempt, with `follow` to its end."""

    async def watch(self) -> AsyncIterator[JobInfo]:
        last: JobStatus | None = None
        while True:
            try:
                info = await self.info()
            except NotFound:
                if last is None:
                    raise
                return
            if info.status != last:
                last = info.status
                yield info
            if info.status.state.is_final:
                return
            await asyncio.sleep(self.poll_seconds)  # poll: a status changes a few times in the life of a job

    async def logs(self, attempt: int | None, *, follow: bool = False) -> AsyncIterator[JobLine]:
        info = await self.info()
        info.check_has_driver()
        status = info.status
        number = attempt if attempt is not None else max(1, status.attempt)
        if attempt is not None and not 1 <= attempt <= status.attempt:
            raise NotFound(f"Job {self.name!r} has no attempt {attempt}.", f"It has {status.attempt}.")
        while True:
            async for line in self._attempt_lines(number, follow=follow):
                yield JobLine(number, line)
            if not follow or attempt is not None:
                return
            number += 1
            if not await self._begins(number):
                return

    async def _begins(self, number: int) -> bool:
        """Wait for an attempt; False if the job ends without it."""
        while True:
            try:
                status = (await self.info()).status
            except NotFound:
                return False
            if status.attempt >= number or status.state.is_final or status.is_abandoned:
                return status.attempt >= number
            await asyncio.sleep(self.poll_seconds)  # poll: a status changes a few times in the life of a job

    async def _is_over(self, number: int) -> bool:
        """True if the output of an attempt is complete."""
        try:
            status = (await self.info()).status
        except NotFound:
            return True
        if status.state.is_final or status.is_abandoned or status.attempt > number:
            return True
        return any(each.n == number and each.ended is not None for each in status.attempts)


class JobBackend(Protocol):
    """All jobs of one place."""

    @property
    def place(self) -> str: ...

    @property
    def archive_limit(self) -> int:
        """The largest size of the files of a working directory, in bytes."""

    async def check(self, name: str, spec: JobSpec) -> None:
        """Raise OarsError if such a job cannot be submitted here, before its files are packed."""

    async def submit(
        self,
        name: str,
        spec: JobSpec,
        archive: Archive | None,
        progress: Progress = ignore,
        metadata: JobMetadata = NO_METADATA,
    ) -> JobHandle:
        """Store a new job. It runs without this process. Raises OarsError if there is one of that name."""

    def job(self, name: str) -> JobHandle: ...

    async def list(self, *, all_namespaces: bool = False) -> Sequence[JobInfo]: ...

    async def close(self) -> None: ...


def generate_name(spec: JobSpec) -> str:
    engine = f"{spec.cluster.engine[:30]}-" if spec.cluster is not None else ""
    return f"{engine}job-{secrets.token_hex(3)}"


class LocalJobs:
    """Jobs on this machine. See JobBackend."""

    place = "local"

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        from oars.client.archive import LOCAL_LIMIT

        self.backend = LocalBackend(settings, environ)
        self.environ = environ
        self.store = JobStore(settings.state_dir)
        self.archive_limit = LOCAL_LIMIT

    async def check(self, name: str, spec: JobSpec) -> None:
        await asyncio.to_thread(self._check, name, spec)

    def _check(self, name: str, spec: JobSpec) -> str:
        """The engine of the job's cluster. Raises OarsError if the job cannot run."""
        if spec.cluster is not None:
            check_spec(name, spec.cluster, self.environ)
            engine = spec.cluster.engine
        else:
            engine = self.backend.cluster(spec.cluster_name or "").directory.read().desired.engine
        for secret in spec.secrets:
            path = self.store.secrets / secret.name / secret.key
            if not path.is_file():
                raise NotFound(f"There is no secret {path}.", f"Write it: `mkdir -p {path.parent}`, then the file.")
        return engine

    async def submit(
        self,
        name: str,
        spec: JobSpec,
        archive: Archive | None,
        progress: Progress = ignore,
        metadata: JobMetadata = NO_METADATA,
    ) -> LocalJobHandle:
        return await asyncio.to_thread(self._submit, name, spec, archive, progress)

    def _submit(self, name: str, spec: JobSpec, archive: Archive | None, progress: Progress) -> LocalJobHandle:
        engine = self._check(name, spec)
        if spec.cluster is not None:
            self.backend.prepare(spec.cluster, progress)  # a long build is visible here, and fails here
        record = JobRecord(
            name=name,
            spec=spec.model_dump(mode="json", by_alias=True),
            mark=secrets.token_hex(16),
            created=time.time(),
            host=this_host(),
            engine=engine,
            environ={key: self.environ[key] for key in _DRIVER_VARIABLES if key in self.environ},
        )
        self.store.create(record, archive.data if archive is not None else b"")
        handle = LocalJobHandle(self, name, record.mark)
        handle.ensure_keeper()
        return handle

    def job(self, name: str) -> LocalJobHandle:
        return LocalJobHandle(self, name)

    async def list(self, *, all_namespaces: bool = False) -> Sequence[JobInfo]:
        found = []
        for name in self.store.names():
            try:
                found.append(await self.job(name).info())
            except NotFound:
                continue
            except OarsError as error:  # one damaged record hides no other job
                found.append(JobInfo(name, "local", 0.0, _damaged(error)))
        return found

    async def close(self) -> None:
        """Nothing to do: keepers run on their own."""


class LocalJobHandle(PolledJob):
    """One job on this machine. See JobHandle."""

    poll_seconds = POLL_SECONDS  # files cannot be awaited portably

    def __init__(self, jobs: LocalJobs, name: str, mark: str = "") -> None:
        self._jobs = jobs
        self.name = name
        self._dir = jobs.store.job(name, mark)
        self._keeper: int | None = None  # pid, if this handle started it

    def _read(self) -> JobRecord:
        try:
            return self._dir.read()
        except NotFound as error:
            error.hint = suggest(self.name, self._jobs.store.names()).strip() or "`oars jobs ls` lists the jobs."
            raise

    def ensure_keeper(self) -> None:
        """Start a keeper unless one runs or nothing is left for it to do."""
        if self._keeper is not None and not has_ended(self._keeper):
            return
        if self._dir.has_keeper:
            return
        self._keeper = start_keeper(self._dir, without_cluster(self._jobs.environ))

    async def info(self) -> JobInfo:
        record = self._read()
        status = self._dir.read_status()
        is_elsewhere = self._dir.residence(record) is Residence.ELSEWHERE
        if not is_elsewhere and (self._needs_keeper(record, status) or is_expired(record, status)):
            self.ensure_keeper()
        work = self._dir.attempt(status.attempt).work
        return JobInfo(
            self.name,
            "local",
            record.created,
            status,
            host=record.host.describe(this_host()) if is_elsewhere else "",
            directory=str(work) if work.exists() else "",
            ttl=record.spec.get("ttlAfterFinished"),
            deadline=record.spec.get("deadline"),
            schedule=(record.spec.get("schedule") or {}).get("cron", ""),
            run_of=schedule_of(self.name) if record.schedule else "",
        )

    def _needs_keeper(self, record: JobRecord, status: JobStatus) -> bool:
        if status.state.is_final:
            return record.delete or has_leftovers(self._dir, record, status, self._jobs.backend)
        schedule = record.spec.get("schedule")
        if schedule is None:
            return not (status.state is JobState.SUSPENDED and record.spec.get("suspend"))
        is_suspended = bool(record.spec.get("suspend") or schedule.get("suspend"))
        runs = status.schedule
        if runs is None or record.cancel or record.delete or is_suspended != (status.state is JobState.SUSPENDED):
            return True
        return runs.next is not None or bool(runs.active)

    async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        reader, rest = LogReader(self._dir.attempt(number)), b""
        try:
            while True:
                is_over = not follow or await self._is_over(number)
                *complete, rest = (rest + reader.read()).split(b"\n")
                for line in complete:
                    yield line.decode(errors="replace")
                if is_over:
                    break
                await asyncio.sleep(POLL_SECONDS)  # poll: a file that grows cannot be awaited portably
        finally:
            reader.close()
        if rest:
            yield rest.decode(errors="replace")

    async def cancel(self) -> None:
        await self._change(lambda record: replace(record, cancel=True))

    async def suspend(self, *, suspended: bool) -> None:
        def change(record: JobRecord) -> JobRecord:
            spec = {**record.spec, "suspend": suspended}
            if not suspended and spec.get("schedule"):
                spec["schedule"] = {**spec["schedule"], "suspend": False}
            return replace(record, spec=spec)

        (await self.info()).check_has_not_ended()
        await self._change(change)

    async def _change(self, change: Callable[[JobRecord], JobRecord]) -> None:
        record = self._read()
        if self._dir.residence(record) is Residence.ELSEWHERE:
            host = record.host.describe(this_host())
            raise OarsError(f"Job {self.name!r} belongs to {host}, which shares this state directory.", "Use it there.")
        await asyncio.to_thread(self._dir.change, change)
        self.ensure_keeper()

    async def delete(self, timeout: float) -> None:  # noqa: ASYNC109 (see JobHandle)
        await self._change(lambda record: replace(record, delete=True))
        deadline = time.monotonic() + timeout
        while self._dir.exists:
            if time.monotonic() > deadline:
                message = f"Job {self.name!r} was not removed within {timeout:.0f} s."
                raise OarsError(message, f"Read the log of its keeper: {self._dir.keeper_log}.")
            self.ensure_keeper()
            await asyncio.sleep(POLL_SECONDS)  # poll: a directory cannot be awaited portably


def has_leftovers(directory: JobDir, record: JobRecord, status: JobStatus, backend: LocalBackend) -> bool:
    """True if a keeper has yet to remove something of a job that has ended."""
    policy = (record.spec.get("cleanup") or {}).get("policy", "running")
    if policy == "none" or not status.attempt:
        return False
    if policy == "all" and directory.attempt(status.attempt).work.exists():
        return True
    try:
        return backend.cluster(status.cluster).directory.read().job == record.mark
    except OarsError:  # there is none, or nobody can read its record
        return False


def _damaged(error: OarsError) -> JobStatus:
    return JobStatus(JobState.FAILED, "RecordDamaged", f"{error.message} {error.hint}".strip())


def is_expired(record: JobRecord, status: JobStatus) -> bool:
    """True if the job ended longer ago than its ttl."""
    ttl = record.spec.get("ttlAfterFinished")
    return ttl is not None and status.ended is not None and time.time() >= status.ended + ttl
