"""Cluster: AsyncCluster without async. The event loop runs in a thread of its own, so that it also works where one runs
already, as in notebooks."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from oars.client.backend import Driver
from oars.client.cluster import AsyncCluster
from oars.client.keywords import same_parameters, suggest_keywords
from oars.client.view import bundle
from oars.engines.sessions import make_executor

P = ParamSpec("P")
T = TypeVar("T")
_END = object()
REFRESH_SECONDS = 2.0  # for the status that repr() and the card show


class _LoopThread:
    """One event loop for all clusters of the process, started on first use; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the calling thread cancels the work
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine, and do not wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())

    def run_if_possible(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Do nothing in the loop's own thread, which could not wait for the result."""
        if threading.current_thread() is self._thread:
            coroutine.close()
        else:
            self.run(coroutine)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="oars", daemon=True)
                self._thread.start()
            return self._loop


_loop = _LoopThread()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of all clusters of the process, and wait for its result."""
    return _loop.run(coroutine)


def _blocking(
    method: Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Cluster, P], T]:
    """A method of AsyncCluster as a method of Cluster, with the same signature and docstring."""

    @functools.wraps(inspect.unwrap(method))
    def call(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _loop.run(method(self._cluster, *args, **kwargs))

    call.__qualname__ = f"Cluster.{call.__name__}"
    return suggest_keywords(call)


class Cluster:
    """A running cluster: `with Cluster("dask", workers=3) as cluster: …`."""

    @same_parameters(AsyncCluster)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start a cluster and wait until all workers are ready. If that fails, remove it again."""
        self._cluster = AsyncCluster(*args, **kwargs)
        _loop.run(self._cluster.start())

    @classmethod
    @same_parameters(AsyncCluster.from_file)
    def from_file(cls, *args: Any, **kwargs: Any) -> Cluster:
        """Start a cluster from a YAML file, which the other arguments override."""
        return cls._wrap(_loop.run(AsyncCluster.from_file(*args, **kwargs).start()))

    @classmethod
    @same_parameters(AsyncCluster.attach)
    def attach(cls, *args: Any, **kwargs: Any) -> Cluster:
        """Connect to a running cluster. Closing the object does not stop the cluster."""
        return cls._wrap(_loop.run(AsyncCluster.attach(*args, **kwargs)))

    @classmethod
    def _wrap(cls, cluster: AsyncCluster) -> Self:
        self = cls.__new__(cls)
        self._cluster = cluster
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self._cluster.name

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._cluster.engine

    @property
    def place(self) -> str:
        """local or kubernetes."""
        return self._cluster.place

    @property
    def address(self) -> str:
        """The address that the engine's client connects to."""
        return self._cluster.address

    @property
    def dashboard_link(self) -> str:
        """The URL of the engine's dashboard; empty if it has none. If it requires the token: `oars dashboard NAME`."""
        return self._cluster.dashboard_link

    @property
    def scheduler_address(self) -> str:
        """Dask: the scheduler's address. With `security` it makes `distributed.Client(cluster)` work."""
        return self._cluster.scheduler_address

    @property
    def security(self) -> Any:
        """Dask: the distributed.Security with which a client connects."""
        return self._cluster.security

    def __await__(self) -> Generator[Any, Any, Self]:
        """Dask awaits the cluster of a new client. This one has started."""
        return self
        yield

    def executor(self) -> Executor:
        """Return a concurrent.futures.Executor that runs on the cluster."""
        return make_executor(self._cluster._started().access(), connect=True)

    def driver(self) -> Driver:
        """Return the Python and the environment for a program that connects to this cluster with the engine's API."""
        return self._cluster.driver()

    def client(self) -> Any:
        """Return the engine's own client, connected: distributed.Client, the initialised ray module, a Mars session."""
        return _loop.run(self._cluster._open_client(asynchronous=False))

    get_client = client  # its name in Dask
    scale = _blocking(AsyncCluster.scale)
    adapt = _blocking(AsyncCluster.adapt)
    drain = _blocking(AsyncCluster.drain)
    wait = _blocking(AsyncCluster.wait)
    status = _blocking(AsyncCluster.status)
    members = _blocking(AsyncCluster.members)
    why = _blocking(AsyncCluster.why)
    close = _blocking(AsyncCluster.close)
    stop = _blocking(AsyncCluster.stop)

    @overload
    def logs(self, member: str | None = None, *, follow: Literal[False] = False, tail: int | None = None) -> str: ...
    @overload
    def logs(self, member: str, *, follow: Literal[True], tail: int | None = None) -> Iterator[str]: ...
    def logs(self, member: str | None = None, *, follow: bool = False, tail: int | None = None) -> str | Iterator[str]:
        """Return the log of one member, or of all with the member's name before each line. tail: only that many of the
        last lines of each. follow: iterate over the lines, including future ones, until the member is removed."""
        if follow:
            return self._follow(member or "head", tail)
        return _loop.run(self._cluster.logs(member, tail=tail))

    def _follow(self, member: str, tail: int | None) -> Iterator[str]:
        lines = self._cluster.follow_logs(member, tail=tail)

        async def next_line() -> Any:
            return await anext(lines, _END)

        while (line := _loop.run(next_line())) is not _END:
            yield line

    def __repr__(self) -> str:
        _loop.run_if_possible(self._cluster._refresh(REFRESH_SECONDS))
        return repr(self._cluster).replace("AsyncCluster", "Cluster", 1)

    def _repr_html_(self) -> str:
        _loop.run_if_possible(self._cluster._refresh(REFRESH_SECONDS, measure=True))
        return self._cluster._repr_html_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows. With ipywidgets it updates itself, also while a cell runs."""
        html = self._repr_html_()
        text = repr(self._cluster).replace("AsyncCluster", "Cluster", 1)
        return bundle(text, html, self._cluster._live_view(_loop.submit))
