"""The user's part of Dask: a connected Client, and an executor. Imports Dask when its functions are called."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for_all
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from oars.base.errors import ClusterLost, EngineMissing, EngineUnreachable
from oars.engines.sessions import AFTER_SHUTDOWN, PYTHON, check_versions, settle

if TYPE_CHECKING:
    from oars.engines.base import Access

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 5.0
PAUSE_PER_CALL, LONGEST_PAUSE = 1e-4, 1.0

Call = tuple[Future[Any], partial[Any]]


def connect(access: Access) -> Any:
    """A distributed.Client that becomes the default one, like any other."""
    return _client(access, set_as_default=True)


def disconnect(client: Any) -> None:
    with contextlib.suppress(TimeoutError):  # the scheduler hangs
        client.close(timeout=CLOSE_SECONDS)


def executor(access: Access) -> Executor:
    return DaskExecutor(partial(_client, access, set_as_default=False), access.name)


def _client(access: Access, *, set_as_default: bool) -> Any:
    try:
        import distributed
    except ImportError as error:
        hint = "Install it with `pip install 'oars[dask]'`, or use `oars run`."
        raise EngineMissing(f"This Python cannot import distributed: {error}.", hint) from error
    make: Any = distributed.Client
    security = _security(access.env)
    try:
        client = make(access.address, security=security, timeout=CONNECT_SECONDS, set_as_default=set_as_default)
        try:
            # Dask itself warns about other packages. It reports "3.11.7.final.0".
            version = client.sync(client.scheduler.versions)["packages"]["python"]
            there = ".".join(str(version).split(".")[:3])
            check_versions(access.name, {}, {PYTHON: there})
        except BaseException:
            disconnect(client)
            raise
    except (OSError, TimeoutError) as error:
        raise EngineUnreachable(
            f"The Dask scheduler of {access.name} at {access.address} does not reply: {error}.",
            f"Run `oars status {access.name}`.",
        ) from error
    return client


def _security(env: Mapping[str, str]) -> Any:
    """Set everything: the process may have inherited the settings of another cluster."""
    from distributed import security

    make: Any = security.Security
    ca = env.get(f"{TLS}CA_FILE")
    if ca is None:
        return make(require_encryption=False)
    cert, key = env[f"{TLS}CLIENT__CERT"], env[f"{TLS}CLIENT__KEY"]
    return make(require_encryption=True, tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key)


class DaskExecutor(Executor):
    """distributed's own `Client.get_executor()` sends each call and fetches each result separately, which takes about
    twice as long. It also has no `cancel_futures`, passes keyword arguments such as `key` to Dask instead of the
    function, does not report a lost scheduler as ClusterLost, and cannot be used after that."""

    def __init__(self, connect: Callable[[], Any], cluster: str) -> None:
        self._connect: Callable[[], Connection] = lambda: Connection(connect(), cluster)
        self._lock = threading.Lock()
        self._connection = self._connect()
        self._closers: list[threading.Thread] = []
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._submit([partial(fn, *args, **kwargs)])[0]

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As Executor.map. Sends all calls to the scheduler at once and ignores chunksize."""
        deadline = None if timeout is None else monotonic() + timeout
        futures = self._submit([partial(fn, *arguments) for arguments in zip(*iterables, strict=False)])
        return _in_order(futures[::-1], deadline)

    def _submit(self, calls: Sequence[partial[Any]]) -> list[Future[Any]]:
        with self._lock:
            if self._is_shut:
                raise RuntimeError(AFTER_SHUTDOWN)
            if self._connection.is_lost:
                # Dask's own client reconnects, but over TLS it may fail to, permanently (2026.8).
                old, self._connection = self._connection, self._connect()
                self._closers.append(old.close_when_done())
            return self._connection.submit(calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            if not self._is_shut:
                self._closers.append(self._connection.close_when_done())
            self._is_shut = True
        if cancel_futures:
            self._connection.cancel_all()
        if wait:
            for closer in self._closers:
                closer.join()


class Connection:
    """A client and its calls. Sends calls and fetches results in batches of all that have accumulated since the last
    one. Dask's futures are only used in the client's event loop."""

    def __init__(self, client: Any, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._scheduler_lost = False
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._queue: list[Call] = []
        self._finished: list[tuple[Future[Any], Any]] = []  # computed, not fetched: with Dask's future
        self._fetching: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        return self._scheduler_lost or self._client.status in ("closing", "closed")

    def submit(self, calls: Sequence[partial[Any]]) -> list[Future[Any]]:
        futures: list[Future[Any]] = [Future() for _ in calls]
        for future in futures:
            future.add_done_callback(self._forget)
        with self._lock:
            is_first = not self._queue
            self._open.update(futures)
            self._queue.extend(zip(futures, calls, strict=True))
        if is_first:
            self._client.loop.add_callback(self._send_queue)
        return futures

    def _forget(self, future: Future[Any]) -> None:
        """Called once for each future, when it is done or cancelled."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes wait() and as_completed()
        with self._lock:
            self._open.discard(future)

    def _open_futures(self) -> list[Future[Any]]:
        with self._lock:
            return list(self._open)

    def cancel_all(self) -> None:
        for future in self._open_futures():
            future.cancel()

    def close_when_done(self) -> threading.Thread:
        def close() -> None:
            wait_for_all(self._open_futures())
            disconnect(self._client)

        closer = threading.Thread(target=close, daemon=True)
        closer.start()
        return closer

    # The rest runs in the client's event loop.

    def _send_queue(self) -> None:
        with self._lock:
            queue, self._queue = self._queue, []
        groups: dict[object, list[Call]] = {}  # calls that can be sent as one map of a function
        for future, call in queue:
            if not future.cancelled():
                kind = (id(call.func), len(call.args), bool(call.keywords))
                groups.setdefault(kind, []).append((future, call))
        for calls in groups.values():
            self._send(calls)

    def _send(self, calls: Sequence[Call]) -> None:
        """Send one batch; if an argument cannot be pickled, send each call separately."""
        from dask.utils import funcname

        first = calls[0][1]
        function: Callable[..., Any] = first.func
        columns = [list(column) for column in zip(*(call.args for _, call in calls), strict=True)]
        if first.keywords or not columns:
            function, columns = operator.call, [[call for _, call in calls]]
        try:
            # The key begins the tasks' names on Dask's dashboard.
            remote = self._client.map(function, *columns, key=funcname(first), pure=False)
        except Exception as error:  # noqa: BLE001 (any pickling error belongs to the future)
            if len(calls) == 1:
                settle(calls[0][0], error=error)
                return
            for call in calls:
                self._send([call])
            return
        for (future, _), result in zip(calls, remote, strict=True):
            asyncio.ensure_future(self._await(future, result))  # noqa: RUF006 (referenced by what it awaits)
            future.add_done_callback(partial(_release, result))

    async def _await(self, future: Future[Any], remote: Any) -> None:
        while remote.status in ("pending", "lost"):  # lost: its worker died, and Dask computes it again
            await remote._state.wait()
        if remote.status != "finished":
            self._fail(future, remote, None)
            return
        self._finished.append((future, remote))
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._fetch_all())

    async def _fetch_all(self) -> None:
        """Fetch finished results. Fetching costs the workers more than computing a small result, so the more calls are
        open, the more results are fetched together."""
        try:
            while self._finished:
                await asyncio.sleep(min(LONGEST_PAUSE, len(self._open) * PAUSE_PER_CALL))
                finished, self._finished = self._finished, []
                await self._fetch([(future, remote) for future, remote in finished if not future.cancelled()])
        finally:
            self._fetching = None

    async def _fetch(self, finished: Sequence[tuple[Future[Any], Any]]) -> None:
        try:
            values = await self._client.gather([remote for _, remote in finished], asynchronous=True)
        except Exception as error:  # noqa: BLE001 (fetch each one to find out which failed)
            if len(finished) > 1:
                await asyncio.gather(*(self._fetch([each]) for each in finished))
                return
            for future, remote in finished:
                self._fail(future, remote, error)
            return
        for (future, _), value in zip(finished, values, strict=True):
            settle(future, value)

    def _fail(self, future: Future[Any], remote: Any, error: Exception | None) -> None:
        if future.cancelled():
            return
        if remote.status == "error":
            error = remote._state.exception.with_traceback(remote._state.traceback)
        elif error is None or isinstance(error, OSError | CancelledError):
            self._scheduler_lost = True
            error = ClusterLost(
                f"The connection to the Dask scheduler of {self._cluster} was lost, and its running tasks with it.",
                f"Run `oars why {self._cluster}`, and submit the calls again.",
            )
        settle(future, error=error)


def _in_order(last_first: list[Future[Any]], deadline: float | None) -> Iterator[Any]:
    """Yield results in the order of the calls, dropping each; cancel the rest if the caller stops early."""
    try:
        while last_first:
            yield last_first.pop().result(None if deadline is None else deadline - monotonic())
    finally:
        for future in last_first:
            future.cancel()


def _release(remote: Any, future: Future[Any]) -> None:
    """Let Dask delete the result, or drop the call if it was cancelled: nothing else needs it."""
    remote.release()
