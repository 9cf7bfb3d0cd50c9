"""Read or follow the log of a member on Kubernetes, across restarts of its container and failures of the API server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from oars.base.errors import OarsError
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
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+")


def lines(client: Client, find_pod: FindPod, options: LogOptions) -> AsyncIterator[str]:
    """The lines of the pod that `find_pod` returns; None: the member is gone."""
    return LogFollower(client, find_pod, options).lines() if options.follow else _read(client, find_pod, options)


async def _read(client: Client, find_pod: FindPod, options: LogOptions) -> AsyncIterator[str]:
    pod = await find_pod()
    if pod is not None:
        async for line in client.logs(**_container(pod, options), tail=options.tail, previous=options.previous):
            yield line


def _container(pod: Object, options: LogOptions) -> dict[str, Any]:
    metadata, container = pod["metadata"], options.container or observe.role(pod).value
    return {"name": metadata["name"], "namespace": metadata["namespace"], "container": container}


class LogFollower:
    """Follows one member's log until the member is gone; yields each line once."""

    def __init__(self, client: Client, find_pod: FindPod, options: LogOptions) -> None:
        self._client = client
        self._find_pod = find_pod
        self._options = options
        self._tail = options.tail
        self._pod = ""  # UID
        self._newest = ""  # timestamp of the last line of this pod
        self._unstamped = ""
        self._backoff = Backoff(options.on_trouble)

    async def lines(self) -> AsyncIterator[str]:
        while True:
            pause = POLL_SECONDS
            try:
                pod = await self._find_pod()
                if pod is None:
                    return
                async for line in self._new_lines(pod):
                    yield line
                self._tail = None
                self._backoff.reset()
            except OarsError as error:
                if not isinstance(error, ApiError) or error.status != 400:  # 400: the container does not run yet
                    pause = self._backoff.failed(error)
            await asyncio.sleep(pause)

    async def _new_lines(self, pod: Object) -> AsyncIterator[str]:
        """New lines, for as long as the connection lasts."""
        if pod["metadata"]["uid"] != self._pod:  # timestamps of another node do not compare
            self._tail = self._tail if not self._pod else None
            self._pod, self._newest = pod["metadata"]["uid"], ""
        last = self._newest  # of the previous connection: lines of stdout and stderr may be out of order
        since = {"since": last} if last else {"tail": self._tail}
        async for line in self._client.logs(**_container(pod, self._options), follow=True, timestamps=True, **since):
            stamp, _, text = line.partition(" ")
            if not _TIMESTAMP.match(stamp):
                if line != self._unstamped:  # a message of the kubelet, repeated on every connection
                    yield line
                self._unstamped = line
            elif sort_key(stamp) > sort_key(last):
                self._newest = max(self._newest, stamp, key=sort_key)
                yield text


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
