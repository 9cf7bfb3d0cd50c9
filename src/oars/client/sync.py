"""Cluster: the plain face of AsyncCluster, one line per method. A thread of our own runs the event loop, so that it
also works where one runs already (notebooks)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from oars.client.backend import Driver
from oars.client.cluster import DEFAULT_TIMEOUT, AsyncCluster
from oars.model import Cause
from oars.spec.cluster import ClusterSpec
from oars.spec.status import MemberStatus, Status

T = TypeVar("T")
_END = object()


class _Loop:
    """One event loop for all clusters of the process, started on first use; a fork gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread must not leave the work going on
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="oars", daemon=True)
                self._thread.start()
            return self._loop


_loop = _Loop()


class Cluster:
    """A running cluster: `with Cluster("dask", workers=3) as c: …`. Arguments as for AsyncCluster."""

    def __init__(self, engine: str | ClusterSpec, **arguments: Any) -> None:
        self._cluster = AsyncCluster(engine, **arguments)
        _loop.run(self._cluster.start())

    @classmethod
    def from_file(cls, path: str | Path, *, sets: Sequence[str] = (), **arguments: Any) -> Self:
        cluster = AsyncCluster.from_file(path, sets=sets, **arguments)
        return cls._around(_loop.run(cluster.start()))

    @classmethod
    def attach(cls, name: str, **arguments: Any) -> Self:
        return cls._around(_loop.run(AsyncCluster.attach(name, **arguments)))

    @classmethod
    def _around(cls, cluster: AsyncCluster) -> Self:
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
        return self._cluster.name

    @property
    def engine(self) -> str:
        return self._cluster.engine

    @property
    def place(self) -> str:
        return self._cluster.place

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def dashboard_link(self) -> str:
        return self._cluster.dashboard_link

    def client(self) -> Any:
        return _loop.run(self._cluster.client())

    def executor(self) -> Executor:
        return self._cluster.executor()

    def driver(self) -> Driver:
        return self._cluster.driver()

    def scale(self, workers: int, *, group: str | None = None, force: bool = False) -> None:
        _loop.run(self._cluster.scale(workers, group=group, force=force))

    def wait(self, workers: int | None = None, *, timeout: float | str = DEFAULT_TIMEOUT) -> Status:
        return _loop.run(self._cluster.wait(workers, timeout=timeout))

    def status(self) -> Status:
        return _loop.run(self._cluster.status())

    def members(self) -> tuple[MemberStatus, ...]:
        return _loop.run(self._cluster.members())

    def why(self) -> tuple[Cause, ...]:
        return _loop.run(self._cluster.why())

    @overload
    def logs(self, member: str | None = None, *, follow: Literal[False] = False, tail: int | None = None) -> str: ...
    @overload
    def logs(self, member: str, *, follow: Literal[True], tail: int | None = None) -> Iterator[str]: ...
    def logs(self, member: str | None = None, *, follow: bool = False, tail: int | None = None) -> str | Iterator[str]:
        if follow:
            return self._follow(member or "head", tail)
        return _loop.run(self._cluster.logs(member, tail=tail))

    def _follow(self, member: str, tail: int | None) -> Iterator[str]:
        lines = self._cluster.follow_logs(member, tail=tail)

        async def following() -> Any:
            return await anext(lines, _END)

        while (line := _loop.run(following())) is not _END:
            yield line

    def close(self) -> None:
        _loop.run(self._cluster.close())

    def stop(self) -> None:
        _loop.run(self._cluster.stop())

    def __repr__(self) -> str:
        return repr(self._cluster).replace("AsyncCluster", "Cluster", 1)

    def _repr_html_(self) -> str:
        return self._cluster._repr_html_()
