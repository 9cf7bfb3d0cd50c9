"""Operations on clusters, wherever they run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oars.base.errors import Denied, NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.client.backend import (
    Backend,
    ClusterHandle,
    Driver,
    Location,
    Progress,
    SupportsCopy,
    SupportsExec,
    SupportsForward,
    capabilities,
    ignore,
    make_location,
    no_answer,
)
from oars.client.backends import backend_for, backends, find_cluster
from oars.client.drains import drain_workers, finish_work
from oars.client.handles import Bounds, adapt, scale, stop_adapting, wait_ready
from oars.client.samples import Sample, samples
from oars.places.report import Report
from oars.plan.changes import Change, Effect
from oars.service import logs
from oars.service.dashboard_proxy import serve_dashboard
from oars.service.logs import LogLine, LogRequest, unsupported
from oars.spec.status import Gone, Status

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster
    from oars.kube.exec import ExecSession
    from oars.spec.cluster import ClusterSpec

T = TypeVar("T")
FIND_SECONDS = 20.0  # for a backend to answer when a cluster is looked for
LIST_SECONDS = 3.0  # for a backend to list its clusters
LIST_REPORT_SECONDS = 5.0  # for one cluster in a list to report
SHELL_STARTUP = Path(__file__).with_name("shell_startup.py")
_READ_STDIN = "import sys; exec(compile(open(sys.argv.pop(1)).read(), 'oars shell', 'exec'))"


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Clusters, for each place that could not be listed the reason, and where those that could be listed are."""

    clusters: Sequence[T]
    problems: Mapping[str, str]
    where: Sequence[str] = ()


