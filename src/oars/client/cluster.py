"""AsyncCluster: a cluster as an object. sync.py has the same without async."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oars import engines
from oars.base.errors import Denied, NotFound, OarsError, SpecError, StartFailed, TimedOut, UsageError
from oars.base.log import get_logger, pairs
from oars.base.text import command
from oars.client import card, view
from oars.client.backend import (
    STOP_SECONDS,
    Backend,
    ClusterHandle,
    CreateOptions,
    Driver,
    LogOptions,
    capabilities,
    check_member,
    ignore,
    make_location,
)
from oars.client.backends import backend_for, find_cluster
from oars.client.drains import finish_work
from oars.client.handles import Bounds, adapt, read_logs, removed_hint, scale, stop_adapting, wait_ready
from oars.client.keywords import suggest_keywords
from oars.client.samples import Meter
from oars.engines.sessions import make_executor
from oars.model import Cause
from oars.places.report import Report
from oars.spec import load, resources
from oars.spec.cluster import ClusterSpec, check_name
from oars.spec.status import GroupStatus, MemberStatus, Status

DEFAULT_TIMEOUT = "2m"


log = get_logger(__name__)


class AsyncCluster:
    """A cluster. `await AsyncCluster("dask", workers=3)` or `async with AsyncCluster("dask", workers=3) as cluster`."""

    _meter: Meter | None = None
    _view: view.View | None = None  # what notebooks show

    @suggest_keywords
    def __init__(  # noqa: PLR0913 (all but the first are keywords)
        self,
        engine: str | ClusterSpec,
        *,
        workers: int | None = None,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        cache: int | str | None = None,
        spill: str | Sequence[str] | Mapping[str, Any] | None = None,
        head_cpu: float | str | None = None,
        head_memory: int | str | None = None,
        name: str | None = None,
        packages: Sequence[str] | None = None,
        image: str | None = None,
        lifetime: Mapping[str, Any] | None = None,
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
        cpu, memory: of each worker, such as 2 or "500m", and "4Gi"; head_cpu, head_memory: of the head.
        cache: the part of that memory for results, such as "40%"; spill: a directory for the rest, several, or a block.
        name: of the cluster; by default the engine's name and six random digits.
        packages: requirements to install beside the engine; image: container image of all pods, on Kubernetes.
        lifetime: when the cluster ends by itself, such as {"idle": "30m", "noClient": "5m", "max": "8h"}.
        place: "local" (default) or "kubernetes".
        namespace, context, kubeconfig: as for kubectl; each implies place="kubernetes".
        mode: "operator" or "direct"; by default "operator" if one watches the namespace.
        timeout: until the cluster is ready, in seconds or such as "2m"; progress: called with a line at every change.
        tied: stop the cluster when this process ends.
        modules: directory whose modules workers can import; by default that of the running script. Not for pods.
        """
        location = make_location(
            _keyword, place=place, context=context, namespace=namespace, kubeconfig=kubeconfig, mode=mode
        )
        overrides = dict(
            workers=workers, cpu=cpu, memory=memory, cache=cache, spill=spill, head_cpu=head_cpu, lifetime=lifetime,
            head_memory=head_memory, packages=packages, image=image, place=location.place or implied_place(engine),
        )  # fmt: skip
        self._spec = _build_spec(engine, overrides)
        _warn_of_modules(modules, self._spec.place)
        self._name = checked_name(name) if name else generate_name(self._spec)
        self._timeout = _seconds(timeout)
        self._progress = progress or ignore
        self._options = CreateOptions(tied, self._progress, modules)
        self._backend: Backend = backend_for(replace(location, place=self._spec.place), os.environ)
        self._handle: ClusterHandle | None = None
        self._clients: list[Any] = []  # this list object is the finalizer's, too
        self._report: Report | None = None  # the last known; None: not started, or stopped
        self._is_closed = False
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
        cache: int | str | None = None,
        spill: str | Sequence[str] | Mapping[str, Any] | None = None,
        head_cpu: float | str | None = None,
        head_memory: int | str | None = None,
        name: str | None = None,
        packages: Sequence[str] | None = None,
        image: str | None = None,
        lifetime: Mapping[str, Any] | None = None,
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
            manifest.spec, workers=workers, cpu=cpu, memory=memory, cache=cache, spill=spill, head_cpu=head_cpu,
            head_memory=head_memory, name=name or manifest.name, packages=packages, image=image, lifetime=lifetime,
            place=place, namespace=namespace, context=context, kubeconfig=kubeconfig, mode=mode, timeout=timeout,
            progress=progress, tied=tied, modules=modules,
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
            self = cls(await handle.spec(), name=name, place=backend.place, progress=progress, tied=False)
            self._backend, self._handle = backend, handle
            await self._update(await handle.report())
            found = self._report.status.mode if self._report else ""
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
        if self._progress is ignore:
            async with view.starting(self) as progress:
                await self._start(progress)
        else:
            await self._start(self._progress)
        return self

    async def _start(self, progress: Callable[[str], None]) -> None:
        options = replace(self._options, progress=progress)
        creating = asyncio.ensure_future(self._backend.create(self._name, self._spec, options))
        try:
            self._handle = handle = await asyncio.shield(creating)
            if self._options.tied:
                self._finalizer = _stop_when_collected(self, handle, self._spec.engine, self._clients)
            status = await wait_ready(handle, self._spec.min_ready, self._timeout, progress, self._remember)
            await self._update(Report(status))
            await handle.open()
        except BaseException as error:
            self._report = None
            if isinstance(error, StartFailed | TimedOut | Denied):
                error.hint = removed_hint(error, self._name)
            self._backend.cancel_create()
            await asyncio.wait([creating])
            try:
                if creating.exception() is None:  # otherwise the name may be another cluster's
                    if not await creating.result().stop():
                        progress(f"{self._name}: did not stop within {STOP_SECONDS:.0f} s; it continues to stop")
                    if self._finalizer is not None:
                        self._finalizer.detach()
            finally:
                await self._backend.close()
            raise

    def _remember(self, report: Report) -> None:
        self._report = report

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
        clients = [*self._clients]
        self._clients.clear()
        self._is_closed = True
        async with contextlib.AsyncExitStack() as stack:  # each step runs even if an earlier one fails; the last first
            if self._view is not None:
                stack.callback(self._view.stop)
            stack.push_async_callback(self._backend.close)
            if self._finalizer is not None and self._finalizer.detach():
                stack.push_async_callback(self.stop)
            if clients:  # threads cannot start while Python ends
                await asyncio.to_thread(_disconnect_all, self._spec.engine, clients)

    @suggest_keywords
    async def stop(self, *, drain: bool = False, timeout: float | str = "10m") -> None:  # noqa: ASYNC109 (part of the API)
        """Stop the cluster, no matter who started it. Raises TimedOut. drain: first wait until its work is done and its
        results are released, but no longer than `timeout`."""
        handle = self._started()
        if drain:
            await finish_work(handle, _seconds(timeout), self._progress)
        is_stopped = await handle.stop()
        self._report = None
        if not is_stopped:
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
        """The URL of the engine's dashboard; empty if it has none. If it requires the token: `oars dashboard NAME`."""
        return self._started().access().dashboard

    @property
    def scheduler_address(self) -> str:
        """Dask: the scheduler's address. With `security` it makes `distributed.Client(cluster)` work."""
        self._session_part("security")
        return self.address

    @property
    def security(self) -> Any:
        """Dask: the distributed.Security with which a client connects."""
        return self._session_part("security")(self._started().access())

    def _session_part(self, name: str) -> Any:
        """A function that the session module of some engines has. Raises AttributeError."""
        session = engines.session(engines.get(self._spec.engine))
        if not hasattr(session, name):
            raise AttributeError(f"A cluster of the engine {self._spec.engine} has no {name}.")
        return getattr(session, name)

    async def status(self) -> Status:
        """Return the current status."""
        return (await self._read_report()).status

    async def members(self) -> tuple[MemberStatus, ...]:
        """Return the status of the head and of every worker."""
        return (await self.status()).members

    async def why(self) -> tuple[Cause, ...]:
        """Return what keeps the cluster from matching its spec, the most severe cause first; empty if nothing does."""
        return (await self._read_report()).causes

    async def _read_report(self) -> Report:
        self._report = await self._started().report()
        return self._report

    async def _update(self, report: Report | None) -> None:
        """Remember a report, and read the spec with the sizes that the place has filled in."""
        handle = self._started()
        self._report, self._spec = report, handle.sized(await handle.spec())

    async def _refresh(self, seconds: float, *, measure: bool = False) -> None:
        """Read the status that repr() and the card show, if the cluster answers in time. measure: also what it uses."""
        if self._handle is None or self._is_closed:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._update(await (self._measure(seconds) if measure else self._handle.report(seconds)))
        except NotFound:
            self._report = None  # it was stopped
        except (OarsError, OSError, TimeoutError) as error:
            log.debug(pairs("status not read", cluster=self._name, error=error))

    async def _measure(self, seconds: float) -> Report:
        self._meter = self._meter or Meter(self._started())
        return (await self._meter.sample(timeout=seconds))[0]

    # use

    async def client(self) -> Any:
        """Return the engine's own client, connected, without blocking the event loop.

        Dask: an asynchronous distributed.Client; await its futures. Ray: the initialised ray module; references can be
        awaited, ray.get() blocks. Mars: a session; all its calls block, so use asyncio.to_thread()."""
        return await self._open_client(asynchronous=True)

    async def _open_client(self, *, asynchronous: bool) -> Any:
        session, access = engines.session(engines.get(self._spec.engine)), self._started().access()
        connect_async = getattr(session, "connect_async", None) if asynchronous else None
        client = await (connect_async(access) if connect_async else asyncio.to_thread(session.connect, access))
        self._clients.append(client)
        return client

    get_client = client  # its name in Dask

    def executor(self) -> Executor:
        """Return a concurrent.futures.Executor that runs on the cluster. Its first call connects, without blocking."""
        return make_executor(self._started().access(), connect=False)

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
        they are removed, unless `force` discards their data. Ends autoscaling of the group."""
        handle, shown = self._started(), self._shown()
        await scale(handle, workers, group, force=force, note=self._progress)
        await self._update(shown and _with_numbers(shown, await handle.spec(), await handle.generation()))

    @suggest_keywords
    async def drain(self, members: str | Sequence[str], *, force: bool = False) -> None:
        """Let these workers be drained and replaced, and return at once; wait() waits for it. A worker that holds what
        cannot move stays until that is released, unless `force` discards it."""
        handle, chosen = self._started(), [members] if isinstance(members, str) else list(members)
        await handle.drain(chosen, force=force)

    @suggest_keywords
    async def adapt(
        self,
        minimum: int | None = 0,
        maximum: int | None = None,
        *,
        group: str | None = None,
        scale_down_delay: float | str | None = None,
        horizon: float | str | None = None,
        patience: float | str | None = None,
    ) -> None:
        """Let the number of workers of a group (by default the first) follow the load, within these bounds. The control
        loop does it, also after this program ends, except on Kubernetes without an operator. `adapt(None)` ends it, by
        default for all groups, and keeps the present numbers.

        scale_down_delay: the group keeps the most workers that it needed within this time, such as "60s".
        horizon: work of known duration is to be done within this time; a longer one needs fewer workers.
        patience: workers that cannot start for this long block their group, and other groups serve its work."""
        if minimum is None:
            await stop_adapting(self._started(), group)
            return
        if maximum is None:
            raise UsageError("adapt() needs a maximum.", "For example: adapt(0, 10). adapt(None) ends autoscaling.")
        given = {"scale_down_delay": scale_down_delay, "horizon": horizon, "patience": patience}
        options = {name: value for name, value in given.items() if value is not None}
        await adapt(self._started(), Bounds(minimum, maximum, group, options))

    @suggest_keywords
    async def wait(self, workers: int | None = None, *, timeout: float | str = DEFAULT_TIMEOUT) -> Status:  # noqa: ASYNC109 (part of the API)
        """Wait until that many workers are ready and return the status. Without a number, wait until the cluster
        matches its spec. Raises TimedOut."""
        status = await wait_ready(self._started(), workers, _seconds(timeout), self._progress)
        self._report = Report(status)
        return status

    def __repr__(self) -> str:
        return card.text(type(self).__name__, self._name, self._spec, self._shown())

    def _card(self, note: str = "") -> card.Card:
        link = ""
        with contextlib.suppress(OarsError):  # not started, or closed
            link = self.dashboard_link
        return card.Card(
            self._name, self._spec, self._shown(), link, tuple(self._meter.kept) if self._meter else (), note
        )

    def _repr_html_(self) -> str:
        return card.html(self._card())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows. With ipywidgets it updates itself while the event loop runs."""
        shown = None
        with contextlib.suppress(RuntimeError):  # no event loop runs, so nothing could update it
            shown = self._live_view(asyncio.get_running_loop().create_task)
        return view.bundle(repr(self), self._repr_html_(), shown)

    def _live_view(self, submit: view.Submit) -> view.View | None:
        """The view of this cluster: one for all cells that show it. None: it cannot update itself here."""
        if self._handle is None or self._is_closed or not view.is_notebook() or not view.has_widgets():
            return self._view
        self._view = self._view or view.View(self, submit)
        self._view.start()
        return self._view

    def _shown(self) -> Report | None:
        """The newest report that is known without a request."""
        if self._handle is None or self._report is None:
            return None
        last = self._handle.last_report()
        return last if last and last.status.generation >= self._report.status.generation else self._report


