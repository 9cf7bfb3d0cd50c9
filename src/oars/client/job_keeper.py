"""The keeper of one local job: a process that runs the job's loop. It creates and removes clusters as any client does;
each has a keeper of its own. If this process dies, the driver and the cluster continue, and the next command that looks
at the job, or the driver's wrapper when the driver ends, starts another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, log_to_file, pairs
from oars.base.settings import Settings
from oars.client.archive import unpack
from oars.client.backend import CreateOptions
from oars.client.handles import is_ready
from oars.client.job_runs import LocalRuns
from oars.client.jobs import LocalJobs, has_leftovers, is_expired
from oars.client.local import LocalBackend, LocalHandle
from oars.control.jobs import reconcile_job
from oars.control.runner import NOW, Runner
from oars.control.schedule import Template, reconcile_schedule
from oars.model import HEAD, Pause
from oars.places.local.jobs import CLOSED, JOB_MARK, AttemptDir, JobDir, JobRecord, JobStore, spawn
from oars.places.local.process import ExitWatch, Identity, has_ended, marked, send
from oars.places.local.store import lock_keeper
from oars.places.process.ledger import read_ledger
from oars.places.report import Report
from oars.plan.jobs import (
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
    JobRequest,
    JobSeen,
    JobStep,
    policy_of,
    with_failed_pass,
)
from oars.spec.job import JobSpec
from oars.spec.job_status import JobStatus
from oars.spec.status import Phase

GRACE = 10.0  # seconds for the driver to end after SIGTERM
POLL_SECONDS = 0.2  # how often the record is looked at
RUNS_SECONDS = 5.0  # how often the runs of a schedule that have not ended are looked at
CLOCK_SECONDS = 30.0  # how often a schedule looks at the clock, which timers do not follow while the machine sleeps
LONGEST_WAIT = 60.0  # a keeper with nothing to do but to wait for the ttl ends; the next command starts another

log = get_logger("oars.job_keeper")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    directory = JobDir(Path(argv[0]))
    os.umask(0o077)
    try:
        if lock_keeper(directory.keeper_lock) is None:
            return 0  # another keeper runs
        log_to_file(str(directory.keeper_log))
        record = directory.read()
    except (FileNotFoundError, NotFound):
        return 0  # the job was removed before we started
    asyncio.run(JobKeeper(record, JobDir(directory.path, record.mark), environ).run())
    return 0


class JobKeeper:
    """Reconciles one job until nothing is left to do (see control.runner.Reconciler and control.jobs.JobPlace)."""

    def __init__(self, record: JobRecord, directory: JobDir, environ: Mapping[str, str]) -> None:
        self._record = record
        self._dir = directory
        self._environ = {**environ, **record.environ}
        settings = Settings.from_environ(environ)
        self._backend = LocalBackend(settings, self._environ)
        self._store = JobStore(settings.state_dir)
        self._jobs = LocalJobs(settings, environ)  # of the runs, if there is a schedule
        self._spec: JobSpec  # of the present pass
        self._runner: Runner[str] = Runner(self)
        self._exits = ExitWatch(self._wake)
        self._watched: tuple[str, asyncio.Task[None]] | None = None  # the cluster whose reports come in
        self._report: Report | None = None
        self._failure = ""  # why the cluster of the present attempt cannot be created
        self._swept: set[int] = set()
        self._wrapper: tuple[int, int] | None = None  # attempt and pid of the last one that was started
        self._is_removed = False

    def _wake(self) -> None:
        self._runner.wake(self._dir.name)

    async def run(self) -> None:
        log.info(pairs("job keeper starts", job=self._dir.name, pid=os.getpid()))
        polling = asyncio.create_task(self._poll_record())
        self._wake()
        try:
            await self._runner.run(until_empty=True)
        finally:
            tasks = [polling, *([self._watched[1]] if self._watched is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._exits.close()

    async def reconcile(self, key: str) -> Pause | None:
        try:
            self._record = record = self._dir.read()
        except NotFound:
            return None
        self._spec = JobSpec.model_validate(record.spec)
        request = JobRequest(cancel=record.cancel, suspend=self._spec.suspend, delete=record.delete)
        status, policy = self._dir.read_status(), policy_of(self._spec)
        if self._spec.schedule is not None:
            runs, is_leaving = LocalRuns(self._jobs, record, self._dir), record.delete or is_expired(record, status)
            if not status.state.is_final or (is_leaving and await runs.list()):
                return await self._reconcile_schedule(record, status, runs, is_leaving=is_leaving)
        status, pause = await reconcile_job(self._dir.name, policy, request, status, self, time.time)
        if self._is_removed:
            return None
        rests = status.state.is_final and not has_leftovers(self._dir, record, status, self._backend)
        if pause is None or (pause > LONGEST_WAIT and rests):
            return NOW if self._is_changed() else None
        return Pause(pause)

    async def _reconcile_schedule(
        self, record: JobRecord, status: JobStatus, runs: LocalRuns, *, is_leaving: bool
    ) -> Pause | None:
        template = Template(
            record.name, self._spec.schedule, record.created, self._spec.suspend, record.cancel, is_leaving
        )
        status, pause = await reconcile_schedule(template, status, runs, time.time)
        if status.schedule is not None and status.schedule.active:
            return Pause(min(pause if pause is not None else RUNS_SECONDS, RUNS_SECONDS))
        if pause is None:
            return NOW if self._is_changed() else None
        return Pause(min(pause, CLOCK_SECONDS))

    async def report_failure(self, key: str, error: Exception) -> None:
        status = self._dir.read_status()
        failed = with_failed_pass(status, error, str(self._dir.keeper_log))
        if failed != status:
            self._dir.write_status(failed)

    async def _poll_record(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)  # poll: a file cannot be awaited portably
            if self._is_changed():
                self._wake()

    def _is_changed(self) -> bool:
        """True if the record is another one than in the last pass."""
        try:
            return self._dir.read() != self._record
        except (OarsError, OSError):  # the next pass finds out
            return False

    # see control.jobs.JobPlace

    async def observe(self, status: JobStatus) -> JobSeen:
        attempt = status.last
        if attempt is None:
            return JobSeen()
        directory = self._dir.attempt(attempt.n)
        driver = await self._see_driver(attempt.n, directory)
        if attempt.ended is not None and not directory.work.exists() and driver.state is not DriverState.RUNNING:
            driver = DriverSeen()  # removed
        return JobSeen(self._see_cluster(attempt.cluster), driver)

    async def record(self, status: JobStatus) -> None:
        self._dir.write_status(status)

    async def perform(self, step: JobStep, status: JobStatus) -> None:
        attempt = status.last
        assert attempt is not None or step is JobStep.DELETE_JOB
        n, cluster = (attempt.n, attempt.cluster) if attempt is not None else (0, "")
        directory = self._dir.attempt(n)
        match step:
            case JobStep.MAKE_CLUSTER:
                await self._make_cluster(cluster, directory)
            case JobStep.START_DRIVER:
                await asyncio.to_thread(self._start_driver, n, cluster, directory)
            case JobStep.STOP_DRIVER:
                requested = attempt.stop_requested if attempt is not None else None
                self._stop_driver(n, directory, time.time() - (requested or 0.0) > GRACE)
            case JobStep.REMOVE_CLUSTER:
                await self._remove_cluster(cluster)
            case JobStep.REMOVE_DRIVER:
                await asyncio.to_thread(shutil.rmtree, directory.work, ignore_errors=True)
            case JobStep.DELETE_JOB:
                if self._spec.cluster is not None and cluster:
                    await self._remove_cluster(cluster)
                self._dir.remove()
                self._is_removed = True
            case JobStep.KEEP_LOG:
                pass  # the log is in the job's directory

    # the cluster

    def _see_cluster(self, name: str) -> ClusterSeen:
        if self._failure:
            return ClusterSeen(ClusterState.FAILED, message=self._failure)
        handle = self._backend.cluster(name)
        try:
            record = handle.directory.read()
        except NotFound:
            if self._spec.cluster is None:
                return ClusterSeen(ClusterState.FAILED, message=f"There is no cluster {name!r}.")
            return ClusterSeen()
        if self._spec.cluster is not None and record.job != self._record.mark:
            message = f"Cluster {name!r} exists and does not belong to this job; remove it with `oars down {name}`."
            return ClusterSeen(ClusterState.FOREIGN, message=message)
        self._watch(name, handle)
        entry = read_ledger(handle.directory.ledger_file).entries.get(HEAD)
        head = f"{record.mark[:8]}/{entry.incarnation}" if entry is not None else ""
        if self._report is None:
            return ClusterSeen(ClusterState.UNKNOWN, head, "Waiting for the cluster's keeper.")
        status = self._report.status
        for cause in self._report.causes:
            if cause.reason == "CrashLoop":
                return ClusterSeen(ClusterState.FAILED, head, cause.message)
        minimum = self._spec.cluster.min_ready if self._spec.cluster is not None else None
        if is_ready(status, minimum):
            return ClusterSeen(ClusterState.READY, head)
        message = f"Cluster {name}: {status.phase}, {status.ready} of {status.wanted} workers ready."
        return ClusterSeen(ClusterState.STARTING, head, message)

    def _watch(self, name: str, handle: LocalHandle) -> None:
        """Receive the reports of this cluster, and of no other."""
        if self._watched is not None:
            if self._watched[0] == name and not self._watched[1].done():
                return
            self._watched[1].cancel()
        self._report = None
        self._watched = name, asyncio.create_task(self._follow_reports(handle))

    async def _follow_reports(self, handle: LocalHandle) -> None:
        try:
            async for report in handle.watch():
                self._report = report
                self._wake()
                if report.status.phase is Phase.STOPPED:
                    break
        except OarsError as error:
            log.info(pairs("no more reports", cluster=handle.name, error=error.message))
        self._wake()

    async def _make_cluster(self, name: str, directory: AttemptDir) -> None:
        spec = self._spec.cluster
        assert spec is not None
        await asyncio.to_thread(self._unpack, directory)
        options = CreateOptions(tied=False, modules=str(directory.work), cwd=str(directory.work), job=self._record.mark)
        try:
            await self._backend.create(name, spec, options)
        except OarsError as error:
            self._failure = error.message

    async def _remove_cluster(self, name: str) -> None:
        self._failure = ""
        handle = self._backend.cluster(name)
        try:
            if handle.directory.read().job == self._record.mark:
                await handle.stop()
        except NotFound:
            return
        finally:
            self._report = None

    # the driver

    def _unpack(self, directory: AttemptDir) -> None:
        """Once per attempt: the driver changes its files."""
        if directory.work.exists():
            return
        partial = directory.path / f"work-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        with contextlib.suppress(FileNotFoundError):
            unpack(self._dir.archive.read_bytes(), partial)
        partial.rename(directory.work)

    def _mark(self, n: int) -> str:
        return f"{self._record.mark}-{n}"

    def _start_driver(self, n: int, cluster: str, directory: AttemptDir) -> None:
        if self._wrapper is not None and self._wrapper[0] == n and not has_ended(self._wrapper[1]):
            return  # it has not claimed the attempt yet
        self._unpack(directory)
        driver = self._backend.cluster(cluster).driver()
        env = {**driver.env, "PYTHONUNBUFFERED": "1", **self._spec.env, **self._secrets()}
        env |= {"OARS_JOB": self._dir.name, "OARS_ATTEMPT": str(n), JOB_MARK: self._mark(n)}
        arguments = [str(self._dir.path), str(n), str(self._spec.logs.keep), *self._spec.entrypoint]
        self._wrapper = n, spawn(self._dir, "from oars.places.local.job_driver import main", arguments, env)

    def _secrets(self) -> dict[str, str]:
        values = {}
        for secret in self._spec.secrets:
            path = self._store.secrets / secret.name / secret.key
            try:
                values[secret.variable] = path.read_text().rstrip("\n")
            except OSError as error:
                raise OarsError(f"The secret {path} cannot be read: {error.strerror}.") from error
        return values

    async def _see_driver(self, n: int, directory: AttemptDir) -> DriverSeen:
        owner = directory.claimed_by()
        if owner is None:
            return DriverSeen()
        if owner == CLOSED:
            return DriverSeen(DriverState.CLOSED)
        assert isinstance(owner, Identity)
        is_alive = owner.alive()  # before its exit is read: it writes that and then ends
        ended = directory.read_exit()
        if ended is None and is_alive:
            self._exits.watch(owner)
            return DriverSeen(DriverState.RUNNING)
        if n not in self._swept:
            self._kill_all(n)
            self._swept.add(n)
        if ended is None:
            return DriverSeen(DriverState.LOST)
        return DriverSeen(DriverState.ENDED, ended.code, ended.ended, message=ended.message)

    def _stop_driver(self, n: int, directory: AttemptDir, is_grace_over: bool) -> None:
        if directory.claim(None):
            return  # it has not started, and cannot start any more
        owner = directory.claimed_by()
        if is_grace_over:
            self._kill_all(n)
        elif isinstance(owner, Identity):
            send(owner, signal.SIGTERM)

    def _kill_all(self, n: int) -> None:
        """Kill what an attempt's driver left behind."""
        for each in marked(self._mark(n), JOB_MARK):
            send(each.identity, signal.SIGKILL)