class Outcome(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Applied:
    """What apply() did."""

    outcome: Outcome
    changes: Sequence[Change]
    status: Status


@dataclass(frozen=True)
class Program:
    """A program to run on this machine. needs_connection: it can reach the cluster only while the caller keeps the
    context open in which it got the program."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    needs_connection: bool


@dataclass(frozen=True)
class Execution:
    """A command that runs in a member, or else a program for the caller to run."""

    session: ExecSession | None = None
    program: Program | None = None


@dataclass(frozen=True)
class Dashboard:
    """browser_url: what to start a browser with: other users can see its command line. forwarded: the URLs are valid
    while the context is open."""

    url: str
    browser_url: str
    forwarded: bool


class Service:
    """All operations on the clusters of a location. Each call opens the connections that it needs and closes them."""

    def __init__(self, environ: Mapping[str, str], location: Location | None = None) -> None:
        self.environ = environ
        self.location = location or Location()

    def reference(self, name: str, namespace: str = "") -> str:
        """The name of a cluster and the options with which an `oars` command finds it, for hints."""
        return self.location.reference(name, namespace)

    # find and list

    @asynccontextmanager
    async def cluster(
        self, name: str, *, leftovers: bool = False, besides: Collection[str] = ()
    ) -> AsyncIterator[ClusterHandle]:
        """The handle of a cluster. leftovers, besides: see find_cluster. Raises NotFound."""
        try:
            backend, handle = await find_cluster(
                name, self.location, self.environ, FIND_SECONDS, leftovers=leftovers, besides=besides
            )
        except TimeoutError:
            message = f"Kubernetes did not answer within {FIND_SECONDS:.0f} s."
            hint = "Check that the API server responds: `kubectl get --raw /readyz`."
            if self.location.place is None:
                message = f"There is no cluster {name!r} on this machine, and {message}"
                hint = f"{hint} Set the place to 'local' to skip Kubernetes."
            raise TimedOut(message, hint) from None
        try:
            yield handle
        finally:
            await backend.close()

    async def get(self, name: str) -> Report:
        """The status of a cluster and the causes of its problems."""
        async with self.cluster(name) as handle:
            return await handle.report()

    async def watch(self, name: str) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone."""
        async with self.cluster(name) as handle:
            async for report in handle.watch():
                yield report

    async def top(self, name: str, interval: float) -> AsyncGenerator[Sample]:
        """What the worker groups need, have and use, every `interval` seconds."""
        async with self.cluster(name) as handle:
            async for sample in samples(handle, interval):
                yield sample

    async def list(self, *, all_namespaces: bool = False) -> Listing[Status]:
        """The clusters of all backends. A cluster that does not report in time is listed with its last known status."""
        return await self._listing(_list_backend, all_namespaces)

    async def list_gone(self, *, all_namespaces: bool = False) -> Listing[Gone]:
        """The clusters of all backends that ended by themselves within the last day."""
        return await self._listing(_list_gone, all_namespaces)

    async def _listing(
        self, query: Callable[[Backend, bool], Awaitable[Sequence[T]]], all_namespaces: bool
    ) -> Listing[T]:
        """A backend that fails is a problem of the listing, unless it is the only one."""
        chosen = tuple(backends(self.location, self.environ))
        found = await asyncio.gather(*(_ask(each, query, all_namespaces) for each in chosen), return_exceptions=True)
        clusters: list[T] = []
        problems: dict[str, str] = {}
        where: list[str] = []
        for backend, result in zip(chosen, found, strict=True):
            if not isinstance(result, BaseException):
                clusters += result[0]
                where.append(result[1])
            elif isinstance(result, Denied) and all_namespaces:
                raise result  # the user asked for all of Kubernetes
            elif isinstance(result, OarsError) and len(chosen) > 1:
                problems[backend.place] = result.message
            else:
                raise result
        return Listing(clusters, problems, where)

    async def names(self) -> Sequence[str]:
        """All clusters of the location's place that can be changed from here; never those of Kubernetes unless the
        location names it, since they may belong to others."""
        backend = backend_for(self.location, self.environ)
        try:
            return [handle.name for handle in await backend.list() if not handle.host]
        finally:
            await backend.close()

    # create and change

    def new(
        self,
        name: str,
        spec: ClusterSpec,
        *,
        timeout: float,
        progress: Progress = ignore,
        tied: bool = False,
        modules: str | None = None,
    ) -> AsyncCluster:
        """A cluster that is not started yet. modules: a directory whose modules workers can import, if they see the
        files of this machine."""
        from oars.client.cluster import AsyncCluster, implied_place

        place = self.location.place or implied_place(spec) or spec.place
        modules = modules if capabilities(place).shares_files else None
        return AsyncCluster(
            spec, name=name, timeout=timeout, progress=progress, tied=tied, modules=modules, **asdict(self.location)
        )

    async def create(
        self,
        name: str,
        spec: ClusterSpec,
        *,
        timeout: float,  # noqa: ASYNC109 (building an environment does not count)
        progress: Progress = ignore,
        modules: str | None = None,
    ) -> Status:
        """Create a cluster that outlives this process, and wait until it is ready. If that fails, remove it again."""
        cluster = self.new(name, spec, timeout=timeout, progress=progress, modules=modules)
        await cluster.start()
        try:
            return await cluster.status()
        except asyncio.CancelledError:
            await cluster.stop()  # the caller does not learn that the cluster became ready
            raise
        finally:
            await cluster.close()

    async def diff(self, name: str, spec: ClusterSpec) -> Sequence[Change]:
        """What apply() would change; empty if nothing."""
        try:
            async with self._at(name, spec).cluster(name) as handle:
                return await handle.diff(spec)
        except NotFound:
            return (_new_cluster(name, spec),)

    async def apply(  # noqa: PLR0913 (all but two are keywords)
        self,
        name: str,
        spec: ClusterSpec,
        *,
        force: bool = False,
        modules: str | None = None,
        timeout: float,  # noqa: ASYNC109 (a change stays when it ends)
        progress: Progress = ignore,
        on_changes: Callable[[Outcome, Sequence[Change]], None] = lambda outcome, changes: None,
    ) -> Applied:
        """Create the cluster, or change it to this spec, and wait until it matches. `on_changes` is called before
        anything changes. force: do not drain workers. modules: as for create(). Raises SpecError if the cluster cannot
        be changed to this spec."""
        service = self._at(name, spec)
        async with AsyncExitStack() as stack:
            try:
                handle = await stack.enter_async_context(service.cluster(name))
                changes = await handle.diff(spec)
            except NotFound:
                changes = ()
            else:
                _check_allowed(changes, self.reference(name, handle.namespace))
                if changes:
                    on_changes(Outcome.CHANGED, changes)
                    await handle.apply(spec, force=force)
                status = await wait_ready(handle, None, timeout, progress)
                return Applied(Outcome.CHANGED if changes else Outcome.UNCHANGED, changes, status)
        changes = (_new_cluster(name, spec),)
        on_changes(Outcome.CREATED, changes)
        status = await service.create(name, spec, timeout=timeout, progress=progress, modules=modules)
        return Applied(Outcome.CREATED, changes, status)

    def _at(self, name: str, spec: ClusterSpec) -> Service:
        """The service for the location of a spec. The default place may stand for "not mentioned"; such a cluster is
        looked for everywhere, unless it has a namespace."""
        default = type(spec).model_fields["place"].default
        location = {**asdict(self.location), "namespace": spec.namespace_for(name, self.location.namespace)}
        if self.location.place is None and spec.place != default:
            location["place"] = spec.place
        is_chosen = location["place"] is not None
        return Service(self.environ, Location(**location) if is_chosen else make_location(str, **location))

    async def scale(  # noqa: PLR0913 (all but two are keywords)
        self,
        name: str,
        workers: int,
        *,
        timeout: float | None,  # noqa: ASYNC109 (the change stays when it ends)
        group: str | None = None,
        force: bool = False,
        progress: Progress = ignore,
        note: Progress = ignore,
    ) -> Status:
        """Set the number of workers and wait until they are ready; timeout None: do not wait. Autoscaling ends, and
        `note` is called with a sentence about that."""
        async with self.cluster(name) as handle:
            await handle.report()  # starts the keeper if it died, and fails early
            await scale(handle, workers, group, force=force, note=note)
            progress(f"{name}: scaling to {workers} {'worker' if workers == 1 else 'workers'}")
            if timeout is None:
                return (await handle.report()).status
            return await wait_ready(handle, None, timeout, progress)

    async def adapt(
        self, name: str, minimum: int | None, maximum: int | None, *, group: str | None = None, **options: Any
    ) -> Status:
        """Let the number of workers of a group follow the load, within these bounds; None: keep the present number, of
        all groups if none is named. `options` are other fields of `autoscale`."""
        async with self.cluster(name) as handle:
            if minimum is None or maximum is None:
                return await stop_adapting(handle, group)
            return await adapt(handle, Bounds(minimum, maximum, group, options))

    async def drain(
        self,
        name: str,
        members: Sequence[str],
        *,
        timeout: float | None,  # noqa: ASYNC109 (the request stays when it ends)
        force: bool = False,
        progress: Progress = ignore,
    ) -> Status:
        """Drain these workers and replace them, and wait until that is done; timeout None: do not wait. force: discard
        what they hold."""
        async with self.cluster(name) as handle:
            await handle.report()  # starts the keeper if it died, and fails early
            if timeout is None:
                await handle.drain(members, force=force)
                return (await handle.report()).status
            return await drain_workers(handle, members, timeout, force=force, progress=progress)

    async def stop(
        self,
        names: Sequence[str],
        timeout: float,  # noqa: ASYNC109 (they stop nevertheless)
        *,
        drain: float | None = None,
        progress: Progress = ignore,
    ) -> Mapping[str, OarsError | None]:
        """Stop clusters concurrently and remove everything that belongs to them. The error of each; None: stopped.
        drain: wait so many seconds for the work of each; a cluster that has not finished by then continues to run."""

        async def stop_one(name: str) -> OarsError | None:
            try:
                async with self.cluster(name, leftovers=True, besides=wanted) as handle:
                    if drain is not None and await handle.exists():
                        await finish_work(handle, drain, progress)
                    if await handle.stop(timeout):
                        return None
                    hint = f"It continues to stop; run `oars why {self.reference(name, handle.namespace)}`."
                    return TimedOut(f"Cluster {name!r} did not stop within {timeout:.0f} s.", hint)
            except OarsError as error:
                return error

        wanted = list(dict.fromkeys(names))
        return dict(zip(wanted, await asyncio.gather(*map(stop_one, wanted)), strict=True))

    # logs, programs, files

    async def log_members(self, name: str, request: LogRequest) -> Sequence[str]:
        """The members whose logs the request is for."""
        async with self.cluster(name) as handle:
            return await logs.members(handle, request)

    async def logs(self, name: str, request: LogRequest, on_trouble: Progress = ignore) -> AsyncIterator[LogLine]:
        """Lines of one member's log or of all. `on_trouble` is called with what cannot be read."""
        async with self.cluster(name) as handle:
            async for line in logs.read(handle, request, on_trouble):
                yield line

    @asynccontextmanager
    async def exec(  # noqa: PLR0913 (all but two are keywords)
        self,
        name: str,
        command: Sequence[str],
        *,
        local: bool = False,
        member: str | None = None,
        container: str | None = None,
        interactive: bool = False,
        tty: bool = False,
    ) -> AsyncIterator[Execution]:
        """Run a command that can connect to the cluster: in a member if the cluster supports it, else (or if `local`)
        on this machine. Without a command: Python with the client connected, `interactive` or reading from stdin."""
        if local and (member or container):
            message = "A command cannot run on this machine and in a container."
            raise UsageError(message, "Omit `local`, or omit the member and the container.")
        async with self.cluster(name) as handle:
            if isinstance(handle, SupportsExec) and not local:
                yield Execution(await handle.exec(command, member or "head", container, tty=tty))
                return
            if given := [word for word, value in (("member", member), ("container", container)) if value]:
                hint = f"Omit the {' and the '.join(given)}."
                raise unsupported(handle, "there are no containers to run in", hint)
            await handle.report()  # starts the keeper if it died, and fails early
            await handle.open()
            needs_connection = isinstance(handle, SupportsForward)
            at = self.location
            location = {"namespace": handle.namespace, "context": at.context, "kubeconfig": at.kubeconfig}
            location = location if handle.namespace else {"place": "local"}
            yield Execution(program=_program(handle.driver(), command, interactive, needs_connection, location))

    async def copy_to(
        self,
        name: str,
        source: Path,
        target: str,
        *,
        member: str = "head",
        container: str | None = None,
        progress: Progress = ignore,
    ) -> None:
        """Copy a file or directory of this machine into a member."""
        async with self.cluster(name) as handle:
            copier = _require_copy(handle, "to", f"cp {source} {target}")
            progress(f"copying {source} to {name}:{target}")
            await copier.copy_to(source, target, member, container)

    async def copy_from(
        self,
        name: str,
        source: str,
        target: Path,
        *,
        member: str = "head",
        container: str | None = None,
        progress: Progress = ignore,
    ) -> None:
        """Copy a file or directory of a member to this machine."""
        async with self.cluster(name) as handle:
            copier = _require_copy(handle, "from", f"cp {source} {target}")
            progress(f"copying {name}:{source} to {target}")
            await copier.copy_from(source, target, member, container)

    @asynccontextmanager
    async def forward_dashboard(self, name: str, port: int | None = None) -> AsyncIterator[Dashboard]:
        """The engine's dashboard, on a local port if it has to be forwarded or requires a token."""
        async with self.cluster(name) as handle, AsyncExitStack() as stack:
            token = await handle.dashboard_token()
            if isinstance(handle, SupportsForward):
                url = await stack.enter_async_context(handle.forward_dashboard(0 if token else port or 0))
            else:
                if port is not None and not token:
                    raise unsupported(handle, "its dashboard is not forwarded", "Omit the port.")
                await handle.report()  # starts the keeper if it died, and fails early
                url = handle.access().dashboard
                if not url:
                    raise NotFound(f"The engine of cluster {name!r} has no dashboard.")
            if not token:
                yield Dashboard(url, url, isinstance(handle, SupportsForward))
                return
            proxy = await stack.enter_async_context(serve_dashboard(url, token, port or 0))
            yield Dashboard(proxy.url, proxy.one_time_url, True)


async def _ask(
    backend: Backend, query: Callable[[Backend, bool], Awaitable[Sequence[T]]], all_namespaces: bool
) -> tuple[Sequence[T], str]:
    """What the query returns, and where that is."""
    try:
        await backend.login()
        return await query(backend, all_namespaces), backend.where(all_namespaces=all_namespaces)
    except TimeoutError:
        raise no_answer(backend.place, "clusters", LIST_SECONDS) from None
    finally:
        await backend.close()


async def _list_backend(backend: Backend, all_namespaces: bool) -> Sequence[Status]:
    async with asyncio.timeout(LIST_SECONDS):
        handles = await backend.list(all_namespaces=all_namespaces)
    found = await asyncio.gather(*map(_list_status, handles))
    return [status for status in found if status is not None]


async def _list_gone(backend: Backend, all_namespaces: bool) -> Sequence[Gone]:
    async with asyncio.timeout(LIST_SECONDS):
        return await backend.gone(all_namespaces=all_namespaces)


async def _list_status(handle: ClusterHandle) -> Status | None:
    """None: the cluster is gone by now."""
    try:
        return (await handle.report(LIST_REPORT_SECONDS)).status
    except NotFound:
        return None
    except OarsError as error:
        return handle.fallback_status(error.message)


def _new_cluster(name: str, spec: ClusterSpec) -> Change:
    groups = ", ".join(f"{group.name} {group.replicas}" for group in spec.workers)
    return Change(Effect.ADDED, f"Cluster {name!r} is new, with a head and workers: {groups}.")


def _check_allowed(changes: Sequence[Change], reference: str) -> None:
    refused = [change for change in changes if change.effect is Effect.REFUSED]
    if refused:
        hint = f"Remove the cluster with `oars down {reference}` and create it again, or choose another name."
        raise SpecError(refused[0].message, hint, tuple(line for change in refused for line in change.lines))


def _program(
    driver: Driver,
    command: Sequence[str],
    interactive: bool,
    needs_connection: bool,
    location: Mapping[str, str | None],
) -> Program:
    """Without a command: Python. It offers completion and history only if it starts without a script, so the script
    that connects the client runs as PYTHONSTARTUP. `location`: with which it attaches to the cluster."""
    if command:
        return Program(tuple(command), driver.env, needs_connection)
    env = {**driver.env, "OARS_SHELL_STARTUP": driver.env.get("PYTHONSTARTUP", ""), "PYTHONSTARTUP": str(SHELL_STARTUP)}
    env["OARS_SHELL_LOCATION"] = json.dumps(location)
    argv = (driver.python, "-q") if interactive else (driver.python, "-c", _READ_STDIN, str(SHELL_STARTUP))
    return Program(argv, env, needs_connection)


def _require_copy(handle: ClusterHandle, direction: str, command: str) -> SupportsCopy:
    if not isinstance(handle, SupportsCopy):
        hint = f"Its members use the files of the machine: `{command}`."
        raise unsupported(handle, f"there are no containers to copy {direction}", hint)
    return handle
