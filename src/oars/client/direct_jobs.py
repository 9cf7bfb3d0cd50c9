"""Jobs on Kubernetes without an operator: this process runs the loop of the job, with a cluster of its own per attempt
that is tied to this process, and a batch/v1 Job as the driver.

Everything of an attempt belongs to the root of its cluster. If this process dies, the helper next to the head deletes
the root after `lifetime.orphaned`, and Kubernetes the rest. The status of the job is in the memory of this process;
other clients read a copy of it, the record, whose creation decides which of several commands runs the job."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from oars.base.errors import NotFound, OarsError, UsageError
from oars.base.log import get_logger, pairs
from oars.client import pod_logs
from oars.client.backend import CreateOptions, LogOptions, ignore
from oars.client.handles import is_ready
from oars.client.job_files import send_files
from oars.client.job_record import DirectRecord, NameTaken, RecordWriter
from oars.client.jobs import JobInfo, PolledJob
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.control.jobs import reconcile_job
from oars.control.runner import Runner
from oars.kube.errors import ApiError, is_conflict, is_not_found, is_permanent
from oars.kube.kinds import CONFIG_MAP, JOB, POD, Kind, Object
from oars.model import HEAD, Pause
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render.driver import CONTAINER, STOPPED, Attempted, closed_job, driver_job, driver_name
from oars.places.kube.state import ownership
from oars.places.kube.state.drivers import is_stopped, see_driver
from oars.places.kube.state.root import reference
from oars.places.kube.why.api_errors import denied_with_rule
from oars.plan.jobs import (
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
    JobRequest,
    JobSeen,
    JobStep,
    driver_seconds,
    policy_of,
    with_failed_pass,
)
from oars.spec.job_status import Attempt, JobStatus

if TYPE_CHECKING:
    from oars.client.archive import Archive
    from oars.kube.client import Client
    from oars.spec.job import JobSpec

POLL_SECONDS = 0.5  # how often the status is looked at
PASS_SECONDS = 1.0  # between two passes at the most: one process looks at one driver and one head
LONGEST_BACKOFF = 5.0  # after passes that failed
REPORT_SECONDS = 10.0  # for the report of an existing cluster
CLOSE_SECONDS = 60.0
LOG_SECONDS = 20.0  # to read the end of a log
DRIVER_TTL = 3600  # seconds for which the driver of a job on an existing cluster stays after its end
_ENDED = (DriverState.ENDED, DriverState.LOST, DriverState.CLOSED)
_HINT = "Install an operator with `oars operator install`."

log = get_logger(__name__)


def check_direct(spec: JobSpec, labels: Mapping[str, str], namespace: str) -> None:
    """Raise UsageError for what needs somebody who acts when this process is gone, and for a cluster that is not in
    the namespace of the job: a driver cannot have an owner in another namespace."""
    chosen = spec.cluster.namespace if spec.cluster is not None else None
    if chosen is not None and (chosen.create or chosen.name not in (None, namespace)):
        raise UsageError(
            f"cluster.namespace: without an operator the cluster of a job is in the job's namespace, {namespace!r}.",
            f"Remove it, or run `oars submit -n {chosen.name or namespace}`.",
        )
    lacking = {
        "schedule": spec.schedule is not None,
        "suspend": spec.suspend,
        "ttlAfterFinished": spec.ttl_after_finished is not None,
        "cleanup.policy: none": spec.cleanup.policy == "none",
        **{f"label {name}": name in labels for name in (names.KUEUE_QUEUE, names.VOLCANO_QUEUE)},
        "cleanup.after": bool(spec.cleanup.after.succeeded or spec.cleanup.after.failed),
    }
    if found := [name for name, is_set in lacking.items() if is_set]:
        raise UsageError(
            f"{', '.join(found)}: without an operator a job ends with the command that submitted it.",
            "Remove it, or install an operator with `oars operator install`.",
        )


def is_unlimited(spec: JobSpec) -> bool:
    """True if nothing ends the driver when this process is gone: its cluster stays, and it has no deadline."""
    first = JobStatus(attempts=(Attempt(1, "", 0.0),))
    return spec.cluster is None and driver_seconds(policy_of(spec), first, 0.0) is None


async def free_driver_name(client: Client, job: str, n: int, namespace: str) -> None:
    """Delete the ended driver that an earlier direct job of this name left. Raises OarsError if the driver may still
    run, or is another's."""
    found = await _find(client, JOB, driver_name(job, n), namespace)
    if found is None:
        return
    metadata = found["metadata"]
    is_direct = names.INSTANCE in (metadata.get("annotations") or {})
    if is_direct and (metadata.get("labels") or {}).get(names.JOB) == job:
        pods = await _driver_pods(client, job, n, found)
        if see_driver(pods, found, Attempt(n, "", 0.0), time.time()).state in _ENDED:
            await client.delete(JOB, metadata["name"], namespace, uid=metadata["uid"])
            return
    raise _driver_name_taken(job, n, namespace)


