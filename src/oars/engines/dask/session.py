"""The user's part of Dask: a connected Client, and an executor. Imports Dask when its functions are called."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from concurrent.futures import wait as wait_for_all
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from oars.base.errors import ClusterLost, EngineMissing, EngineUnreachable
from oars.engines import versions
from oars.engines.versions import PYTHON

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
            _check_python(access, client)
        except BaseException:
            disconnect(client)
            raise
    except (OSError, TimeoutError) as error:
        raise EngineUnreachable(
            f"The Dask scheduler of {access.name} at {access.address} does not reply: {error}.",
            f"Run `oars status {access.name}`.",
        ) from error
    return client


def _check_python(access: Access, client: Any) -> None:
    """Dask itself warns about other packages. It reports "3.11.7.final.0"."""
    version = client.sync(client.scheduler.versions)["packages"]["python"]
    there = ".".join(str(version).split(".")[:3])
    versions.check(access.name, {PYTHON: versions.python()}, {PYTHON: there})


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
    """Sends calls and fetches results in batches of all that have accumulated since the last one.

    Dask's futures are only used in the client's event loop. The lock guards what callers use too.
    """

    def __init__(self, connect: Callable[[], Any], cluster: str) -> None:
        self._connect = connect
        self._client = connect()
        self._is_stale = False  # its scheduler is gone
        self._cluster = cluster
        self._lock = threading.Lock()
        self._open: dict[Future[Any], Any] = {}  # → Dask's future, once sent
        self._queue: list[Call] = []
        self._unwanted: list[Any] = []  # Dask's futures of cancelled calls
        self._finished: list[Future[Any]] = []  # computed, not fetched
        self._fetching = False
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._check_open()
        future: Future[Any] = Future()
        self._follow([future])
        with self._lock:
            self._queue.append((future, partial(fn, *args, **kwargs)))
            first = len(self._queue) == 1
        if first:
            self._in_loop(self._send_queue)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As Executor.map. Sends all calls to the scheduler at once and ignores chunksize."""
        self._check_open()
        deadline = None if timeout is None else monotonic() + timeout
        calls = list(zip(*iterables, strict=False))
        columns = [list(column) for column in zip(*calls, strict=True)]
        remote = self._client.map(fn, *columns, pure=False) if calls else []
        futures: list[Future[Any]] = [Future() for _ in calls]
        self._follow(futures)
        self._in_loop(self._sent, futures, remote)
        return _in_order(futures[::-1], deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            wait_for_all(left)
        if first:
            closer = threading.Thread(target=self._close_after, args=(left,), daemon=True)
            closer.start()
            if wait:
                closer.join()

    # Sending calls.

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._is_stale or self._client.status in ("closing", "closed"):
            self._renew()

    def _renew(self) -> None:
        """Replace the client. Dask's own reconnects, but over TLS it may fail to, permanently (2026.8)."""
        fresh = self._connect()
        old, self._client, self._is_stale = self._client, fresh, False
        threading.Thread(target=disconnect, args=(old,), daemon=True).start()

    def _follow(self, futures: list[Future[Any]]) -> None:
        with self._lock:
            self._open.update(dict.fromkeys(futures))
        for future in futures:
            future.add_done_callback(self._forget)

    def _in_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._client.loop.add_callback(function, *arguments)

    def _send_queue(self) -> None:
        with self._lock:
            queue, self._queue = self._queue, []
        for calls in _grouped([call for call in queue if not call[0].cancelled()]):
            self._send(calls)

    def _send(self, calls: Sequence[Call]) -> None:
        """Send one batch; if an argument cannot be pickled, send each call separately."""
        function, columns = _columns([call for _, call in calls])
        try:
            remote = self._client.map(function, *columns, key=_keys(calls), pure=False)
        except Exception as error:  # noqa: BLE001 (any pickling error belongs to the future)
            if len(calls) == 1:
                _settle(calls[0][0], error=error)
                return
            for call in calls:
                self._send([call])
            return
        self._sent([future for future, _ in calls], remote)

    # Fetching results.

    def _sent(self, futures: list[Future[Any]], remote: list[Any]) -> None:
        with self._lock:
            for future, result in zip(futures, remote, strict=True):
                if future in self._open:
                    self._open[future] = result
                else:
                    self._unwanted.append(result)
        self._cancel_unwanted()
        for future, result in zip(futures, remote, strict=True):
            asyncio.ensure_future(self._await(future, result))  # noqa: RUF006 (referenced by what it awaits)

    async def _await(self, future: Future[Any], remote: Any) -> None:
        while remote.status in ("pending", "lost"):  # lost: its worker died, and Dask computes it again
            await remote._state.wait()
        if remote.status != "finished":
            self._fail(future, remote, self._lost())
            return
        self._finished.append(future)
        if not self._fetching:
            self._fetching = True
            asyncio.ensure_future(self._fetch_all())  # noqa: RUF006

    async def _fetch_all(self) -> None:
        """Fetch finished results. Fetching costs the workers more than computing a small result, so the more calls are
        open, the more results are fetched together."""
        while self._finished:
            await asyncio.sleep(min(LONGEST_PAUSE, len(self._open) * PAUSE_PER_CALL))
            finished, self._finished = self._finished, []
            wanted = {future: self._open[future] for future in finished if future in self._open}
            await self._fetch(wanted)
        self._fetching = False

    async def _fetch(self, wanted: Mapping[Future[Any], Any]) -> None:
        try:
            values = await self._client.gather(list(wanted.values()), asynchronous=True)
        except Exception as error:  # noqa: BLE001 (fetch each one to find out which failed)
            if len(wanted) > 1:
                await asyncio.gather(*(self._fetch({future: remote}) for future, remote in wanted.items()))
                return
            lost = isinstance(error, OSError | CancelledError)
            for future, remote in wanted.items():
                self._fail(future, remote, self._lost() if lost else error)
            return
        for future, value in zip(wanted, values, strict=True):
            _settle(future, value)

    def _fail(self, future: Future[Any], remote: Any, otherwise: Exception) -> None:
        if remote.status == "error":
            _settle(future, error=remote._state.exception.with_traceback(remote._state.traceback))
        else:
            _settle(future, error=otherwise)

    def _lost(self) -> ClusterLost:
        self._is_stale = True
        return ClusterLost(
            f"The connection to the Dask scheduler of {self._cluster} was lost, and its running tasks with it.",
            f"Run `oars why {self._cluster}`, and submit the calls again.",
        )

    # Ending calls.

    def _forget(self, future: Future[Any]) -> None:
        """Called once for each future, when it is done or cancelled."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes wait() and as_completed()
        with self._lock:
            remote = self._open.pop(future, None)
            if remote is None or not future.cancelled():
                return
            self._unwanted.append(remote)
            first = len(self._unwanted) == 1
        if first:
            self._in_loop(self._cancel_unwanted)

    def _cancel_unwanted(self) -> None:
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
        if unwanted:
            asyncio.ensure_future(self._client.cancel(unwanted, asynchronous=True))  # noqa: RUF006

    def _close_after(self, futures: Sequence[Future[Any]]) -> None:
        wait_for_all(futures)
        disconnect(self._client)


def _settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def _in_order(last_first: list[Future[Any]], deadline: float | None) -> Iterator[Any]:
    """Yield results in the order of the calls, dropping each; cancel the rest if the caller stops early."""
    try:
        while last_first:
            yield last_first.pop().result(None if deadline is None else deadline - monotonic())
    finally:
        for future in last_first:
            future.cancel()


def _grouped(calls: Iterable[Call]) -> Iterable[Sequence[Call]]:
    """Group calls that can be sent as one map of a function; all others form one group."""
    groups: dict[object, list[Call]] = {}
    for call in calls:
        plain = call[1].args and not call[1].keywords
        groups.setdefault((id(call[1].func), len(call[1].args)) if plain else None, []).append(call)
    return groups.values()


def _columns(calls: Sequence[partial[Any]]) -> tuple[Callable[..., Any], list[Any]]:
    """A group of calls as a function and the lists of its arguments."""
    if all(call.args and not call.keywords for call in calls):
        return calls[0].func, [list(column) for column in zip(*(call.args for call in calls), strict=True)]
    return operator.call, [list(calls)]


def _keys(calls: Sequence[Call]) -> list[str]:
    """Unique task names that start with the function's name, for Dask's dashboard."""
    from dask.utils import funcname

    batch = uuid4().hex
    return [f"{funcname(call)}-{batch}-{number}" for number, (_, call) in enumerate(calls)]
