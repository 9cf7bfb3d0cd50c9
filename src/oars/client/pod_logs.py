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


async def read(client: Client, find_pod: FindPod, options: LogOptions) -> AsyncIterator[str]:
    """The present lines of the pod that `find_pod` returns."""
    if pod := await find_pod():
        async for line in client.logs(**_container(pod, options), tail=options.tail, previous=options.previous):
            yield line


async def follow(client: Client, find_pod: FindPod, options: LogOptions) -> AsyncIterator[str]:
    """The present and future lines, each once, until `find_pod` returns None: the member is gone."""
    backoff, tail = Backoff(options.on_trouble), options.tail
    uid, newest, unstamped = "", "", ""  # the pod, the timestamp of its last line, the last line without one
    while True:
        pause = POLL_SECONDS
        try:
            pod = await find_pod()
            if pod is None:
                return
            if pod["metadata"]["uid"] != uid:  # timestamps of another node do not compare
                tail = None if uid else tail
                uid, newest = pod["metadata"]["uid"], ""
            last = newest  # of the previous connection: lines of stdout and stderr may be out of order
            since = {"since": last} if last else {"tail": tail}
            async for line in client.logs(**_container(pod, options), follow=True, timestamps=True, **since):
                stamp, _, text = line.partition(" ")
                if not _TIMESTAMP.match(stamp):
                    if line != unstamped:  # a message of the kubelet, repeated on every connection
                        yield line
                    unstamped = line
                elif sort_key(stamp) > sort_key(last):
                    newest = max(newest, stamp, key=sort_key)
                    yield text
            tail = None
            backoff.reset()
        except OarsError as error:
            if not isinstance(error, ApiError) or error.status != 400:  # 400: the container does not run yet
                pause = backoff.failed(error)
        await asyncio.sleep(pause)


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