def _driver_name_taken(job: str, n: int, namespace: str) -> OarsError:
    name = driver_name(job, n)
    return OarsError(
        f"Job {name!r} exists already in namespace {namespace!r}, and job {job!r} needs that name for its driver.",
        f"Choose another name, or run `kubectl describe job {name} -n {namespace}` to see what it is.",
    )


async def _find(client: Client, kind: Kind, name: str, namespace: str) -> Object | None:
    try:
        return await client.get(kind, name, namespace)
    except ApiError as error:
        if not is_not_found(error):
            raise
        return None


async def _driver_pods(client: Client, job: str, n: int, driver: Object) -> list[Object]:
    selector = names.selector({names.JOB: job, names.ATTEMPT: str(n)})
    found = (await client.list(POD, namespace=driver["metadata"]["namespace"], labels=selector)).items
    return [pod for pod in found if ownership.has_owner(pod, driver["metadata"]["uid"])]


def cannot_be_suspended() -> UsageError:
    return UsageError("A job without an operator cannot be suspended.", _HINT)


async def remove_attempt(client: Client, job: str, status: JobStatus, mark: str, namespace: str) -> None:
    """Delete the driver and the cluster that a command which is gone left behind."""
    for kind, name in ((JOB, driver_name(job, status.attempt)), (CONFIG_MAP, names.root(status.cluster))):
        found = await _find(client, kind, name, namespace)
        if found is not None and _has_mark(found, mark):
            await client.delete(kind, name, namespace, uid=found["metadata"]["uid"])


def _has_mark(found: Object, mark: str) -> bool:
    return (found["metadata"].get("annotations") or {}).get(names.INSTANCE) == mark


