"""Cluster: AsyncCluster without async. The event loop runs in a thread of its own, so that it also works where one runs
already, as in notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from oars.client.backend import Driver
from oars.client.cluster import DEFAULT_TIMEOUT, AsyncCluster
from oars.client.keywords import suggest_keywords
from oars.model import Cause
from oars.spec.cluster import ClusterSpec
from oars.spec.status import MemberStatus, Status

T = TypeVar("T")
_END = object()


class _LoopThread:
    """One event loop for all clusters of the process, started on first use; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the calling thread cancels the work
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="oars", daemon=True)
                self._thread.start()
            return self._loop


_loop = _LoopThread()


class Cluster:
    """A running cluster: `with Cluster("dask", workers=3) as cluster: …`."""

    @suggest_keywords
    def __init__(  # noqa: PLR0913 (all but the first are keywords)
        self,
        engine: str | ClusterSpec,
        *,
        workers: int | None = None,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        name: str | None = None,
        packages: Sequence[str] | None = None,
        image: str | None = None,
        place: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        mode: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT,
        progress: Callable[[str], None] | None = None,
        tied: bool = True,
        modules: str | None = None,
    ) -> None:
        """Start a cluster and wait until all workers are ready. If that fails, remove it again.

        engine: "dask", "ray", "mars", the name of a plug-in, or a ClusterSpec, which the other arguments override.
        workers: number of workers in the first group.
        cpu, memory: of each worker, such as 2 or "500m", and "4Gi".
        name: of the cluster; by default the engine's name and six random digits.
        packages: requirements to install beside the engine.
        image: container image of all pods, on Kubernetes.
        place: "local" (default) or "kubernetes".
        namespace, context, kubeconfig: as for kubectl; each implies place="kubernetes".
        mode: "operator" or "direct"; by default "operator" if one watches the namespace.
        timeout: how long to wait until the cluster is ready, in seconds or such as "2m".
        progress: called with a line of text at every change while waiting.
        tied: stop the cluster when this process ends.
        modules: directory whose modules workers can import; by default that of the running script.
        """
        self._cluster = AsyncCluster(
            engine, workers=workers, cpu=cpu, memory=memory, name=name, packages=packages, image=image, place=place,
            namespace=namespace, context=context, kubeconfig=kubeconfig, mode=mode, timeout=timeout, progress=progress,
            tied=tied, modules=modules,
        )  # fmt: skip
        _loop.run(self._cluster.start())

    @classmethod
    @suggest_keywords
    def from_file(  # noqa: PLR0913 (all but the first are keywords)
        cls,
        path: str | Path,
        *,
        sets: Sequence[str] = (),
        workers: int | None = None,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        name: str | None = None,
        packages: Sequence[str] | None = None,
        image: str | None = None,
        place: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        mode: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT,
        progress: Callable[[str], None] | None = None,
        tied: bool = True,
        modules: str | None = None,
    ) -> Self:
        """Start a cluster from a YAML file, which the other arguments override. sets: "path=value" for any field of the
        spec, such as "head.cpu=2". See Cluster for the others."""
        cluster = AsyncCluster.from_file(
            path, sets=sets, workers=workers, cpu=cpu, memory=memory, name=name, packages=packages, image=image,
            place=place, namespace=namespace, context=context, kubeconfig=kubeconfig, mode=mode, timeout=timeout,
            progress=progress, tied=tied, modules=modules,
        )  # fmt: skip
        return cls._wrap(_loop.run(cluster.start()))

    @classmethod
    @suggest_keywords
    def attach(  # noqa: PLR0913 (all but the first are keywords)
        cls,
        name: str,
        *,
        place: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        mode: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Self:
        """Connect to a running cluster. Closing the object does not stop the cluster.

        Without a place the cluster is looked for on this machine, then on Kubernetes. mode: raise NotFound unless the
        cluster runs in this mode. See Cluster for the others."""
        attaching = AsyncCluster.attach(
            name, place=place, namespace=namespace, context=context, kubeconfig=kubeconfig, mode=mode, progress=progress
        )
        return cls._wrap(_loop.run(attaching))

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
        """The URL of the engine's dashboard; empty if it has none."""
        return self._cluster.dashboard_link

    def client(self) -> Any:
        """Return the engine's own client, connected: distributed.Client, the initialised ray module, a Mars session."""
        return _loop.run(self._cluster.client())

    def executor(self) -> Executor:
        """Return a concurrent.futures.Executor that runs on the cluster."""
        return self._cluster.executor()

    def driver(self) -> Driver:
        """Return the Python and the environment for a program that connects to this cluster with the engine's API."""
        return self._cluster.driver()

    @suggest_keywords
    def scale(self, workers: int, *, group: str | None = None, force: bool = False) -> None:
        """Set the number of workers of a group (by default the first) and return at once. Workers are drained before
        they are removed, unless `force` discards their data."""
        _loop.run(self._cluster.scale(workers, group=group, force=force))

    @suggest_keywords
    def wait(self, workers: int | None = None, *, timeout: float | str = DEFAULT_TIMEOUT) -> Status:
        """Wait until that many workers are ready and return the status. Without a number, wait until the cluster
        matches its spec. Raises TimedOut."""
        return _loop.run(self._cluster.wait(workers, timeout=timeout))

    def status(self) -> Status:
        """Return the current status."""
        return _loop.run(self._cluster.status())

    def members(self) -> tuple[MemberStatus, ...]:
        """Return the status of the head and of every worker."""
        return _loop.run(self._cluster.members())

    def why(self) -> tuple[Cause, ...]:
        """Return what keeps the cluster from matching its spec, the most severe cause first; empty if nothing does."""
        return _loop.run(self._cluster.why())

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

    def close(self) -> None:
        """Disconnect, and stop the cluster if this object started it and it is tied."""
        _loop.run(self._cluster.close())

    def stop(self) -> None:
        """Stop the cluster, no matter who started it."""
        _loop.run(self._cluster.stop())

    def __repr__(self) -> str:
        return repr(self._cluster).replace("AsyncCluster", "Cluster", 1)

    def _repr_html_(self) -> str:
        return self._cluster._repr_html_()
