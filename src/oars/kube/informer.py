"""A local cache of all objects of a kind, kept current by list and watch."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_denied, is_expired
from oars.kube.kinds import Kind, Object

Key = tuple[str, str]  # namespace ("" for cluster-scoped kinds), name
OnChange = Callable[[Key, Object | None, Object | None], None]

FIRST_DELAY = 0.2
MAX_DELAY = 30.0
_MIN_WATCH_SECONDS = 1.0  # a watch that ends sooner counts as a failure

_log = get_logger(__name__)


class Informer:
    """Caches the objects of a kind in `objects`.

    `on_change(key, old, new)` is called after each change; `old` is None for a new object, `new` for a deleted one.
    `transform` reduces an object before it is cached. `error` is the last failure, or None after a success."""

    def __init__(  # noqa: PLR0913 (the selectors belong together)
        self,
        client: Client,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        transform: Callable[[Object], Object] | None = None,
        on_change: OnChange = lambda key, old, new: None,
    ) -> None:
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.error: Exception | None = None
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._transform = transform or (lambda obj: obj)
        self._on_change = on_change
        self._resource_version = ""  # where the next watch starts; empty: list first
        self._failures = 0
        self._progress = asyncio.Event()  # set after each success or failure

    async def run(self) -> None:
        """List and watch until cancelled. Raises only errors that do not come from the API server."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except (OarsError, TimeoutError) as error:
                self._record_failure(error)
                await asyncio.sleep(self._backoff())

    async def wait_synced(self) -> None:
        """Wait for the first complete list. Raises the error if the API server denies access."""
        while not self.synced.is_set():
            if self.error is not None and is_denied(self.error):
                raise self.error
            self._progress.clear()
            await self._progress.wait()

    async def _list(self) -> None:
        listing = await self._client.list(self._kind, self._namespace, labels=self._labels, fields=self._fields)
        listed = {key_of(item): item for item in listing.items}
        for key in [key for key in self.objects if key not in listed]:  # deleted since the watch broke
            self._remove(key)
        for key, item in listed.items():
            self._store(key, item)
        self._resource_version = listing.resource_version
        self._failures, self.error = 0, None
        self.synced.set()
        self._progress.set()

    async def _watch(self) -> None:
        started = time.monotonic()
        events = self._client.watch(
            self._kind,
            self._namespace,
            resource_version=self._resource_version,
            labels=self._labels,
            fields=self._fields,
        )
        async for event, obj in events:
            if event == "DELETED":
                self._remove(key_of(obj))
            elif event != "BOOKMARK":
                self._store(key_of(obj), obj)
            # Last, so that an event whose `on_change` raises is not skipped.
            self._resource_version = obj["metadata"]["resourceVersion"]
            self._failures, self.error = 0, None
        if time.monotonic() - started < _MIN_WATCH_SECONDS:
            # The server ended the watch normally but at once. Do not reconnect in a busy loop.
            self._failures += 1
            await asyncio.sleep(self._backoff())

    def _store(self, key: Key, obj: Object) -> None:
        old = self.objects.get(key)
        # If `transform` removed the resourceVersion, every event counts as a change.
        if old and old.get("metadata", {}).get("resourceVersion") == obj["metadata"].get("resourceVersion", ""):
            return
        self.objects[key] = new = self._transform(obj)
        self._on_change(key, old, new)

    def _remove(self, key: Key) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._on_change(key, old, None)

    def _record_failure(self, error: Exception) -> None:
        self._failures += 1
        self.error = error
        self._progress.set()
        # The server reports an unusable resourceVersion in several ways. A new list recovers from all of them.
        is_rejected = isinstance(error, ApiError) and error.status != 429 and self._failures > 2
        if is_expired(error) or is_rejected:
            self._resource_version = ""
        fields = {"kind": self._kind.plural, "failures": self._failures, "error": str(error).split("\n")[0]}
        _log.info(pairs("list or watch failed", **fields))

    def _backoff(self) -> float:
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 20))
        return delay * random.uniform(0.5, 1.0)


async def wait_all_synced(informers: Sequence[Informer], seconds: float) -> None:
    """Wait for the first list of every informer.

    Raises at once if the API server denies access, and after `seconds` for any other reason."""
    try:
        async with asyncio.timeout(seconds):
            for informer in informers:
                await informer.wait_synced()
    except TimeoutError:
        for informer in informers:
            if not informer.synced.is_set():
                message = f"The API server did not list {informer._kind.plural} within {seconds:.0f} s"
                if isinstance(informer.error, OarsError):
                    error = informer.error
                    raise OarsError(f"{message}: {error.message.rstrip('.')}.", error.hint) from error
                hint = "Try again when the API server is reachable."
                raise OarsError(f"{message}.", hint) from informer.error


def start_all(informers: Sequence[Informer], on_end: Callable[[], None]) -> list[asyncio.Task[None]]:
    """Run each informer in a task. An informer ends only by an unexpected error: then `on_end` is called."""
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    for task in tasks:
        task.add_done_callback(lambda _: on_end())
    return tasks


def raise_failure(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise the error of an informer that ended. Its cache is out of date and must not be used."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def stop_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel the tasks of informers and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def key_of(obj: Object) -> Key:
    """Return the cache key of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