class Output:
    """The lines of one attempt, at most so many bytes of their end. A reader that is too slow learns how many lines it
    has missed: a driver waits for no reader."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._size = 0
        self._lines: deque[str] = deque()
        self._dropped = 0
        self.position = pod_logs.Position()  # in the pod's log
        self.is_complete = False

    @property
    def count(self) -> int:
        return self._dropped + len(self._lines)

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > self._keep and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1
            self._dropped += 1

    def after(self, count: int) -> list[str]:
        """The lines after the first `count`, after a line that says how many of them are lost."""
        lost = max(0, self._dropped - count)
        lines = list(islice(reversed(self._lines), self.count - count - lost))[::-1]
        if not lost:
            return lines
        missing = "1 line is" if lost == 1 else f"{lost} lines are"
        return [f"({missing} not shown: logs.keep is {self._keep / 2**20:.4g} MiB)", *lines]


class DirectJob(PolledJob):
    """One job and its loop (see jobs.JobHandle, jobs.AttachedJob, control.jobs.JobPlace and control.runner.Reconciler).
    Calls may come from one event loop after another: the loop of the job continues in the present one."""

    poll_seconds = POLL_SECONDS

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        archive: Archive | None,
        backend: KubeBackend,
    ) -> None:
        self.name = name
        self._spec = spec
        self._policy = policy_of(spec)
        self._archive = archive
        self._created = time.time()
        self.namespace = backend.namespace
        self._settings, self._environ = backend.settings, backend.environ
        self._location = replace(backend.location, mode="direct")
        engine = spec.cluster.engine if spec.cluster is not None else ""
        self._status = JobStatus(engine=engine, cluster=spec.cluster_name or "")
        self._is_cancelled = False
        self._has_finished = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._runner: Runner[str]  # of the present event loop, as is the backend
        self._backend: KubeBackend
        self._handles: dict[str, KubeHandle] = {}  # by name of the cluster
        self._made: set[str] = set()  # the clusters that this job created
        self._mark = secrets.token_hex(8)  # annotation of the clusters and drivers of this job
        self._record = RecordWriter(name, backend.namespace, self._mark)
        self._has_claimed = False  # the name, or its record was refused
        self._refusal: NameTaken | None = None  # another command runs a job of the name
        self._closed: set[int] = set()  # attempts whose driver was not started and cannot start any more
        self._failure = ""  # why the cluster of the present attempt cannot be created
        self._outputs: dict[int, Output] = {}
        self._reader: asyncio.Task[None] | None = None  # follows the driver of the present attempt

    # see jobs.AttachedJob

    async def attach(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        loop = asyncio.get_running_loop()
        if self._running is not None and self._running[0] is loop and not self._running[1].cancelled():
            if self._running[1].done():
                self._running[1].result()  # raises what ended it
            return
        if not self._has_finished:
            self._runner = Runner(self, longest_backoff=LONGEST_BACKOFF)
            self._runner.wake(self.name)
            self._running = loop, loop.create_task(self._run(), name=f"oars job {self.name}")

    async def close(self) -> None:
        if self._running is not None and not self._has_finished:
            await self.delete(CLOSE_SECONDS)

    async def info(self) -> JobInfo:
        await self.attach()
        return JobInfo(
            self.name, "kubernetes", self._created, self._status, namespace=self.namespace, deadline=self._spec.deadline
        )

    async def watch(self) -> AsyncIterator[JobInfo]:
        """To the end of the clean-up: nobody else does that."""
        async for info in super().watch():
            yield info
        if self._running is not None:
            await asyncio.shield(self._running[1])  # a caller's time limit does not end the clean-up

    async def _attempt_lines(self, number: int, *, follow: bool) -> AsyncIterator[str]:
        count = 0
        while True:
            output = self._output(number)
            is_over = await self._is_over(number)  # its output is read before its end is recorded
            lines, count = output.after(count), output.count
            for line in lines:
                yield line
            if is_over or not follow:
                return
            await asyncio.sleep(POLL_SECONDS)  # poll: lines come in bursts

    async def cancel(self) -> None:
        self._is_cancelled = True
        await self.attach()
        if not self._has_finished:
            self._runner.wake(self.name)

    async def suspend(self, *, suspended: bool) -> None:
        raise cannot_be_suspended()

    async def delete(self, timeout: float) -> None:  # noqa: ASYNC109 (see JobHandle)
        await self.cancel()
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.watch():
                    pass
        except TimeoutError:
            message = f"Job {self.name!r} was not removed within {timeout:.0f} s."
            raise OarsError(message, "Its cluster ends when this process has ended.") from None

    # the loop

    async def _run(self) -> None:
        self._backend, self._handles = KubeBackend(self._settings, self._environ, self._location), {}
        try:
            await self._runner.run(until_empty=True)
            self._has_finished = True
        finally:
            await self._stop_reader()
            await self._backend.close()

    async def reconcile(self, key: str) -> Pause | None:
        await self._backend.login()
        if not self._has_claimed and not await self._claim():
            return None
        request = JobRequest(cancel=self._is_cancelled)
        with denied_with_rule():
            self._status, pause = await reconcile_job(key, self._policy, request, self._status, self, time.time)
        await self._write_record()
        if self._status.state.is_final and pause is None:
            return None
        return Pause(min(pause if pause is not None else PASS_SECONDS, PASS_SECONDS))

    async def report_failure(self, key: str, error: Exception) -> None:
        self._status = with_failed_pass(self._status, error, "the output of this command")
        await self._write_record()

    async def _claim(self) -> bool:
        """Create the record before anything else. False: of several commands that start a job of this name at the same
        time, another one has. A job whose record is refused for good runs without it."""
        try:
            await self._store_record()
        except NameTaken as error:
            self._refusal = error
            return False
        except ApiError as error:
            if not (is_permanent(error) or is_not_found(error)):  # 404: the namespace does not exist
                raise
            log.warning(pairs("record not written", job=self.name, error=error.message))
        self._has_claimed = True
        return True

    async def _write_record(self) -> None:
        """A job that other clients cannot see runs nevertheless."""
        try:
            await self._store_record()
        except OarsError as error:
            log.warning(pairs("record not written", job=self.name, error=error.message))

    async def _store_record(self) -> None:
        record = DirectRecord(self._status, self._created, self._spec.deadline)
        if await self._record.write(self._backend.client, record) and not self._is_cancelled:
            self._is_cancelled = True
            self._runner.wake(self.name)

    # see control.jobs.JobPlace

    async def observe(self, status: JobStatus) -> JobSeen:
        attempt = status.last
        if attempt is None:
            return JobSeen()
        driver = await self._see_driver(attempt)
        is_over = driver.state in (DriverState.ENDED, DriverState.LOST, DriverState.UNREACHABLE)
        is_kept = not is_over or attempt.ended is not None or self._output(attempt.n).is_complete
        return JobSeen(await self._see_cluster(attempt.cluster), driver, is_kept)

    async def record(self, status: JobStatus) -> None:
        self._status = status

    async def perform(self, step: JobStep, status: JobStatus) -> None:
        attempt = status.last
        assert attempt is not None  # a job without an attempt has nothing to do steps for
        match step:
            case JobStep.MAKE_CLUSTER:
                await self._make_cluster(attempt.cluster)
            case JobStep.START_DRIVER:
                await self._start_driver(attempt, status)
            case JobStep.STOP_DRIVER:
                await self._stop_driver(attempt)
            case JobStep.KEEP_LOG:
                await self._complete_output(attempt)
            case JobStep.REMOVE_CLUSTER:
                self._failure = ""
                if attempt.cluster in self._made:
                    await self._handle(attempt.cluster).stop()
                    self._made.discard(attempt.cluster)
            case JobStep.REMOVE_DRIVER:
                await self._remove_driver(attempt.n)

    # the cluster

    async def _see_cluster(self, name: str) -> ClusterSeen:
        if self._failure:
            return ClusterSeen(ClusterState.FAILED, message=self._failure)
        is_own, handle = self._spec.cluster is not None, self._handle(name)
        if is_own and not await self._is_made(name):
            return ClusterSeen()
        try:
            report = handle.last_report() or await handle.report(REPORT_SECONDS)
        except NotFound:
            if is_own:
                self._made.discard(name)
                return ClusterSeen()
            return ClusterSeen(ClusterState.FAILED, message=f"There is no cluster {name!r}.")
        head = await self._head(name)
        minimum = self._spec.cluster.min_ready if self._spec.cluster is not None else None
        if is_ready(report.status, minimum):
            return ClusterSeen(ClusterState.READY, head)
        status = report.status
        message = f"Cluster {name}: {status.phase}, {status.ready} of {status.wanted} workers ready. {status.message}"
        return ClusterSeen(ClusterState.STARTING, head, message.strip())

    async def _is_made(self, name: str) -> bool:
        """True if this job created the cluster. An earlier event loop may have ended before the response came."""
        if name not in self._made:
            root = await _find(self._backend.client, CONFIG_MAP, names.root(name), self.namespace)
            if root is not None and self._is_ours(root) and "deletionTimestamp" not in root["metadata"]:
                self._made.add(name)
        return name in self._made

    def _handle(self, name: str) -> KubeHandle:
        return self._handles.setdefault(name, self._backend.cluster(name))

    async def _head(self, cluster: str) -> str:
        """The incarnation of the newest head that runs; empty: none does."""
        listed = await self._backend.client.list(POD, self.namespace, labels=names.selector(names.pod_labels(cluster)))
        pods = sorted(listed.items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        for pod in reversed(pods):
            found = (pod.get("status") or {}).get("containerStatuses") or ()
            for each in found:
                if each["name"] == HEAD and "running" in (each.get("state") or {}):
                    return f"{pod['metadata']['uid']}:{each.get('restartCount', 0)}"
        return ""

    async def _make_cluster(self, name: str) -> None:
        assert self._spec.cluster is not None
        try:
            options = CreateOptions(tied=True, job=self._mark)
            self._handles[name] = await self._backend.create(name, self._spec.cluster, options)
            self._made.add(name)
        except OarsError as error:
            self._failure = f"{error.message} {error.hint}".strip()

    async def _owner(self, cluster: str) -> Object:
        """The owner reference to the root of a cluster, which owns all of the attempt. Raises NotFound."""
        is_operated = await self._handle(cluster).mode() == "operator"
        kind, name = (COMPUTE_CLUSTER, cluster) if is_operated else (CONFIG_MAP, names.root(cluster))
        try:
            found = reference(kind, await self._backend.client.get(kind, name, self.namespace))
        except ApiError as error:
            if not is_not_found(error):
                raise
            raise NotFound(f"There is no cluster {cluster!r}.") from error
        return {**found, "controller": False, "blockOwnerDeletion": False}

    # the driver

    async def _job(self, n: int) -> Object | None:
        return await _find(self._backend.client, JOB, driver_name(self.name, n), self.namespace)

    async def _pods(self, n: int, job: Object | None) -> list[Object]:
        if job is None or not self._is_ours(job):
            return []
        return await _driver_pods(self._backend.client, self.name, n, job)

    async def _see_driver(self, attempt: Attempt) -> DriverSeen:
        job = await self._job(attempt.n)
        if job is None or not self._is_ours(job):
            return DriverSeen(DriverState.CLOSED) if attempt.n in self._closed else DriverSeen()
        owned = await self._pods(attempt.n, job)
        output = self._output(attempt.n)
        if owned and self._reader is None and not output.is_complete:
            self._reader = asyncio.create_task(self._read_output(output, owned[0]))
        return see_driver(owned, job, attempt, time.time())

    def _is_ours(self, found: Object) -> bool:
        return _has_mark(found, self._mark)

    async def _start_driver(self, attempt: Attempt, status: JobStatus) -> None:
        handle, owner = self._handle(attempt.cluster), await self._owner(attempt.cluster)
        if self._archive is not None:
            await send_files(self._backend.client, self._archive, owner, self.namespace, ignore)
        seconds = driver_seconds(self._policy, status, time.time())
        desired = handle.desired(await handle.spec())
        await self._create(attempt.n, driver_job(Attempted(self.name, owner, attempt.n, desired, seconds), self._spec))

    async def _create(self, n: int, job: Object) -> Object:
        job["metadata"]["annotations"] = {names.INSTANCE: self._mark}
        job["spec"]["ttlSecondsAfterFinished"] = DRIVER_TTL
        try:
            return await self._backend.client.create(job)
        except ApiError as error:
            if not is_conflict(error):
                raise
        found = await self._job(n)
        if found is not None and self._is_ours(found):
            return found
        if not self._record.is_held:  # so it may be the driver of another command
            raise _driver_name_taken(self.name, n, self.namespace)
        await free_driver_name(self._backend.client, self.name, n, self.namespace)
        return await self._backend.client.create(job)

    async def _stop_driver(self, attempt: Attempt) -> None:
        """As the operator does."""
        job = await self._job(attempt.n)
        if job is None:
            try:
                owner = await self._owner(attempt.cluster)
            except NotFound:  # without a cluster no driver was started
                self._closed.add(attempt.n)
                return
            job = await self._create(attempt.n, closed_job(self.name, owner, attempt.n, self.namespace))
        if not self._is_ours(job):  # it has the name, so that ours cannot start
            self._closed.add(attempt.n)
        elif not is_stopped(job):
            change = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": dict(STOPPED)}
            await self._backend.client.patch(JOB, job["metadata"]["name"], self.namespace, change)

    async def _remove_driver(self, n: int) -> None:
        self._closed.discard(n)
        job = await self._job(n)
        if job is not None and self._is_ours(job):
            await self._backend.client.delete(JOB, job["metadata"]["name"], self.namespace, uid=job["metadata"]["uid"])

    # the output

    def _output(self, n: int) -> Output:
        return self._outputs.setdefault(n, Output(self._spec.logs.keep))

    async def _read_output(self, output: Output, pod: Object) -> None:
        """Until the driver's end is seen: `_complete_output` reads the rest."""

        async def find_pod() -> Object:
            return pod

        options = LogOptions(follow=True, container=CONTAINER)
        try:
            async for line in pod_logs.follow(self._backend.client, find_pod, options, position=output.position):
                output.add(line)
        except OarsError as error:
            log.info(pairs("the output is no longer followed", job=self.name, error=error.message))

    async def _complete_output(self, attempt: Attempt) -> None:
        """Read what was not followed, before the pod is removed with its cluster."""
        await self._stop_reader()
        output, pods = self._output(attempt.n), await self._pods(attempt.n, await self._job(attempt.n))

        async def find_pod() -> Object | None:
            return pods[0] if pods else None

        async def is_over() -> bool:
            return True

        options = LogOptions(follow=True, container=CONTAINER)
        try:
            async with asyncio.timeout(LOG_SECONDS):
                client, position = self._backend.client, output.position
                async for line in pod_logs.follow(client, find_pod, options, is_over, position):
                    output.add(line)
        except (OarsError, TimeoutError) as error:
            log.warning(pairs("the end of the output is lost", job=self.name, attempt=attempt.n, error=error))
        text = "".join(f"{line}\n" for line in output.after(0)).encode()
        try:
            await self._record.write_log(self._backend.client, attempt.n, text, self._spec.logs.keep)
        except OarsError as error:
            log.warning(pairs("the output is not kept", job=self.name, attempt=attempt.n, error=error.message))
        output.is_complete = True

    async def _stop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
