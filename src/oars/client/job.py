"""AsyncJob and Job: a job as an object."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from oars import engines
from oars.base.errors import NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.base.settings import Settings
from oars.client.archive import Archive, pack
from oars.client.backend import Location, Progress, capabilities, ignore, make_location, no_answer
from oars.client.backends import is_kubernetes_configured
from oars.client.jobs import AttachedJob, JobBackend, JobHandle, JobInfo, LocalJobs, generate_name
from oars.client.keywords import suggest_keywords
from oars.client.sync import run as run_blocking
from oars.spec.cluster import ClusterSpec
from oars.spec.job import JobSpec, WorkingDir, check_job_name
from oars.spec.job_status import Attempt, JobState, JobStatus
from oars.spec.load_job import NO_METADATA, JobMetadata, build_job, check_schedule_name

FIND_SECONDS = 20.0
REMOVE_SECONDS = 90.0


@dataclass(frozen=True)
class JobResult:
    """How a job ended. Times in seconds since the epoch."""

    state: JobState
    exit_code: int | None
    reason: str
    message: str
    started: float | None
    ended: float | None
    attempts: tuple[Attempt, ...]


def job_backend(location: Location, environ: Mapping[str, str]) -> JobBackend:
    """The jobs of `location.place`, or of this machine if it names none."""
    place = location.place or "local"
    capabilities(place)  # raises SpecError
    if place == "local":
        return LocalJobs(Settings.from_environ(environ), environ)
    from oars.client.kube_jobs import KubeJobs  # loads aiohttp, which local jobs do not need

    return KubeJobs(Settings.from_environ(environ), environ, location)


async def find_job(name: str, location: Location, environ: Mapping[str, str]) -> tuple[JobBackend, JobHandle]:
    """The job of that name on this machine or else on Kubernetes, and its backend for the caller to close."""
    places = [location.place] if location.place else ["local"]
    if location.place is None and is_kubernetes_configured(location, environ):
        places.append("kubernetes")
    missing: NotFound | None = None
    for place in places:
        backend = job_backend(_at(location, place), environ)
        handle = backend.job(name)
        try:
            async with asyncio.timeout(FIND_SECONDS):
                await handle.info()
        except NotFound as error:
            missing = missing or error
            await backend.close()
        except TimeoutError:
            await backend.close()
            raise no_answer(place, "jobs", FIND_SECONDS) from None
        except BaseException:
            await backend.close()
            raise
        else:
            return backend, handle
    assert missing is not None
    raise missing


def _at(location: Location, place: str) -> Location:
    from dataclasses import replace

    return replace(location, place=place)


async def submit(
    name: str | None,
    spec: JobSpec,
    working_dir: str | Path | None,
    backend: JobBackend,
    progress: Progress = ignore,
    metadata: JobMetadata = NO_METADATA,
) -> JobHandle:
    """Pack the working directory and store the job. working_dir None: the driver starts in an empty directory."""
    name = checked_job_name(name or generate_name(spec))
    check_schedule_name(name, spec)
    await backend.check(name, spec)
    archive: Archive | None = None
    if working_dir is not None:
        _check_script(spec.entrypoint, Path(working_dir))
        from oars.spec.resources import show_memory

        archive = await asyncio.to_thread(pack, Path(working_dir), backend.archive_limit)
        count = f"{archive.files} file{'' if archive.files == 1 else 's'}"
        progress(f"sending {count}, {show_memory(archive.size)}B ({show_memory(len(archive.data))}B packed)")
        files = WorkingDir(archive=archive.hash, size=len(archive.data))
        spec = spec.model_copy(update={"working_dir": files})
    return await backend.submit(name, spec, archive, progress, metadata)


def _check_script(command: Sequence[str], directory: Path) -> None:
    """Raise NotFound if the command is a Python file that the job's copy of the directory will not have."""
    match command:
        case ("python" | "python3", script, *_) if script.endswith(".py") and not Path(script).is_absolute():
            if directory.is_dir() and not (directory / script).exists():
                hint = f"Check the path; it is relative to the working directory {directory.absolute()}."
                raise NotFound(f"There is no script {script!r}.", hint)


def checked_job_name(name: str) -> str:
    try:
        return check_job_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Example: train-1.") from error


