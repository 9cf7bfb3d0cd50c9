"""The log of a pod, once or as it goes on: across restarts of its container, and across whatever happens on the way."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from oars.base.errors import OarsError
from oars.client.backend import Progress, Reading
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable, is_passing
from oars.kube.kinds import Object
from oars.places.kube.state import observe

LOOK_SECONDS = 1.0  # between looks for more from a container that has ended or waits
LONGEST_PAUSE = 10.0
LASTING = 5.0  # seconds of trouble after which people want to hear of it
FORGOTTEN = 60.0  # trouble so long after the last is another

Find = Callable[[], Awaitable[Object | None]]
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+")


def lines(client: Client, find: Find, how: Reading) -> AsyncIterator[str]:
    """Of the pod that `find` finds; none: it is over."""
    return Following(client, find, how).lines() if how.follow else _once(client, find, how)


async def _once(client: Client, find: Find, how: Reading) -> AsyncIterator[str]:
    pod = await find()
    if pod is not None:
        async for line in client.logs(**_whose(pod, how), tail=how.tail, previous=how.previous):
            yield line


def _whose(pod: Object, how: Reading) -> dict[str, Any]:
    metadata, container = pod["metadata"], how.container or observe.role(pod).value
    return {"name": metadata["name"], "namespace": metadata["namespace"], "container": container}


class Following:
    """One member's log as it comes. It ends with the member only; each line comes once."""

    def __init__(self, client: Client, find: Find, how: Reading) -> None:
        self._client = client
        self._find = find
        self._how = how
        self._tail = how.tail
        self._pod = ""
        self._newest = ""  # the stamp of what was told last of this pod
        self._aside = ""
        self._trouble = Trouble(how.told)

    async def lines(self) -> AsyncIterator[str]:
        while True:
            pause = LOOK_SECONDS
            try:
                pod = await self._find()
                if pod is None:
                    return
                async for line in self._connected(pod):
                    yield line
                self._tail = None
                self._trouble.over()
            except OarsError as error:
                if not _is_waiting(error):
                    pause = self._trouble.met(error)
            await asyncio.sleep(pause)

    async def _connected(self, pod: Object) -> AsyncIterator[str]:
        """What is new, as long as the connection lasts."""
        if pod["metadata"]["uid"] != self._pod:  # another's clock may be another
            self._tail = self._tail if not self._pod else None
            self._pod, self._newest = pod["metadata"]["uid"], ""
        told = self._newest  # not the newest of all: what goes to stdout and to stderr may overtake each other
        wanted = {"since": told} if told else {"tail": self._tail}
        async for line in self._client.logs(**_whose(pod, self._how), follow=True, timestamps=True, **wanted):
            stamp, _, text = line.partition(" ")
            if not _STAMP.match(stamp):
                if line != self._aside:  # the kubelet's own words, when it has no log to show; it says them at each try
                    yield line
                self._aside = line
            elif moment(stamp) > moment(told):
                self._newest = max(self._newest, stamp, key=moment)
                yield text


class Trouble:
    """Failures in a row: longer and longer pauses, and a word when it lasts."""

    def __init__(self, told: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._told = told
        self._clock = clock
        self.over()

    def over(self) -> None:
        self._failures = 0
        self._is_told = False
        self._began = self._last = 0.0

    def met(self, error: OarsError) -> float:
        """How long to wait before the next try. Raises what no waiting mends."""
        if not is_passing(error):
            raise error
        now = self._clock()
        if not self._failures or now - self._last > FORGOTTEN:
            self.over()
            self._began = now
        self._failures, self._last = self._failures + 1, now
        if now - self._began >= LASTING and not self._is_told:
            self._is_told = True
            self._told(_sentence(error))
        return min(LONGEST_PAUSE, LOOK_SECONDS * 2.0 ** (self._failures - 1))


def _sentence(error: OarsError) -> str:
    if isinstance(error, Unreachable):
        return "The API server does not answer; the log goes on when it does."
    return f"The log cannot be read now ({error.message.rstrip('.')}); it is tried again."


def _is_waiting(error: OarsError) -> bool:
    """Its container does not run yet: to be expected, however long it takes."""
    return isinstance(error, ApiError) and error.status == 400


def moment(stamp: str) -> str:
    """A log line's time, such that texts compare as times do: it is written without the zeros at its end."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}" if whole else ""
