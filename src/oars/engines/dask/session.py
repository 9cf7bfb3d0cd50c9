"""The user's side of Dask: a connected Client, and concurrent.futures on the cluster. Imports distributed when called."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, InvalidStateError, wait
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from oars.base.errors import ClusterLost, EngineUnreachable

if TYPE_CHECKING:
    from distributed import Client

    from oars.engines.base import Access

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 5.0
PAUSE_PER_CALL, LONGEST_PAUSE = 25e-6, 0.25


def connect(access: Access) -> Client:
    """A distributed.Client, and the default one from now on, as any that is made by hand."""
    return _client(access, set_as_default=True)


def disconnect(client: Client) -> None:
    client.close(timeout=CLOSE_SECONDS)


def executor(access: Access) -> Executor:
    return DaskExecutor(_client(access, set_as_default=False), access.name)


def _client(access: Access, *, set_as_default: bool) -> Client:
    from distributed import Client

    try:
        return Client(
            access.address, security=_security(access.env), timeout=CONNECT_SECONDS, set_as_default=set_as_default
        )
    except (OSError, TimeoutError) as error:
        raise EngineUnreachable(
            f"The Dask scheduler of {access.name} at {access.address} does not answer: {error}.",
            f"See what it does: oars status {access.name}.",
        ) from error


def _security(env: Mapping[str, str]) -> Any:
    from distributed.security import Security

    ca = env.get(f"{TLS}CA_FILE")
    if ca is None:
        return Security(require_encryption=False)
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        tls_client_cert=env[f"{TLS}CLIENT__CERT"],
        tls_client_key=env[f"{TLS}CLIENT__KEY"],
    )


class DaskExecutor(Executor):
    """Calls are sent in batches, and results are fetched in batches: whatever has come together since the last one.

    Everything that touches the client runs in its event loop; the lock guards what callers touch.
    """

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._lock = threading.Lock()
        self._open: dict[Future[Any], Any] = {}  # → the future of Dask, once sent
        self._queue: list[tuple[Future[Any], Callable[..., Any]]] = []
        self._finished: list[Future[Any]] = []  # computed, not fetched
        self._fetching = False
        self._closed = False

    # What callers see.

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = partial(fn, *args, **kwargs)
        future = self._new_futures(1)[0]
        with self._lock:
            self._queue.append((future, call))
            first = len(self._queue) == 1
        if first:
            self._client.loop.add_callback(self._send_queue)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As Executor.map. All calls go to the scheduler at once; chunksize has no meaning here."""
        deadline = None if timeout is None else monotonic() + timeout
        calls = list(zip(*iterables, strict=False))
        futures = self._new_futures(len(calls))
        if calls:
            columns = [list(column) for column in zip(*calls, strict=True)]
            remote = self._client.map(fn, *columns, pure=False)
            self._client.loop.add_callback(self._follow, dict(zip(futures, remote, strict=True)))
        return _in_order(futures, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            _wait(left)
        with self._lock:
            idle = not self._open
        if idle:
            self._close_client()

    # Calls out.

    def _new_futures(self, count: int) -> list[Future[Any]]:
        if self._client.status in ("closing", "closed") and not self._closed:
            raise self._lost()
        futures: list[Future[Any]] = [Future() for _ in range(count)]
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open.update(dict.fromkeys(futures))
        for future in futures:
            future.add_done_callback(self._forget)
        return futures

    def _send_queue(self) -> None:
        with self._lock:
            queue, self._queue = self._queue, []
        calls = [(future, call) for future, call in queue if not future.cancelled()]
        if calls:
            self._send(calls)

    def _send(self, calls: Sequence[tuple[Future[Any], Callable[..., Any]]]) -> None:
        """As one batch; if one of them cannot be sent (a function that cannot be pickled), each by itself."""
        batch = uuid4().hex
        keys = [f"{_name(call)}-{batch}-{number}" for number, (_, call) in enumerate(calls)]
        try:
            remote = self._client.map(operator.call, [call for _, call in calls], key=keys, pure=False)
        except Exception as error:  # noqa: BLE001 (whatever pickling raises belongs to the caller's future)
            if len(calls) == 1:
                _settle(calls[0][0], error=error)
                return
            for call in calls:
                self._send([call])
            return
        self._follow({future: result for (future, _), result in zip(calls, remote, strict=True)})

    # Results in.

    def _follow(self, sent: Mapping[Future[Any], Any]) -> None:
        with self._lock:
            gone = [future for future in sent if future not in self._open]
            self._open.update({future: remote for future, remote in sent.items() if future in self._open})
        for future in gone:
            sent[future].cancel()
        for future, remote in sent.items():
            asyncio.ensure_future(self._await(future, remote))  # noqa: RUF006 (the loop holds it by what it waits for)

    async def _await(self, future: Future[Any], remote: Any) -> None:
        await remote._state.wait()
        if remote.status == "finished":
            self._finished.append(future)
            if not self._fetching:
                self._fetching = True
                asyncio.ensure_future(self._fetch())  # noqa: RUF006
        else:
            self._fail(future, remote)

    async def _fetch(self) -> None:
        while self._finished:
            # Fetching a result costs the workers more than computing a small one; so the more there are to come, the
            # more are fetched together.
            await asyncio.sleep(min(LONGEST_PAUSE, len(self._open) * PAUSE_PER_CALL))
            batch, self._finished = self._finished, []
            remote = {future: self._open.get(future) for future in batch}
            wanted = {future: result for future, result in remote.items() if result is not None}
            try:
                values = await self._client.gather(list(wanted.values()), asynchronous=True)
            except Exception:  # noqa: BLE001 (one of them was lost or cancelled meanwhile: ask for each)
                await asyncio.gather(*(self._fetch_one(future, result) for future, result in wanted.items()))
            else:
                for future, value in zip(wanted, values, strict=True):
                    _settle(future, value)
        self._fetching = False

    async def _fetch_one(self, future: Future[Any], remote: Any) -> None:
        try:
            _settle(future, await self._client.gather(remote, asynchronous=True))
        except Exception:  # noqa: BLE001
            self._fail(future, remote)

    def _fail(self, future: Future[Any], remote: Any) -> None:
        if remote.status == "error":
            error = remote._state.exception
            _settle(future, error=error.with_traceback(remote._state.traceback))
        else:
            _settle(future, error=self._lost())

    def _lost(self) -> ClusterLost:
        return ClusterLost(
            f"The connection to the Dask scheduler of {self._cluster} was lost; what it was computing is lost with it.",
            f"See why: oars why {self._cluster}. A new scheduler starts by itself; then submit again.",
        )

    # Ends.

    def _forget(self, future: Future[Any]) -> None:
        """Called once for each future, when it has ended in whatever way."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes up wait() and as_completed()
        with self._lock:
            remote = self._open.pop(future, None)
            last = self._closed and not self._open
        if remote is not None and future.cancelled():
            self._client.loop.add_callback(remote.cancel)
        if last:
            self._client.loop.add_callback(self._client._close)

    def _close_client(self) -> None:
        self._client.close(timeout=CLOSE_SECONDS)


def _settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass  # cancelled in this moment


def _in_order(futures: list[Future[Any]], deadline: float | None) -> Iterator[Any]:
    """Results in the order of the calls; what nobody will ask for any more is cancelled."""
    futures.reverse()
    try:
        while futures:
            yield futures.pop().result(None if deadline is None else deadline - monotonic())
    finally:
        for future in futures:
            future.cancel()


def _wait(futures: Sequence[Future[Any]]) -> None:
    wait(futures)


def _name(call: Callable[..., Any]) -> str:
    from dask.utils import funcname

    return str(funcname(call))
