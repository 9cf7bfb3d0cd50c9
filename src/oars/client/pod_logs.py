"""Read or follow the log of a member on Kubernetes, across restarts of its container and failures of the API server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from oars.base.errors import NotFound, OarsError
from oars.client.backend import LogOptions, Progress
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable, is_transient
from oars.kube.kinds import Object
from oars.places.kube.state import observe

POLL_SECONDS = 1.0  # for more lines of a container that has ended or waits
MAX_PAUSE = 10.0
REPORT_AFTER = 5.0  # seconds of failures
NEW_FAILURE_AFTER = 60.0  # seconds without a failure

FindPod = Callable[[], Awaitable[Object | None]]
_NO_PREVIOUS = re.compile("previous terminated container .* not found")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+")


@dataclass
class Position:
    """How far a log was read. The number of lines does not say that: the kubelet deletes the oldest ones."""

    tail: int | None = None
    uid: str = ""  # of the pod
    newest: str = ""  # timestamp of its last line
    unstamped: str = ""  # the last line without one


async def read(client: Client, find_pod: FindPod, options: LogOptions) -> AsyncIterator[str]:
    """The present lines of the pod that `find_pod` returns."""
    if pod := await find_pod():
        chosen = _container(pod, options)
        try:
            since = _since(options)
            async for line in client.logs(**chosen, tail=options.tail, since=since, previous=options.previous):
                yield line
        except ApiError as error:
            if not options.previous or not _NO_PREVIOUS.search(error.message):
                raise
            message = (
                f"Container {chosen['container']!r} of pod {chosen['name']} has not restarted; there is no earlier log."
            )
            raise NotFound(message, "Omit `--previous` to read its log.") from None


async def follow(
    client: Client,
    find_pod: FindPod,
    options: LogOptions,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    position: Position | None = None,
) -> AsyncIterator[str]:
    """The present and future lines, each once, until `find_pod` returns None: the member is gone. With `is_over` until
    a connection that began after it was true has delivered everything: nothing is written any more. `position`: where
    an earlier call has ended; it is kept current."""
    backoff, position = Backoff(options.on_trouble), position or Position(options.tail)
    while True:
        pause, is_last = POLL_SECONDS, False
        try:
            is_last = is_over is not None and await is_over()
            pod = await find_pod()
            if pod is None:
                return
            async for line in _new_lines(client, pod, options, position):
                backoff.reset()
                yield line
            if is_last:
                return
            backoff.reset()
        except OarsError as error:
            status = error.status if isinstance(error, ApiError) else 0
            if is_last and status in (400, 404):  # nothing was written, or the pod is gone
                return
            if status != 400:  # the container does not run yet
                pause = backoff.failed(error)
        await asyncio.sleep(pause)


async def _new_lines(client: Client, pod: Object, options: LogOptions, position: Position) -> AsyncIterator[str]:
    """The lines of one connection that earlier ones did not deliver."""
    if pod["metadata"]["uid"] != position.uid:  # timestamps of another node do not compare
        position.tail = None if position.uid else position.tail
        position.uid, position.newest = pod["metadata"]["uid"], ""
    last = position.newest  # of the previous connection: lines of stdout and stderr may be out of order
    where, since, tail = _container(pod, options), last or _since(options), None if last else position.tail
    async for line in client.logs(**where, follow=True, timestamps=True, since=since, tail=tail):
        stamp, _, text = line.partition(" ")
        if not _TIMESTAMP.match(stamp):
            if line != position.unstamped:  # a message of the kubelet, repeated on every connection
                yield line
            position.unstamped = line
        elif sort_key(stamp) > sort_key(last):
            position.newest = max(position.newest, stamp, key=sort_key)
            yield text
    position.tail = None


def _since(options: LogOptions) -> str:
    return "" if options.since is None else observe.timestamp(options.since)


def _container(pod: Object, options: LogOptions) -> dict[str, Any]:
    metadata, container = pod["metadata"], options.container or observe.role(pod).value
    return {"name": metadata["name"], "namespace": metadata["namespace"], "container": container}


class Backoff:
    """Exponential pauses between consecutive failures; reports a failure that lasts once."""

    def __init__(self, report: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._failures = 0
        self._is_reported = False
        self._first = self._last = 0.0

    def failed(self, error: OarsError) -> float:
        """Seconds to wait before the next attempt. Raises the error if it is not transient."""
        if not is_transient(error):
            raise error
        now = self._clock()
        if not self._failures or now - self._last > NEW_FAILURE_AFTER:
            self.reset()
            self._first = now
        self._failures, self._last = self._failures + 1, now
        if now - self._first >= REPORT_AFTER and not self._is_reported:
            self._is_reported = True
            if isinstance(error, Unreachable):
                self._report("The API server does not answer; the log continues when it does.")
            else:
                self._report(f"The log cannot be read ({error.message.rstrip('.')}); retrying.")
        return min(MAX_PAUSE, POLL_SECONDS * 2.0 ** min(self._failures - 1, 20))


def sort_key(stamp: str) -> str:
    """A timestamp whose text compares as its time does: the API server omits trailing zeros."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}" if whole else ""