def _with_numbers(report: Report, spec: ClusterSpec, generation: int) -> Report:
    """A report from before a change, with the numbers of workers that are desired since."""
    ready = {group.name: group.ready for group in report.status.groups}
    groups = tuple(GroupStatus(group.name, group.replicas, ready.get(group.name, 0)) for group in spec.workers)
    return replace(report, status=replace(report.status, groups=groups, generation=generation))


def _keyword(field: str) -> str:
    return f"{field}="


_exit = threading.Event()  # set when Python ends


def _stop_when_collected(
    cluster: AsyncCluster, handle: ClusterHandle, engine: str, clients: list[Any]
) -> weakref.finalize[Any, Any]:
    finalizer = weakref.finalize(cluster, _stop_at_exit, handle, os.getpid(), engine, clients)
    atexit.unregister(_exit.set)
    atexit.register(_exit.set)  # the last one that is registered runs first
    return finalizer


def _stop_at_exit(handle: ClusterHandle, owner: int, engine: str, clients: list[Any]) -> None:
    """Runs when the object is collected or Python ends, but not in a forked child. A client that is still in use would
    wait for the cluster, so its user gets a warning, and it is closed; in a thread, as it may be the collector's turn
    anywhere."""
    if os.getpid() != owner:
        return
    if clients and not _exit.is_set():
        warnings.warn(
            f"Cluster {handle.name!r} is stopped and its client closed, because nothing refers to the Cluster object "
            "any more. Keep it in a variable, or pass tied=False.",
            RuntimeWarning,
            stacklevel=3,  # the line that dropped the object; 2 is in weakref
        )
        threading.Thread(target=_disconnect_all, args=(engine, clients), daemon=True).start()
    handle.stop_at_exit()


def _disconnect_all(engine: str, clients: Sequence[Any]) -> None:
    session = engines.session(engines.get(engine))
    for client in clients:
        session.disconnect(client)


def generate_name(spec: ClusterSpec) -> str:
    return f"{spec.engine}-{secrets.token_hex(3)}"


def checked_name(name: str) -> str:
    """The name. Raises SpecError if it is not valid."""
    try:
        return check_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Example: demo-1.") from error


def _warn_of_modules(modules: str | None, place: str) -> None:
    if modules is not None and not capabilities(place).shares_files:
        warnings.warn(f"modules={modules!r} has no effect: pods import from their image only.", stacklevel=4)


def implied_place(engine: str | ClusterSpec) -> str | None:
    """kubernetes for a spec with a namespace, as only Kubernetes has namespaces."""
    if not isinstance(engine, ClusterSpec) or not (engine.namespace.name or engine.namespace.create):
        return None
    if "place" in engine.model_fields_set and not capabilities(engine.place).has_namespaces:
        message = f"namespace applies to Kubernetes only, but the spec's place is {engine.place!r}."
        raise SpecError(message, "Remove one of them.")
    return "kubernetes"


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
