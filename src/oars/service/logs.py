"""Read or follow the logs of a cluster's members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from oars.base.errors import Denied, NotFound, OarsError, UsageError
from oars.client.backend import ClusterHandle, LogOptions, Progress, SupportsContainers, check_container, check_member

POLL_SECONDS = 1.0  # between looks for new members
REPEAT_SECONDS = 60.0  # before the same message is reported again
MAX_QUEUED_LINES = 1000  # a slow reader slows down the following


@dataclass(frozen=True)
class LogRequest:
    """Which lines to read: of one member or all, of another container than the main one, only the last lines of each,
    those since a time (seconds since the epoch), of the container before its last restart."""

    member: str | None = None
    container: str | None = None
    follow: bool = False
    tail: int | None = None
    since: float | None = None
    previous: bool = False


@dataclass(frozen=True)
class LogLine:
    member: str
    line: str


Queue = asyncio.Queue[LogLine | Exception | None]  # None: the cluster is gone


def unsupported(handle: ClusterHandle, reason: str, hint: str) -> UsageError:
    """The error for a capability that the cluster lacks."""
    return UsageError(f"Cluster {handle.name!r} runs {handle.runs_as}: {reason}.", hint)


async def members(handle: ClusterHandle, request: LogRequest) -> Sequence[str]:
    """The members that the request is for. Raises NotFound if it names a member or container that does not exist."""
    listed = await _containers(handle)
    if request.member is not None:
        check_member(handle.name, request.member, list(listed))
    if request.container is not None:
        if not isinstance(handle, SupportsContainers):
            raise unsupported(handle, "its members have no containers", "Omit the container.")
        searched = [listed[request.member]] if request.member else listed.values()
        check_container(request.container, [container for each in searched for container in each])
    return _matching(listed, request)


async def _containers(handle: ClusterHandle) -> Mapping[str, Sequence[str]]:
    if isinstance(handle, SupportsContainers):
        return await handle.containers()
    return dict.fromkeys(await handle.members(), ())


def _matching(listed: Mapping[str, Sequence[str]], request: LogRequest) -> list[str]:
    return [
        member for member, containers in listed.items()
        if request.member in (None, member) and (request.container is None or request.container in containers)
    ]  # fmt: skip


async def read(handle: ClusterHandle, request: LogRequest, on_trouble: Progress) -> AsyncIterator[LogLine]:
    chosen = await members(handle, request)
    if request.follow:
        async for line in follow(handle, request, on_trouble):
            yield line
        return
    container = request.container or ""
    options = LogOptions(tail=request.tail, since=request.since, previous=request.previous, container=container)
    for member in chosen:
        try:
            async for text in handle.logs(member, options):
                yield LogLine(member, text)
        except OarsError as error:
            if request.member is not None or isinstance(error, Denied):
                raise
            on_trouble(f"{member}: {error.message}")  # such as a container that waits; the others are still shown


async def follow(handle: ClusterHandle, request: LogRequest, on_trouble: Progress) -> AsyncIterator[LogLine]:
    """Lines of all matching members as they are written, including members that start or restart later, until the
    cluster is gone."""
    queue: Queue = asyncio.Queue(MAX_QUEUED_LINES)
    following = asyncio.create_task(_follow_all(handle, request, Deduplicated(on_trouble), queue))
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _follow_all(handle: ClusterHandle, request: LogRequest, on_trouble: Progress, queue: Queue) -> None:
    container, since = request.container or "", request.since
    options = LogOptions(follow=True, tail=request.tail, since=since, container=container, on_trouble=on_trouble)
    tasks: dict[str, asyncio.Task[None]] = {}
    end: Exception | None = None

    async def follow_member(member: str) -> None:
        async for text in handle.logs(member, options):
            await queue.put(LogLine(member, text))

    try:
        while (current := await _current_members(handle, request)) is not None:
            for member in current:
                if member not in tasks:
                    tasks[member] = asyncio.create_task(follow_member(member))
            await asyncio.sleep(POLL_SECONDS)
            for member in [member for member, task in tasks.items() if task.done()]:
                tasks.pop(member).result()
    except Exception as raised:  # noqa: BLE001 (passed on to the reader)
        end = raised
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    await queue.put(end)


async def _current_members(handle: ClusterHandle, request: LogRequest) -> Sequence[str] | None:
    """The members to follow now; None: the cluster is gone."""
    from oars.kube.errors import is_transient

    try:
        listed = await _containers(handle)
        if not listed and not await handle.exists():
            return None
    except NotFound:
        return None
    except OarsError as error:
        if not is_transient(error):
            raise
        return ()  # the followed members retry by themselves
    return _matching(listed, request)


class Deduplicated:
    """Passes a message on unless the same one was passed on recently: several members meet the same trouble at once."""

    def __init__(self, target: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._last: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now - self._last.get(text, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._last[text] = now
            self._target(text)
