"""Keeps the end of each driver's output in a ConfigMap, so that it outlives the driver's pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found, is_transient
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.kube.render.driver import CONTAINER, GRACE
from oars.places.kube.state import ownership
from oars.places.kube.state.job_log import TEXT_BYTES, log_object

READ_SECONDS = 10.0  # to read a log
GIVE_UP_SECONDS = 30.0  # a log that cannot be stored for longer does not delay the verdict
FOLLOWERS = 16  # each may hold TEXT_BYTES in memory
LINE_BYTES = 2**18  # a longer line is kept in pieces

log = get_logger(__name__)


@dataclass(frozen=True)
class DriverLog:
    """The log of one attempt: uid of the job, number, metadata of the ConfigMap, and the bytes to keep."""

    job: str
    n: int
    metadata: Object
    keep: int

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.n


class DriverLogs:
    """The logs of all jobs of an operator."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._kept: set[tuple[str, int]] = set()
        self._failing: dict[tuple[str, int], float] = {}  # since when it cannot be stored
        self._followers: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(FOLLOWERS)

    async def is_kept(self, wanted: DriverLog) -> bool:
        """True if the log is stored, or cannot be. One that an earlier job of the name left behind is being deleted."""
        failing = self._failing.get(wanted.key)
        if failing is not None and self._clock() - failing > GIVE_UP_SECONDS:
            return True
        if wanted.key not in self._kept:
            try:
                found = await self._client.get(CONFIG_MAP, wanted.metadata["name"], wanted.metadata["namespace"])
            except ApiError as error:
                if not is_not_found(error):
                    raise
                return False
            if not ownership.has_owner(found, wanted.job):
                return False
            self._kept.add(wanted.key)
        return True

    def follow(self, wanted: DriverLog, pod: Object) -> None:
        """Read the log of a driver that is being stopped to its end, beside the passes: its pod may be gone before the
        next one."""
        if wanted.key not in self._kept and wanted.key not in self._followers:
            self._followers[wanted.key] = asyncio.create_task(self._follow(wanted, pod))

    async def _follow(self, wanted: DriverLog, pod: Object) -> None:
        grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", GRACE)
        output = _Output(wanted.keep)
        try:
            async with self._slots:
                try:
                    async with asyncio.timeout(grace + READ_SECONDS):
                        await self._read(pod, output, follow=True)
                except TimeoutError:
                    log.info(pairs("driver still runs after its grace period", pod=pod["metadata"]["name"]))
            await self._store(wanted, output)
        except OarsError as error:
            log.warning(pairs("the end of a log is not kept", pod=pod["metadata"]["name"], error=error))
        finally:
            self._followers.pop(wanted.key, None)

    async def keep(self, wanted: DriverLog, pod: Object | None) -> None:
        """Store the log of a driver that has ended, or why it cannot be read. Raises OarsError if it cannot be
        stored."""
        if wanted.key in self._kept or wanted.key in self._followers:
            return
        try:
            await self._store(wanted, await self._output(wanted, pod))
        except OarsError:
            self._failing.setdefault(wanted.key, self._clock())
            raise

    async def _output(self, wanted: DriverLog, pod: Object | None) -> _Output:
        output = _Output(wanted.keep)
        if pod is None:
            output.add("(the output of this attempt is lost: its pod was deleted)")
            return output
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._read(pod, output)
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and is_transient(error) and error.status != 500:
                raise
            node = (pod.get("spec") or {}).get("nodeName", "unknown")
            output = _Output(wanted.keep)
            output.add(f"(the output of this attempt is lost: node {node} does not return it)")
        return output

    async def _read(self, pod: Object, output: _Output, *, follow: bool = False) -> None:
        metadata = pod["metadata"]
        lines = self._client.logs(
            metadata["name"], metadata["namespace"], container=CONTAINER, follow=follow, line_bytes=LINE_BYTES
        )
        async for line in lines:
            output.add(line)

    async def _store(self, wanted: DriverLog, output: _Output) -> None:
        text, is_cut = bytes(output.text), output.is_cut
        body = await asyncio.to_thread(log_object, wanted.metadata, text, wanted.keep, is_cut=is_cut)
        try:
            await self._client.create(body)
        except ApiError as error:
            if not is_conflict(error):
                raise
            name, namespace = wanted.metadata["name"], wanted.metadata["namespace"]
            if not ownership.has_owner(await self._client.get(CONFIG_MAP, name, namespace), wanted.job):
                hint = "Delete it, or submit the job under another name."
                raise OarsError(f"ConfigMap {name!r} exists and does not belong to this job.", hint) from error
        self._kept.add(wanted.key)
        self._failing.pop(wanted.key, None)

    def forget(self, job: str) -> None:
        self._kept = {key for key in self._kept if key[0] != job}
        self._failing = {key: since for key, since in self._failing.items() if key[0] != job}

    async def close(self) -> None:
        tasks = list(self._followers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Output:
    """The end of an output: its last `keep` bytes, or TEXT_BYTES."""

    def __init__(self, keep: int) -> None:
        self._most = min(keep, TEXT_BYTES)
        self.text = bytearray()
        self.is_cut = False

    def add(self, line: str) -> None:
        self.text += line.encode() + b"\n"
        if len(self.text) > self._most:
            del self.text[: -self._most]
            self.is_cut = True
