"""concurrent.futures on Ray.

Every call is a task of one remote function, which is sent once; the user's function is an argument, pickled once. Ray
reports results on its own thread, which must not block, so another thread sets the results of futures.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from oars.base.errors import ClusterLost
from oars.engines.ray import calls
from oars.engines.ray.link import Link
from oars.engines.sessions import AFTER_SHUTDOWN, RemoteTraceback, settle

CACHE_SIZE = 256  # of pickled functions
INLINE_LIMIT = 64 * 1024  # bytes; larger functions are sent through the object store
CHUNKS_PER_CPU = 16  # of one map: few enough to be fast, enough to keep all processors busy until the end
MAX_CHUNK = 100
LOSS_SECONDS = 0.5  # Ray may report a lost node this long before the Link notices a lost head


class RayFuture(Future[Any]):
    """Pending until it is done: Ray does not report when a task starts."""

    def __init__(self, on_cancel: Callable[[RayFuture], None]) -> None:
        super().__init__()
        self.ref: Any = None
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        """Also stops a task that is running, as far as Ray can."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._on_cancel(self)
        return True


class RayExecutor(Executor):
    """submit, map and shutdown on the cluster of a Link. Calls `release` once, after the last future."""

    def __init__(self, link: Link, release: Callable[[], None]) -> None:
        self._link = link
        self._release = release
        self._remote = RemoteCalls(link.ray)
        self._lock = threading.Lock()
        self._pending: set[RayFuture] = set()
        self._closed = False
        self._finished = threading.Event()
        self._results: queue.SimpleQueue[tuple[RayFuture, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="oars-ray-results", daemon=True)
        self._thread.start()
        link.on_loss.add(self._fail)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = RayFuture(self._cancel)
        with self._lock:
            if self._closed:
                raise RuntimeError(AFTER_SHUTDOWN)
            if self._link.lost.is_set():
                raise self._link.error()
            self._pending.add(future)
        try:
            future.ref = self._remote.start(fn, args, kwargs)
            future.ref._on_completed(lambda result: self._results.put((future, result)))
        except BaseException:
            self._forget(future)
            raise
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 0
    ) -> Iterator[Any]:
        """As in concurrent.futures. Many short calls are sent together; chunksize=1 sends each by itself."""
        items = list(zip(*iterables, strict=False))
        processors = max(1.0, self._link.ray.cluster_resources().get("CPU", 1.0))
        size = chunksize or max(1, min(MAX_CHUNK, int(len(items) / (CHUNKS_PER_CPU * processors))))
        if size == 1:
            return super().map(fn, *zip(*items, strict=True), timeout=timeout)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        results = super().map(calls.run_chunk, itertools.repeat(fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
            pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if first:
            self._forget(None)
        if wait and threading.current_thread() is not self._thread:
            self._finished.wait()

    # results

    def _deliver(self) -> None:
        for future, result in iter(self._results.get, None):
            error = self._error(result)
            settle(future, result, error)
            self._forget(future)
            del future, result, error  # do not keep them alive while waiting for the next one
        self._link.on_loss.discard(self._fail)
        self._release()
        self._finished.set()

    def _error(self, result: Any) -> BaseException | None:
        exceptions = self._link.ray.exceptions
        if not isinstance(result, exceptions.RayError):
            return None
        if isinstance(result, exceptions.RayTaskError):
            return _original(result, exceptions.RayTaskError)
        return self._link.error() if self._link.lost.wait(LOSS_SECONDS) else result

    def _forget(self, future: RayFuture | None) -> None:
        """Remove a pending future. After shutdown the last one ends the delivering thread."""
        with self._lock:
            is_known = future is None or future in self._pending
            self._pending.discard(future)
            if is_known and self._closed and not self._pending:
                self._results.put(None)

    def _cancel(self, future: RayFuture) -> None:
        if future.ref is not None and self._link.usable:
            self._link.ray.cancel(future.ref)
        self._forget(future)

    def _fail(self, error: ClusterLost) -> None:
        with self._lock:
            pending = list(self._pending)
        for future in pending:
            settle(future, error=error)
            self._forget(future)


class RemoteCalls:
    """Starts Ray tasks for plain functions."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        ray.cloudpickle.register_pickle_by_value(calls)
        self._run = ray.remote(calls.run)
        self._cache: dict[Callable[..., Any], tuple[Any, Any]] = {}

    def start(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        try:
            task, pickled = self._cache[function]
        except KeyError:
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            task, pickled = self._cache[function] = self._prepare(function)
        except TypeError:  # not hashable
            task, pickled = self._prepare(function)
        return task.remote(pickled, *arguments, **options)

    def _prepare(self, function: Callable[..., Any]) -> tuple[Any, Any]:
        pickled = self._ray.cloudpickle.dumps(function)
        name = getattr(function, "__name__", type(function).__name__)
        return self._run.options(name=name), pickled if len(pickled) < INLINE_LIMIT else self._ray.put(pickled)


def _original(result: Any, wrapper: type[BaseException]) -> BaseException:
    """The exception that the function raised, with the worker's traceback as its cause."""
    cause = result.cause
    while isinstance(cause, wrapper):
        cause = cause.cause  # type: ignore[attr-defined]
    if not isinstance(cause, BaseException):
        return result.as_instanceof_cause()  # type: ignore[no-any-return]
    cause.__cause__ = RemoteTraceback(result.traceback_str)
    return cause