class AsyncJob:
    """A program that runs once on a cluster, and continues without this process. `await AsyncJob("train.py", …)`."""

    @suggest_keywords
    def __init__(  # noqa: PLR0913 (all but the first are keywords)
        self,
        entrypoint: str | Sequence[str] | JobSpec,
        *,
        cluster: str | ClusterSpec | Mapping[str, Any] | None = None,
        engine: str | None = None,
        workers: int | None = None,
        name: str | None = None,
        working_dir: str | Path | None = ".",
        env: Mapping[str, str] | None = None,
        retries: int | None = None,
        recoveries: int | None = None,
        deadline: float | str | None = None,
        attempt_deadline: float | str | None = None,
        start_deadline: float | str | None = None,
        ttl_after_finished: float | str | None = None,
        fields: Mapping[str, Any] | None = None,
        place: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Check the arguments. The job is submitted when the object is awaited.

        entrypoint: a Python file, a list with the command and its arguments, a line for the shell, or a JobSpec.
        cluster: the name of an existing cluster, or the spec of a new one, which is removed after the job.
        engine, workers: of a new cluster.
        name: of the job; by default the engine's name and random digits.
        working_dir: directory that the job gets a copy of; None: none.
        env: environment variables of the driver.
        retries, recoveries, deadline, attempt_deadline, start_deadline, ttl_after_finished: see the spec.
        fields: further fields of the spec, named as in files, such as {"retryOn": {"never": [2]}}.
        place: "local" (default) or "kubernetes".
        namespace, context, kubeconfig: as for kubectl; each implies place="kubernetes".
        progress: called with a line of text at every step of the submission and, while `wait` or `result` waits, when
            an attempt is stopped, ends or starts.
        """
        self._location = make_location(
            lambda field: f"{field}=", place=place, context=context, namespace=namespace, kubeconfig=kubeconfig
        )
        limits = {"retries": retries, "recoveries": recoveries, "deadline": deadline}
        limits |= {"attemptDeadline": attempt_deadline, "startDeadline": start_deadline}
        given = {**limits, "ttlAfterFinished": ttl_after_finished, "env": dict(env) if env else None, **(fields or {})}
        overrides = {"engine": engine, "workers": workers, "place": self._location.place}
        self._spec = _build(entrypoint, cluster, given, overrides)
        self._name = checked_job_name(name or generate_name(self._spec))
        self._working_dir = working_dir
        self._progress = progress or ignore
        self._backend: JobBackend | None = None
        self._handle: JobHandle | None = None

    @classmethod
    async def attach(
        cls,
        name: str,
        *,
        place: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> Self:
        """Find a job that was submitted before."""
        location = make_location(
            lambda field: f"{field}=", place=place, context=context, namespace=namespace, kubeconfig=kubeconfig
        )
        self = cls.__new__(cls)
        self._name, self._location, self._progress = name, location, ignore
        self._backend, self._handle = await find_job(name, location, os.environ)
        return self

    async def submit(self) -> Self:
        """Send the working directory and store the job; it starts at once."""
        place = self._location.place or self._spec.place or "local"
        self._backend = job_backend(_at(self._location, place), os.environ)
        self._handle = await submit(self._name, self._spec, self._working_dir, self._backend, self._progress)
        if isinstance(self._handle, AttachedJob):
            await self._handle.attach()
        return self

    def __await__(self) -> Any:
        return self.submit().__await__()

    def _submitted(self) -> JobHandle:
        if self._handle is None:
            raise UsageError(f"Job {self._name!r} is not submitted.", "Await the AsyncJob.")
        return self._handle

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._name

    async def info(self) -> JobInfo:
        """Return the job with its status and times."""
        return await self._submitted().info()

    async def status(self) -> JobStatus:
        """Return the present status."""
        return (await self.info()).status

    async def wait(self, timeout: float | None = None) -> JobStatus:  # noqa: ASYNC109 (part of the API)
        """Wait until the job has ended and return its status. Raises TimedOut; the job continues."""
        return await wait_final(self._submitted(), timeout, self._progress)

    async def result(self, timeout: float | None = None) -> JobResult:  # noqa: ASYNC109 (part of the API)
        """Wait until the job has ended; its exit code, times, attempts and reason."""
        status = await self.wait(timeout)
        return JobResult(
            status.state, status.exit_code, status.reason, status.message, status.started, status.ended, status.attempts
        )

    async def logs(self, attempt: int | None = None) -> str:
        """Return the output of an attempt; by default of the last one."""
        return "\n".join([each.line async for each in self._submitted().logs(attempt)])

    async def follow_logs(self) -> AsyncIterator[str]:
        """Iterate over the lines of the output from the present attempt on, until the job has ended."""
        async for each in self._submitted().logs(None, follow=True):
            yield each.line

    async def cancel(self) -> None:
        """Stop the driver and return at once; `wait` returns when the job has ended."""
        await self._submitted().cancel()

    async def suspend(self) -> None:
        """Stop the attempt, and start none until `resume`."""
        await self._submitted().suspend(suspended=True)

    async def resume(self) -> None:
        """Continue a suspended job with a new attempt."""
        await self._submitted().suspend(suspended=False)

    async def remove(self) -> None:
        """Cancel the job and remove everything that belongs to it, with its logs."""
        await self._submitted().delete(REMOVE_SECONDS)

    async def close(self) -> None:
        """Release connections. The job continues; on Kubernetes without an operator it is cancelled."""
        if isinstance(self._handle, AttachedJob):
            await self._handle.close()
        if self._backend is not None:
            await self._backend.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


def news(before: JobStatus, now: JobStatus) -> str:
    """What a user who follows a job wants to know of a change; empty: nothing. A lost head is news at once, not only
    when the driver has been stopped."""
    was, last = before.last, now.last
    if last is None:
        return ""
    if last.n > 1 and (was is None or last.n > was.n):
        return f"attempt {last.n} starts."
    if now.state is JobState.RETRYING and before.state is not JobState.RETRYING:
        return f"attempt {last.n} ended. {last.message}"
    if last.stopping and last.ended is None and (was is None or not was.stopping):
        return f"attempt {last.n} is being stopped. {now.message}"
    return ""


async def wait_final(
    handle: JobHandle,
    timeout: float | None = None,  # noqa: ASYNC109 (the job continues)
    progress: Progress = ignore,
    *,
    is_cancelled: bool = False,
) -> JobStatus:
    """The status of a job that has ended. progress: called with the news. A schedule ends only if it is cancelled."""
    last: JobStatus | None = None
    try:
        async with asyncio.timeout(timeout):
            async for info in handle.watch():
                info.check_can_end()
                if not is_cancelled:
                    info.check_has_driver()
                if text := news(last or info.status, info.status):
                    progress(f"Job {handle.name}: {text}")
                last = info.status
    except TimeoutError:
        state = f" It is {last.state}." if last is not None else ""
        raise TimedOut(f"Job {handle.name!r} did not end within {timeout:.0f} s.{state}") from None
    if last is None or not last.state.is_final:
        raise NotFound(f"Job {handle.name!r} was removed before it ended.")
    return last


async def wait_suspended(handle: JobHandle, timeout: float, *, suspended: bool) -> None:  # noqa: ASYNC109 (as above)
    """Wait until a job is suspended, or until it is not. Raises TimedOut, and OarsError if it ends before that."""
    last: JobInfo | None = None
    try:
        async with asyncio.timeout(timeout):
            async for info in handle.watch():
                last = info
                if (info.status.state is JobState.SUSPENDED) is suspended:
                    break
    except TimeoutError:
        state = f" It is {last.status.state}." if last is not None else ""
        change = "suspended" if suspended else "resumed"
        message = f"Job {handle.name!r} was not {change} within {timeout:.0f} s.{state}"
        raise TimedOut(message, f"The request stays. `oars jobs why {handle.name}` shows what it waits for.") from None
    if suspended and last is not None:
        last.check_has_not_ended()


class Job:
    """A submitted job: `Job("train.py", engine="dask", workers=2).result()`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Submit a job. See AsyncJob for the arguments."""
        self._job = run_blocking(AsyncJob(*args, **kwargs).submit())

    @classmethod
    def attach(cls, name: str, **location: Any) -> Self:
        """Find a job that was submitted before."""
        self = cls.__new__(cls)
        self._job = run_blocking(AsyncJob.attach(name, **location))
        return self

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._job.name

    def status(self) -> JobStatus:
        """Return the present status."""
        return run_blocking(self._job.status())

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended and return its status. Raises TimedOut; the job continues."""
        return run_blocking(self._job.wait(timeout))

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended; its exit code, times, attempts and reason."""
        return run_blocking(self._job.result(timeout))

    def logs(self, attempt: int | None = None, *, follow: bool = False) -> str | Iterator[str]:
        """Return the output of an attempt, by default of the last one. follow: iterate over the lines until the job has
        ended."""
        return self._follow() if follow else run_blocking(self._job.logs(attempt))

    def _follow(self) -> Iterator[str]:
        lines = self._job.follow_logs()

        async def next_line() -> str | None:
            return await anext(lines, None)

        while (line := run_blocking(next_line())) is not None:
            yield line

    def cancel(self) -> None:
        """Stop the driver and return at once; `wait` returns when the job has ended."""
        run_blocking(self._job.cancel())

    def suspend(self) -> None:
        """Stop the attempt, and start none until `resume`."""
        run_blocking(self._job.suspend())

    def resume(self) -> None:
        """Continue a suspended job with a new attempt."""
        run_blocking(self._job.resume())

    def remove(self) -> None:
        """Cancel the job and remove everything that belongs to it, with its logs."""
        run_blocking(self._job.remove())

    def close(self) -> None:
        """Release connections. The job continues."""
        run_blocking(self._job.close())

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


def _build(
    entrypoint: str | Sequence[str] | JobSpec,
    cluster: str | ClusterSpec | Mapping[str, Any] | None,
    fields: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> JobSpec:
    data: dict[str, Any] = {}
    if isinstance(entrypoint, JobSpec):
        data = entrypoint.model_dump(mode="json", by_alias=True)
    else:
        data["entrypoint"] = command_of(entrypoint)
    if isinstance(cluster, str):
        data["cluster"] = {"name": cluster}
    elif isinstance(cluster, ClusterSpec):
        data["cluster"] = cluster.model_dump(mode="json", by_alias=True)
    elif cluster is not None:
        data["cluster"] = dict(cluster)
    data |= {name: value for name, value in fields.items() if value is not None}
    try:
        return build_job(data, overrides=overrides, option_model=engines.option_model).spec
    except OarsError as error:
        error.message = error.message.removeprefix("spec.")
        raise


def command_of(entrypoint: str | Sequence[str]) -> str | list[str]:
    """The command for a Python file, a list, or a line for the shell."""
    if isinstance(entrypoint, str):
        return ["python", entrypoint] if entrypoint.endswith(".py") and " " not in entrypoint else entrypoint
    return [str(word) for word in entrypoint]
