"""A copy of all objects of a kind, kept current: list, watch, and begin anew when either breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError, is_denied, is_expired
from oars.kube.kinds import Kind, Object

Key = tuple[str, str]  # namespace ("" for kinds without), name
Changed = Callable[[Key, Object | None, Object | None], None]

FIRST_WAIT = 0.2
LONGEST_WAIT = 30.0
_STEADY = 1.0  # a watch that held this long was no failure

_log = get_logger(__name__)


class Informer:
    """`objects` is what the API server last told us; `changed(key, old, new)` is called after each change of it, with
    None for old when the object is new and for new when it is gone. `keep` trims an object before it is kept.
    `error` is what went wrong last, and None as soon as something goes right."""

    def __init__(  # noqa: PLR0913 (the selectors belong together)
        self,
        client: Client,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], Object] | None = None,
        changed: Changed = lambda key, old, new: None,
    ) -> None:
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.error: Exception | None = None
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._keep = keep or (lambda obj: obj)
        self._changed = changed
        self._version = ""  # from which a watch goes on; empty: list first
        self._failures = 0
        self._heard = asyncio.Event()  # of the server, be it good or bad

    async def run(self) -> None:
        """For ever. Ends only by being cancelled, or by an error that is not the API server's."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (OarsError, TimeoutError) as error:
                self._failed(error)
                await asyncio.sleep(self._wait())

    async def listed(self) -> None:
        """Until everything has been listed once. Raises the error that no waiting mends: a right that we lack."""
        while not self.synced.is_set():
            if self.error is not None and is_denied(self.error):
                raise self.error
            self._heard.clear()
            await self._heard.wait()

    def late(self, seconds: float) -> OarsError:
        """For whoever has waited so long for the first list."""
        message = f"The API server did not list {self._kind.plural} within {seconds:.0f} s"
        if isinstance(self.error, OarsError):
            return OarsError(f"{message}: {self.error.message.rstrip('.')}.", self.error.hint)
        return OarsError(f"{message}.", "Try again when it answers.")

    async def _list(self) -> None:
        listing = await self._client.list(self._kind, self._namespace, labels=self._labels, fields=self._fields)
        self._replace(listing)
        self._version = listing.resource_version
        self._succeeded()
        self.synced.set()
        self._heard.set()

    def _replace(self, listing: Listing) -> None:
        """Take over a list; what is not in it went away while nobody looked."""
        listed = {key_of(item): item for item in listing.items}
        for key in [key for key in self.objects if key not in listed]:
            self._drop(key)
        for key, item in listed.items():
            self._put(key, item)

    async def _watch(self) -> None:
        started = time.monotonic()
        events = self._client.watch(
            self._kind, self._namespace, resource_version=self._version, labels=self._labels, fields=self._fields
        )
        async for what, obj in events:
            self._take(what, obj)
            self._succeeded()
        if time.monotonic() - started < _STEADY:
            # It ended in good order, but at once: do not ask again and again without a breath.
            self._failures += 1
            await asyncio.sleep(self._wait())

    def _take(self, what: str, obj: Object) -> None:
        if what == "DELETED":
            self._drop(key_of(obj))
        elif what != "BOOKMARK":
            self._put(key_of(obj), obj)
        # Only now: whatever `changed` raises, the event would be seen again.
        self._version = obj["metadata"]["resourceVersion"]

    def _put(self, key: Key, obj: Object) -> None:
        old = self.objects.get(key)
        if old is not None and _version(old) == _version(obj):
            return
        self.objects[key] = new = self._keep(obj)
        self._changed(key, old, new)

    def _drop(self, key: Key) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._changed(key, old, None)

    def _succeeded(self) -> None:
        self._failures, self.error = 0, None

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.error = error
        self._heard.set()
        if is_expired(error):
            self._version = ""
        elif isinstance(error, ApiError) and error.status != 429 and self._failures > 2:
            self._version = ""  # a version the server does not like, in whatever words: a list mends all
        _log.info(
            pairs("watch broke", kind=self._kind.plural, failures=self._failures, error=str(error).split("\n")[0])
        )

    def _wait(self) -> float:
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._failures - 1, 20))
        return longest * random.uniform(0.5, 1.0)


async def await_synced(informers: Sequence[Informer], seconds: float) -> None:
    """Until each has listed everything once. A right that we lack is told at once, anything else after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            for informer in informers:
                await informer.listed()
    except TimeoutError:
        for informer in informers:
            if not informer.synced.is_set():
                raise informer.late(seconds) from informer.error


def start(informers: Sequence[Informer], ended: Callable[[], None]) -> list[asyncio.Task[None]]:
    """Run them side by side, each in a task. `ended` hears when one ends, which is never in good order: see `check`."""
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    for task in tasks:
        task.add_done_callback(lambda _: ended())
    return tasks


def check(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raises what ended an informer, which is a mistake of ours: what it last saw would be taken for the truth."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def key_of(obj: Object) -> Key:
    """Where an object is kept."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _version(obj: Object) -> str | None:
    """None when `keep` took it away: then every word of the server counts as a change."""
    version: str | None = obj.get("metadata", {}).get("resourceVersion")
    return version
