"""Operations on jobs, wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from oars import engines
from oars.base.errors import OarsError, UsageError
from oars.client.backend import Location, Progress, capabilities, ignore, no_answer
from oars.client.backends import is_kubernetes_configured
from oars.client.job import command_of, find_job, job_backend, news, submit, wait_final, wait_suspended
from oars.client.jobs import AttachedJob, JobHandle, JobInfo, JobLine
from oars.model import Cause
from oars.spec.job import JobSpec
from oars.spec.job_status import JobState, JobStatus, Outcome
from oars.spec.load import read_text
from oars.spec.load_job import NO_METADATA, JobManifest, JobMetadata, build_job, dump_job, load_job_text

__all__ = [
    "JobInfo",
    "JobLine",
    "JobListing",
    "JobManifest",
    "JobService",
    "command_of",
    "dump_job",
    "exit_code_of",
    "explain_job",
    "from_fields",
    "from_text",
    "news",
    "read_text",
]

LIST_SECONDS = 5.0

from_text = partial(load_job_text, option_model=engines.option_model)
from_fields = partial(build_job, option_model=engines.option_model)


@dataclass(frozen=True)
class JobListing:
    """Jobs, and for each place that could not be listed the reason."""

    jobs: Sequence[JobInfo]
    problems: Mapping[str, str]


class JobService:
    """All operations on the jobs of a location."""

    def __init__(self, environ: Mapping[str, str], location: Location | None = None) -> None:
        self.environ = environ
        self.location = location or Location()
        self._attached: dict[str, JobHandle] = {}  # jobs that run in this process

    def reference(self, name: str, namespace: str = "") -> str:
        """The name of a job or its cluster and the options with which an `oars` command finds it, for hints."""
        return self.location.reference(name, namespace)

    def at(self, manifest: JobManifest) -> JobService:
        """The service for the location of a manifest. Its namespace does not count where there are none."""
        written, given = manifest.namespace, self.location
        place = given.place or manifest.spec.place or "kubernetes"
        if written is None or not capabilities(place).has_namespaces:
            return self
        if given.namespace not in (None, written):  # an error, as in kubectl
            message = f"The file has namespace {written!r}, but --namespace is {given.namespace!r}."
            raise UsageError(message, "Omit one of them.")
        return JobService(self.environ, replace(given, place=place, namespace=written))

    async def submit(
        self,
        name: str | None,
        spec: JobSpec,
        working_dir: str | Path | None,
        progress: Progress = ignore,
        metadata: JobMetadata = NO_METADATA,
        *,
        stays: bool = True,
    ) -> str:
        """Send the working directory and store the job; its name. stays: this process follows the job to its end.
        Raises UsageError if it does not, and the job can only run in this process."""
        place = self.location.place or spec.place or "local"
        backend = job_backend(replace(self.location, place=place), self.environ)
        try:
            handle = await submit(name, spec, working_dir, backend, progress, metadata)
            if isinstance(handle, AttachedJob):
                if not stays:
                    raise UsageError(
                        "Without an operator a job on Kubernetes ends with the command that submitted it.",
                        "Omit --detach and --output, or install an operator with `oars operator install`.",
                    )
                self._attached[handle.name] = handle
            return handle.name
        finally:
            await backend.close()

    def is_attached(self, name: str) -> bool:
        """True if the job ends with this process."""
        return name in self._attached

    @asynccontextmanager
    async def job(self, name: str) -> AsyncIterator[JobHandle]:
        if name in self._attached:
            yield self._attached[name]
            return
        backend, handle = await find_job(name, self.location, self.environ)
        try:
            yield handle
        finally:
            await backend.close()

    async def list(self, *, all_namespaces: bool = False) -> JobListing:
        """The jobs of all places. A place that fails is a problem of the listing, unless it is the only one."""
        places = [self.location.place] if self.location.place else ["local"]
        if self.location.place is None and is_kubernetes_configured(self.location, self.environ):
            places.append("kubernetes")
        jobs: list[JobInfo] = []
        problems: dict[str, str] = {}
        for place in places:
            backend = job_backend(replace(self.location, place=place), self.environ)
            try:
                async with asyncio.timeout(LIST_SECONDS):
                    jobs += await backend.list(all_namespaces=all_namespaces)
            except (OarsError, TimeoutError) as error:
                found = error if isinstance(error, OarsError) else no_answer(place, "jobs", LIST_SECONDS)
                if len(places) == 1:
                    raise found from None
                problems[place] = found.message
            finally:
                await backend.close()
        return JobListing(jobs, problems)

    async def get(self, name: str) -> JobInfo:
        async with self.job(name) as handle:
            return await handle.info()

    async def watch(self, name: str) -> AsyncIterator[JobInfo]:
        async with self.job(name) as handle:
            async for info in handle.watch():
                yield info

    async def logs(
        self, name: str, attempt: int | None = None, *, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[JobLine]:
        """The output of a job. tail: without the lines before the last ones that exist now."""
        async with self.job(name) as handle:
            present = [] if tail is None else [line async for line in handle.logs(attempt)]
            skipped = present[: max(0, len(present) - (tail or 0))]
            count = len(skipped)
            async for line in handle.logs(attempt, follow=follow):
                if count and line.attempt == skipped[0].attempt:
                    count -= 1
                else:
                    yield line

    async def wait(self, name: str, timeout: float | None) -> JobStatus:  # noqa: ASYNC109 (the job continues)
        async with self.job(name) as handle:
            return await wait_final(handle, timeout)

    async def cancel(self, name: str, timeout: float | None) -> JobStatus:  # noqa: ASYNC109 (it stops nevertheless)
        """Cancel a job and wait until it has ended; timeout None: do not wait."""
        async with self.job(name) as handle:
            await handle.cancel()
            return (
                (await handle.info()).status
                if timeout is None
                else await wait_final(handle, timeout, is_cancelled=True)
            )

    async def suspend(
        self,
        name: str,
        timeout: float | None,  # noqa: ASYNC109 (the request stays)
        *,
        suspended: bool,
    ) -> JobInfo:
        """Suspend a job, or resume it, and wait until it has that state; timeout None: do not wait."""
        async with self.job(name) as handle:
            await handle.suspend(suspended=suspended)
            if timeout is not None:
                await wait_suspended(handle, timeout, suspended=suspended)
            return await handle.info()

    async def remove(
        self,
        names: Sequence[str],
        timeout: float,  # noqa: ASYNC109 (they are removed nevertheless)
    ) -> Mapping[str, OarsError | None]:
        """Cancel jobs concurrently and remove everything that belongs to them. The error of each; None: removed."""

        async def remove_one(name: str) -> OarsError | None:
            try:
                async with self.job(name) as handle:
                    await handle.delete(timeout)
            except OarsError as error:
                return error
            return None

        wanted = list(dict.fromkeys(names))
        return dict(zip(wanted, await asyncio.gather(*map(remove_one, wanted)), strict=True))

    async def why(self, name: str) -> Sequence[Cause]:
        """Why the job is in its state: the ends of its attempts, and the last lines of the last one."""
        async with self.job(name) as handle:
            info = await handle.info()
            status = info.status
            lines: list[str] = []
            if status.attempt and status.state is not JobState.SUCCEEDED:
                lines = [each.line async for each in handle.logs(None)]
        job, cluster = (self.reference(each, info.namespace) for each in (name, status.cluster))
        return explain_job(status, lines, job=job, cluster=cluster)


LAST_LINES = 12


def explain_job(status: JobStatus, lines: Sequence[str], *, job: str, cluster: str) -> Sequence[Cause]:
    """The causes of a job's state, the most important first. job, cluster: their references, for hints."""
    causes: list[Cause] = []
    last = status.last
    is_told = last is not None and last.ended is not None and last.message == status.message
    if status.message and status.state is not JobState.SUCCEEDED and not is_told:
        causes.append(Cause(status.reason or status.state, status.message, _hint(status, job, cluster)))
    for attempt in reversed(status.attempts):
        if attempt.outcome in (Outcome.FAILED, Outcome.LOST):
            tail = tuple(lines[-LAST_LINES:]) if attempt.n == status.attempt else ()
            message = f"Attempt {attempt.n}: {attempt.message}"
            hint = f"Read its output: `oars jobs logs {job} --attempt {attempt.n}`."
            causes.append(Cause(attempt.reason, message, hint, tail))
    return causes


def _hint(status: JobStatus, job: str, cluster: str) -> str:
    match status.state:
        case _ if status.is_abandoned:
            return f"Run `oars jobs rm {job}`."
        case JobState.SUSPENDED:
            return f"Run `oars jobs resume {job}`."
        case JobState.STARTING if status.cluster:
            return f"Run `oars why {cluster}`."
        case JobState.FAILED if status.reason.endswith("DeadlineExceeded"):
            return "Increase the deadline in the job's spec and submit it again."
    return ""


def exit_code_of(status: JobStatus) -> int:
    """The exit code of `oars submit`: the driver's, if its end decided."""
    if status.state is JobState.SUCCEEDED:
        return 0
    if status.state is JobState.CANCELLED:
        return 130
    return status.exit_code or 1
