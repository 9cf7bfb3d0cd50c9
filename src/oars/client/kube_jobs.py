"""Jobs on Kubernetes: ComputeJobs, which the operator reconciles; without one direct_jobs. See jobs.JobBackend."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from oars.base.errors import Denied, NotFound, OarsError, UsageError
from oars.base.log import get_logger, pairs
from oars.base.settings import Settings
from oars.client import operator_client, pod_logs
from oars.client.backend import Location, LogOptions, Progress, ignore
from oars.client.direct_jobs import (
    DirectJob,
    cannot_be_suspended,
    check_direct,
    free_driver_name,
    is_unlimited,
    remove_attempt,
)
from oars.client.job_files import send_files
from oars.client.job_record import SELECTOR, free_record, is_over, is_record, mark_of, record_info
from oars.client.jobs import JobHandle, JobInfo, PolledJob
from oars.client.kubernetes import KubeBackend
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import CONFIG_MAP, POD, Kind, Object
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_JOB
from oars.places.kube.render.driver import CONTAINER
from oars.places.kube.state.job_codec import load_status
from oars.places.kube.state.job_log import kept_lines
from oars.places.kube.why.api_errors import denied_with_rule
from oars.spec.job import MAX_ARCHIVE
from oars.spec.load_job import NO_METADATA, JobMetadata, check_on_kubernetes, dump_job
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.client.archive import Archive
    from oars.spec.job import JobSpec

FILES_LIMIT = 64 * 2**20  # bytes of files
POLL_SECONDS = 0.5  # how often the status is read
COMPARED_LINES = 100  # by which the place is found in the kept log where a connection was cut

log = get_logger(__name__)


class KubeJobs:
    """Jobs of one namespace."""

    place = "kubernetes"
    archive_limit = FILES_LIMIT

    def __init__(self, settings: Settings, environ: Mapping[str, str], location: Location) -> None:
        self.backend = KubeBackend(settings, environ, location)
        self.mode = location.mode

    async def check(self, name: str, spec: JobSpec) -> None:
        check_on_kubernetes(spec)
        await self.backend.login()

    async def submit(
        self,
        name: str,
        spec: JobSpec,
        archive: Archive | None,
        progress: Progress = ignore,
        metadata: JobMetadata = NO_METADATA,
    ) -> JobHandle:
        if archive is not None and len(archive.data) > MAX_ARCHIVE:
            raise UsageError(
                f"The working directory has {len(archive.data) / 2**20:.1f} MiB when packed, but at most "
                f"{MAX_ARCHIVE // 2**20} MiB can be sent to Kubernetes. "
                f"The biggest entries, not packed: {archive.biggest}.",
                "List what the job does not need in .oarsignore, or put it into the image.",
            )
        check_on_kubernetes(spec)
        client, namespace = self.backend.client, self.backend.namespace
        await self.backend.login()
        has_operator = await self._has_operator(namespace)
        if not has_operator:
            check_direct(spec, metadata.labels, namespace)
            with denied_with_rule():
                await free_record(client, name, namespace)
                await free_driver_name(client, name, 1, namespace)
            if is_unlimited(spec):
                progress(
                    f"The job has no deadline: if this command is killed, its driver runs to its own end on cluster "
                    f"{spec.cluster_name!r}."
                )
            return DirectJob(name, spec, archive, self.backend)
        manifest = dump_job(name, spec, metadata)
        manifest["metadata"]["namespace"] = namespace
        if isinstance(manifest["spec"].get("cluster"), dict):
            manifest["spec"]["cluster"].pop("place", None)
        try:
            with denied_with_rule():
                created = await client.create(manifest)
                if archive is not None:
                    await self._send(archive, created, progress)
        except ApiError as error:
            if not is_conflict(error):
                raise
            hint = f"Choose another name, or run `oars jobs rm {name} -n {namespace}`."
            raise OarsError(f"Job {name!r} exists already in namespace {namespace!r}.", hint) from error
        return KubeJobHandle(self, name, namespace)

    async def _has_operator(self, namespace: str) -> bool:
        """False: jobs run in direct mode. Raises UsageError if that is not wanted."""
        mode = self.mode or await operator_client.find_mode(self.backend.client, namespace)
        if mode == "direct":
            return False
        if await operator_client.if_allowed(self.backend.client.list(COMPUTE_JOB, namespace, limit=1)) is not None:
            return True
        raise UsageError(
            f"No operator serves jobs in namespace {namespace!r}.",
            "Install it with `oars operator install`, or use direct mode: the job then runs while you wait.",
        )

    async def _send(self, archive: Archive, job: Object, progress: Progress) -> None:
        """Send the files of a new job. If that fails, delete the job: its driver would wait for them."""
        owner = {key: job[key] for key in ("apiVersion", "kind")}
        owner |= {key: job["metadata"][key] for key in ("name", "uid")}
        try:
            await send_files(self.backend.client, archive, owner, job["metadata"]["namespace"], progress)
        except BaseException:  # Ctrl-C too
            await self._take_back(job["metadata"])
            raise

    async def _take_back(self, metadata: Object) -> None:
        name, namespace, uid = (metadata[key] for key in ("name", "namespace", "uid"))
        try:
            await self.backend.client.delete(COMPUTE_JOB, name, namespace, propagation="Foreground", uid=uid)
        except OarsError as error:
            log.warning(pairs("a job without its files is left", job=name, namespace=namespace, error=error.message))

    def job(self, name: str) -> KubeJobHandle:
        return KubeJobHandle(self, name, self.backend.namespace)

    async def list(self, *, all_namespaces: bool = False) -> Sequence[JobInfo]:
        await self.backend.login()
        namespace = None if all_namespaces else self.backend.namespace
        client, now = self.backend.client, time.time()
        jobs = await operator_client.if_allowed(client.list(COMPUTE_JOB, namespace))
        records = await operator_client.if_allowed(client.list(CONFIG_MAP, namespace, labels=SELECTOR))
        found = [_info(each) for each in jobs.items] if jobs is not None else []
        return [*found, *(record_info(each, now) for each in (records.items if records is not None else ()))]

    async def close(self) -> None:
        await self.backend.close()


class KubeJobHandle(PolledJob):
    """One job: a ComputeJob, or the record of a job that a command runs without an operator. See jobs.JobHandle."""

    poll_seconds = POLL_SECONDS

    def __init__(self, jobs: KubeJobs, name: str, namespace: str) -> None:
        self._jobs = jobs
        self.name = name
        self.namespace = namespace
        self._stored: tuple[Kind, str] = COMPUTE_JOB, name

    @property
    def _is_direct(self) -> bool:
        return self._stored[0] is CONFIG_MAP

    async def _read(self) -> Object:
        await self._jobs.backend.login()
        try:
            return await self._get()
        except (NotFound, Denied):
            record = names.job_record(self.name)
            request = self._jobs.backend.client.get(CONFIG_MAP, record, self.namespace)
            found = None if self._is_direct else await operator_client.if_allowed(request)
            if found is None or not is_record(found):
                raise
        self._stored = CONFIG_MAP, record
        return found

    async def _get(self) -> Object:
        kind, name = self._stored
        try:
            with denied_with_rule():
                return await self._jobs.backend.client.get(kind, name, self.namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            message = f"There is no job {self.name!r} in namespace {self.namespace!r}."
            raise NotFound(message, f"Run `oars jobs ls -n {self.namespace}` to list jobs.") from None

    async def info(self) -> JobInfo:
        found = await self._read()
        return record_info(found, time.time()) if self._is_direct else _info(found)

    async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        if follow and await self._wait_for_pod(number):
            async for line in self._follow(number):
                yield line
            return
        kept = await self._kept_lines(number)
        for line in kept if kept is not None else await self._present_lines(number):
            yield line

    async def _present_lines(self, number: int) -> list[str]:
        options = LogOptions(container=CONTAINER)
        try:
            lines = pod_logs.read(self._jobs.backend.client, lambda: self._pod(number), options)
            return [line async for line in lines]
        except ApiError as error:
            if error.status != 400:  # 400: the container does not run yet
                raise
            return []

    async def _wait_for_pod(self, number: int) -> bool:
        """True as soon as the driver's pod exists; False if the attempt ends before that."""
        while not await self._is_over(number):
            if await self._pod(number) is not None:
                return True
            await asyncio.sleep(POLL_SECONDS)  # poll: the cluster starts first
        return False

    async def _follow(self, number: int) -> AsyncIterator[str]:
        """All lines of the pod; if it is gone before they were read, the rest from the kept log."""
        is_gone = False

        async def find_pod() -> Object | None:
            nonlocal is_gone
            pod = await self._pod(number)
            is_gone = pod is None
            return pod

        async def is_over() -> bool:
            return await self._is_over(number)

        count, last = 0, deque[str](maxlen=COMPARED_LINES)
        options = LogOptions(follow=True, container=CONTAINER)
        async for line in pod_logs.follow(self._jobs.backend.client, find_pod, options, is_over):
            count += 1
            last.append(line)
            yield line
        if not is_gone:
            return
        while not await is_over():  # noqa: ASYNC110 (it is a request)
            await asyncio.sleep(POLL_SECONDS)  # poll: the operator finds out that the pod is gone
        for line in lines_after(await self._kept_lines(number) or [], count, list(last)):
            yield line

    async def _pod(self, number: int) -> Object | None:
        selector = names.selector({names.JOB: self.name, names.ATTEMPT: str(number)})
        found = (await self._jobs.backend.client.list(POD, self.namespace, labels=selector)).items
        return found[0] if found else None

    async def _kept_lines(self, number: int) -> list[str] | None:
        name = names.job_log(self.name, number)
        found = await operator_client.if_allowed(self._jobs.backend.client.get(CONFIG_MAP, name, self.namespace))
        return None if found is None else kept_lines(found)

    async def cancel(self) -> None:
        (await self.info()).check_can_end()
        await self._patch({"metadata": {"annotations": {names.CANCEL: "requested"}}})

    async def suspend(self, *, suspended: bool) -> None:
        resource = await self._read()
        if self._is_direct:
            raise cannot_be_suspended()
        _info(resource).check_has_not_ended()
        change: Object = {"suspend": suspended}
        if not suspended and resource["spec"].get("schedule"):
            change["schedule"] = {"suspend": False}
        await self._patch({"spec": change})

    async def _patch(self, body: Object) -> None:
        await self._read()
        kind, name = self._stored
        with denied_with_rule():
            await self._jobs.backend.client.patch(kind, name, self.namespace, body)

    async def delete(self, timeout: float) -> None:  # noqa: ASYNC109 (see JobHandle)
        record = await self._read()
        client, deadline = self._jobs.backend.client, time.monotonic() + timeout
        if self._is_direct:
            await self._delete_direct(record, timeout)
            return
        with denied_with_rule():
            await client.delete(COMPUTE_JOB, self.name, self.namespace, propagation="Foreground")
        while True:
            try:
                await self._read()
            except NotFound:
                return
            if time.monotonic() > deadline:
                raise OarsError(f"Job {self.name!r} was not removed within {timeout:.0f} s.", "It continues to stop.")
            await asyncio.sleep(POLL_SECONDS)  # poll: a deletion takes seconds

    async def _delete_direct(self, record: Object, timeout: float) -> None:  # noqa: ASYNC109 (see delete)
        """Have the command end the job. If that is gone, remove what it left."""
        client, info = self._jobs.backend.client, await self.info()
        try:
            if not is_over(info.status):
                await self.cancel()
                async with asyncio.timeout(timeout):
                    while not is_over((info := await self.info()).status):  # noqa: ASYNC110 (it is a request)
                        await asyncio.sleep(POLL_SECONDS)  # poll: the command stops the driver
        except NotFound:
            return
        except TimeoutError:
            message = f"Job {self.name!r} was not removed within {timeout:.0f} s."
            raise OarsError(message, "The command that runs it continues to stop it.") from None
        with denied_with_rule():
            if info.status.is_abandoned:
                await remove_attempt(client, self.name, info.status, mark_of(record), self.namespace)
            uid = record["metadata"]["uid"]
            await client.delete(CONFIG_MAP, record["metadata"]["name"], self.namespace, uid=uid)


def lines_after(kept: list[str], count: int, last: list[str]) -> list[str]:
    """The kept lines that follow those that were read: so many, and these were the last of them. The kept log may lack
    its beginning."""
    for end in range(min(count, len(kept)), len(last) - 1, -1):
        if kept[end - len(last) : end] == last:
            return kept[end:]
    return kept


def _info(resource: Object) -> JobInfo:
    metadata, spec = resource["metadata"], resource["spec"]
    return JobInfo(
        metadata["name"],
        "kubernetes",
        datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        load_status(resource.get("status")),
        namespace=metadata["namespace"],
        ttl=_span(spec.get("ttlAfterFinished")),
        deadline=_span(spec.get("deadline")),
        schedule=str((spec.get("schedule") or {}).get("cron", "")),
        run_of=str((metadata.get("labels") or {}).get(names.SCHEDULE, "")),
    )


def _span(value: object) -> float | None:
    try:
        return None if value is None else duration(value)
    except ValueError:
        return None
