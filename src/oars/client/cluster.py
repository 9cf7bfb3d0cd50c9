"""AsyncCluster: a cluster as an object. sync.py has the same without async."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oars import engines
from oars.base.errors import NotFound, SpecError, TimedOut, UsageError
from oars.base.text import command
from oars.client import card
from oars.client.backend import (
    STOP_SECONDS,
    Backend,
    ClusterHandle,
    CreateOptions,
    Driver,
    LogOptions,
    check_member,
    ignore,
    make_location,
)
from oars.client.backends import backend_for, find_cluster
from oars.client.handles import read_logs, wait_ready
from oars.client.keywords import suggest_keywords
from oars.model import Cause
from oars.spec import load, resources
from oars.spec.cluster import ClusterSpec, check_name
from oars.spec.status import MemberStatus, Status

DEFAULT_TIMEOUT = "2m"


class AsyncCluster:
    """A cluster. `await AsyncCluster("dask", workers=3)` or `async with AsyncCluster("dask", workers=3) as cluster`."""

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
        """Check the arguments. The cluster starts when it is awaited or entered.

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
        location = make_location(
            _keyword, place=place, context=context, namespace=namespace, kubeconfig=kubeconfig, mode=mode
        )
        overrides = {"workers": workers, "cpu": cpu, "memory": memory, "packages": packages, "image": image}
        self._spec = _build_spec(engine, {**overrides, "place": location.place})
        self._name = checked_name(name) if name else generate_name(self._spec)
        self._timeout = _seconds(timeout)
        self._progress = progress or ignore
        self._options = CreateOptions(tied, self._progress, modules)
        self._backend: Backend = backend_for(replace(location, place=self._spec.place), os.environ)
        self._handle: ClusterHandle | None = None
        self._clients: list[Any] = []
        self._finalizer: weakref.finalize[Any, Any] | None = None

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
        """Make a cluster from a YAML file, which the other arguments override.

        sets: "path=value" for any field of the spec, such as "head.cpu=2". See the constructor for the others."""
        manifest = load.load_file(Path(path), sets, option_model=engines.option_model)
        return cls(
            manifest.spec, workers=workers, cpu=cpu, memory=memory, name=name or manifest.name, packages=packages,
            image=image, place=place, namespace=namespace, context=context, kubeconfig=kubeconfig, mode=mode,
            timeout=timeout, progress=progress, tied=tied, modules=modules,
        )  # fmt: skip

    @classmethod
    @suggest_keywords
    async def attach(  # noqa: PLR0913 (all but the first are keywords)
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
        cluster runs in this mode. See the constructor for the others."""
        location = make_location(
            _keyword, place=place, context=context, namespace=namespace, kubeconfig=kubeconfig, mode=mode
        )
        backend, handle = await find_cluster(checked_name(name), location, os.environ)
        try:
            self = cls(await handle.spec(), name=name, progress=progress, tied=False)
            self._backend, self._handle = backend, handle
            found = (await handle.report()).status.mode
            if mode not in (None, found):
                raise NotFound(f"Cluster {name!r} runs in {found} mode, not in {mode} mode.", f"Use mode={found!r}.")
            await handle.open()
        except BaseException:
            await backend.close()
            raise
        return self

    # lifecycle

    async def start(self) -> Self:
        """Create the cluster and wait until all workers are ready, or as many as `min_ready` of the spec says. If that
        fails, remove it again."""
        workers = sum(group.replicas for group in self._spec.workers)
        if self._spec.min_ready is not None and self._spec.min_ready > workers:
            # Not part of the spec's validation: a running cluster may be scaled below minReady.
            message = f"minReady is {self._spec.min_ready}, but the cluster has only {workers} workers."
            raise SpecError(message, f"Set minReady to at most {workers}, or workers to {self._spec.min_ready}.")
        creating = asyncio.ensure_future(self._backend.create(self._name, self._spec, self._options))
        try:
            self._handle = handle = await asyncio.shield(creating)
            if self._options.tied:
                self._finalizer = weakref.finalize(self, _stop_at_exit, handle, os.getpid())
            await wait_ready(handle, self._spec.min_ready, self._timeout, self._progress)
            await handle.open()
        except BaseException:
            self._backend.cancel_create()
            await asyncio.wait([creating])
            try:
                if creating.exception() is None:  # otherwise the name may be another cluster's
                    if not await creating.result().stop():
                        self._progress(f"{self._name}: did not stop within {STOP_SECONDS:.0f} s; it continues to stop")
                    if self._finalizer is not None:
                        self._finalizer.detach()
            finally:
                await self._backend.close()
            raise
        return self

    def __await__(self) -> Any:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, and stop the cluster if this object started it and it is tied."""
        clients, self._clients = self._clients, []
        async with contextlib.AsyncExitStack() as stack:  # each step runs even if an earlier one fails
            stack.push_async_callback(self._backend.close)
            if self._finalizer is not None and self._finalizer.detach():
                stack.push_async_callback(self.stop)
            for client in clients:
                session = engines.session(engines.get(self._spec.engine))
                await asyncio.to_thread(session.disconnect, client)

    async def stop(self) -> None:
        """Stop the cluster, no matter who started it. Raises TimedOut."""
        handle = self._started()
        if not await handle.stop():
            message = f"Cluster {self._name!r} did not stop within {STOP_SECONDS:.0f} s."
            raise TimedOut(
                message, f"It continues to stop; run `{command('why', handle.name, namespace=handle.namespace)}`."
            )

    def _started(self) -> ClusterHandle:
        if self._handle is None:
            raise UsageError(f"Cluster {self._name!r} is not started.", "Await the AsyncCluster, or use `async with`.")
        return self._handle

    # state

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self._name

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._spec.engine

    @property
    def place(self) -> str:
        """local or kubernetes."""
        return self._spec.place

    @property
    def address(self) -> str:
        """The address that the engine's client connects to."""
        return self._started().access().address

    @property
    def dashboard_link(self) -> str:
        """The URL of the engine's dashboard; empty if it has none."""
        return self._started().access().dashboard

    async def status(self) -> Status:
        """Return the current status."""
        return (await self._started().report()).status

    async def members(self) -> tuple[MemberStatus, ...]:
        """Return the status of the head and of every worker."""
        return (await self.status()).members

    async def why(self) -> tuple[Cause, ...]:
        """Return what keeps the cluster from matching its spec, the most severe cause first; empty if nothing does."""
        return (await self._started().report()).causes

    # use

    async def client(self) -> Any:
        """Return the engine's own client, connected: distributed.Client, the initialised ray module, a Mars session."""
        session = engines.session(engines.get(self._spec.engine))
        client = await asyncio.to_thread(session.connect, self._started().access())
        self._clients.append(client)
        return client

    def executor(self) -> Executor:
        """Return a concurrent.futures.Executor that runs on the cluster."""
        return engines.session(engines.get(self._spec.engine)).executor(self._started().access())

    def driver(self) -> Driver:
        """Return the Python and the environment for a program that connects to this cluster with the engine's API."""
        return self._started().driver()

    @suggest_keywords
    async def logs(self, member: str | None = None, *, tail: int | None = None) -> str:
        """Return the log of one member, or of all with the member's name before each line. tail: only that many of the
        last lines of each."""
        return await read_logs(self._started(), member, tail)

    async def follow_logs(self, member: str, *, tail: int | None = None) -> AsyncIterator[str]:
        """Iterate over the lines of a member's log, including future ones, until the member is removed."""
        handle = self._started()
        check_member(self._name, member, await handle.members())
        async for line in handle.logs(member, LogOptions(follow=True, tail=tail)):
            yield line

    # change

    @suggest_keywords
    async def scale(self, workers: int, *, group: str | None = None, force: bool = False) -> None:
        """Set the number of workers of a group (by default the first) and return at once. Workers are drained before
        they are removed, unless `force` discards their data."""
        await self._started().scale(workers, group, force=force)

    @suggest_keywords
    async def wait(self, workers: int | None = None, *, timeout: float | str = DEFAULT_TIMEOUT) -> Status:  # noqa: ASYNC109 (part of the API)
        """Wait until that many workers are ready and return the status. Without a number, wait until the cluster
        matches its spec. Raises TimedOut."""
        return await wait_ready(self._started(), workers, _seconds(timeout), self._progress)

    def __repr__(self) -> str:
        report = self._handle.last_report() if self._handle else None
        return card.text(type(self).__name__, self._name, self._spec, report)

    def _repr_html_(self) -> str:
        report = self._handle.last_report() if self._handle else None
        return card.html(self._name, self._spec, report)


def _keyword(field: str) -> str:
    return f"{field}="


def _stop_at_exit(handle: ClusterHandle, owner: int) -> None:
    """Runs when the object is collected or Python ends, but not in a forked child."""
    if os.getpid() == owner:
        handle.stop_at_exit()


def generate_name(spec: ClusterSpec) -> str:
    return f"{spec.engine}-{secrets.token_hex(3)}"


def checked_name(name: str) -> str:
    """The name. Raises SpecError if it is not valid."""
    try:
        return check_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Example: demo-1.") from error


def _build_spec(engine: str | ClusterSpec, overrides: Mapping[str, Any]) -> ClusterSpec:
    if isinstance(engine, ClusterSpec):
        if all(value is None for value in overrides.values()):
            return engine
        base: Mapping[str, Any] = engine.model_dump(mode="json", by_alias=True)
    elif isinstance(engine, str):
        base = {"engine": engine}
    else:
        raise SpecError(f"{engine!r} is not an engine.", "Use a name such as 'dask', or a ClusterSpec.")
    return load.build(base, overrides=overrides, option_model=engines.option_model).spec


def _seconds(value: float | str) -> float:
    try:
        return resources.duration(value)
    except ValueError as error:
        raise SpecError(f"timeout: {error}.") from error
