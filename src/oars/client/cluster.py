"""AsyncCluster: a cluster as an object. Everything is written once here, async; sync.py has the plain face."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oars import engines
from oars.base.errors import ClusterLost, NotFound, OarsError, SpecError, StartFailed, TimedOut
from oars.client import card
from oars.client.backend import Backend, Driver, Making, Reading
from oars.client.backends import Where, backend_for, find_backend
from oars.client.local_clusters import STOP_SECONDS
from oars.engines.base import Access
from oars.model import HEAD, Cause
from oars.places.report import Report
from oars.spec import load, resources
from oars.spec.cluster import ClusterSpec, check_name
from oars.spec.status import MemberStatus, Phase, Status

DEFAULT_TIMEOUT = "2m"
LAST_LINES = 12

Watcher = Callable[[str], None]


def quiet(_: str) -> None:
    """Progress that nobody wants to see."""


class AsyncCluster:
    """A running cluster. `await AsyncCluster("dask", workers=3)` or `async with AsyncCluster(…) as c`.

    engine: "dask", "ray", "mars", a plug-in's name, or a whole ClusterSpec; the other arguments then override it.
    modules: a directory whose modules the workers can import; that of the running script if it is not given.
    """

    def __init__(  # noqa: PLR0913 (the one call that users make; all but the first by name)
        self,
        engine: str | ClusterSpec,
        *,
        workers: int | None = None,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        name: str | None = None,
        place: str | None = None,
        packages: Sequence[str] | None = None,
        image: str | None = None,
        where: Where | None = None,
        timeout: float | str = DEFAULT_TIMEOUT,
        progress: Watcher = quiet,
        tied: bool = True,
        modules: str | None = None,
    ) -> None:
        where = where or Where()
        wanted = {"workers": workers, "cpu": cpu, "memory": memory, "place": place or where.place}
        self._spec = _spec(engine, {**wanted, "packages": packages, "image": image})
        self._timeout = _seconds(timeout)
        self._progress = progress
        self._tied = tied
        self._modules = modules
        self._home: Backend = backend_for(self._spec.place, where, os.environ)
        self._name = _checked_name(name) if name else f"{self._spec.engine}-{secrets.token_hex(3)}"
        self._clients: list[Any] = []
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @classmethod
    def from_file(cls, path: str | Path, *, sets: Sequence[str] = (), **arguments: Any) -> Self:
        """The cluster that a file describes; arguments override it."""
        manifest = load.load_file(Path(path), sets)
        return cls(manifest.spec, **{"name": manifest.name, **arguments})

    @classmethod
    async def attach(cls, name: str, **arguments: Any) -> Self:
        """A cluster that is there already, whoever started it. Closing it does not stop it."""
        home = await find_backend(_checked_name(name), arguments.get("where") or Where(), os.environ)
        return await cls._at_home(home, name, **arguments)

    @classmethod
    async def _at_home(cls, home: Backend, name: str, **arguments: Any) -> Self:
        """The same, in a home that was found; it is let go with the cluster, or at once if that cannot be had."""
        try:
            cluster = cls(await home.spec(name), name=name, **{**arguments, "tied": False})
            await cluster._home.close()
            cluster._home = home
            await home.report(name)
            await home.open(name)
        except BaseException:
            await home.close()
            raise
        return cluster

    # life

    async def start(self) -> Self:
        """Start it and wait until all workers are ready, or as many as the description wants to wait for (min_ready).
        What fails is taken away again."""
        _check_gate(self._spec)
        making = asyncio.ensure_future(self._create())
        try:
            await asyncio.shield(making)
            await self._wait_ready(self._spec.min_ready, time.monotonic() + self._timeout)
            await self._home.open(self._name)
        except BaseException:
            await self._unmake(making)
            raise
        return self

    async def _create(self) -> None:
        how = Making(self._tied, self._progress, self._modules)
        await self._home.create(self._name, self._spec, how)
        if self._tied:
            self._finalizer = weakref.finalize(self, _stop_if_owner, self._home, self._name, os.getpid())

    async def _unmake(self, making: asyncio.Future[None]) -> None:
        """Take away what was made; not a cluster of the same name that was there before us."""
        self._home.cancel()
        await asyncio.wait([making])
        if making.exception() is None:
            await self._home.stop(self._name, wait=STOP_SECONDS)
            if self._finalizer is not None:
                self._finalizer.detach()
        await self._home.close()

    def __await__(self) -> Any:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, and stop the cluster if we started it."""
        clients, self._clients = self._clients, []
        try:
            for client in clients:
                session = engines.session(engines.get(self._spec.engine))
                await asyncio.to_thread(session.disconnect, client)
        finally:
            if self._finalizer is not None and self._finalizer.detach():
                await self._home.stop(self._name, wait=STOP_SECONDS)
            await self._home.close()

    async def stop(self) -> None:
        """Stop the cluster, whoever started it."""
        if not await self._home.stop(self._name, wait=STOP_SECONDS):
            raise TimedOut(f"The cluster {self._name!r} did not stop in time.", f"`oars why {self._name}` says more.")

    # what it is

    @property
    def name(self) -> str:
        return self._name

    @property
    def engine(self) -> str:
        return self._spec.engine

    @property
    def place(self) -> str:
        return self._spec.place

    @property
    def address(self) -> str:
        """Where the engine's own client connects to."""
        return self._access().address

    @property
    def dashboard_link(self) -> str:
        return self._access().dashboard

    def _access(self) -> Access:
        return self._home.access(self._name)

    async def status(self) -> Status:
        return (await self._home.report(self._name)).status

    async def members(self) -> tuple[MemberStatus, ...]:
        return (await self.status()).members

    async def why(self) -> tuple[Cause, ...]:
        """What keeps it from being as wanted, and what to do about it; empty if nothing does."""
        return (await self._home.report(self._name)).causes

    # use

    async def client(self) -> Any:
        """The engine's own client, connected: distributed.Client, the initialised ray module, or the Mars session."""
        session = engines.session(engines.get(self._spec.engine))
        client = await asyncio.to_thread(session.connect, self._access())
        self._clients.append(client)
        return client

    def executor(self) -> Executor:
        """A concurrent.futures.Executor that runs on the cluster."""
        return engines.session(engines.get(self._spec.engine)).executor(self._access())

    def driver(self) -> Driver:
        """The Python and the environment with which a program finds this cluster in the engine's own words."""
        return self._home.driver(self._name)

    async def logs(self, member: str | None = None, *, tail: int | None = None) -> str:
        """The log of one member, or of all with the member's name before each line."""
        known = await self._home.members(self._name)
        if member is not None:
            self._check_member(member, known)
            return "\n".join([line async for line in self._home.lines(self._name, member, Reading(tail=tail))])
        found = []
        for each in known:
            found += [f"[{each}] {line}" async for line in self._home.lines(self._name, each, Reading(tail=tail))]
        return "\n".join(found)

    async def follow_logs(self, member: str, *, tail: int | None = None) -> AsyncIterator[str]:
        """Lines as they come, until the member is removed."""
        self._check_member(member, await self._home.members(self._name))
        async for line in self._home.lines(self._name, member, Reading(follow=True, tail=tail)):
            yield line

    def _check_member(self, member: str, known: Sequence[str]) -> None:
        if member not in known:
            raise NotFound(f"The cluster {self._name!r} has no member {member!r}.", f"It has: {', '.join(known)}.")

    # change

    async def scale(self, workers: int, *, group: str | None = None, force: bool = False) -> None:
        """Ask for another number of workers. Those that go hand over what they hold first, unless `force`."""
        await self._home.scale(self._name, workers, group, force=force)

    async def wait(self, workers: int | None = None, *, timeout: float | str = DEFAULT_TIMEOUT) -> Status:  # noqa: ASYNC109
        """Until that many workers are ready; without a number, until everything is as wanted."""
        return await self._wait_ready(workers, time.monotonic() + _seconds(timeout))

    async def _wait_ready(self, workers: int | None, deadline: float) -> Status:
        last: Report | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                async for report in self._home.watch(self._name):
                    if report.status.generation < await self._home.generation(self._name):
                        continue
                    last = report
                    self._progress(_progress_line(report))
                    if _settled(report.status, workers):
                        return report.status
                    _raise_if_hopeless(report)
        except TimeoutError:
            raise await self._timed_out(last) from None
        raise ClusterLost(f"The cluster {self._name!r} was stopped while we waited for it.")

    async def _timed_out(self, last: Report | None) -> TimedOut:
        cause = last.causes[0] if last and last.causes else Cause("", "Its keeper has not said anything yet.")
        lines = cause.lines or await self._last_lines()
        ready = f"{last.status.ready} of {last.status.wanted} workers are ready" if last else "nothing is ready"
        message = f"The cluster {self._name!r} is not as wanted in time: {ready}. {cause.message}"
        return TimedOut(message, cause.hint or "Allow more time with --timeout (timeout=).", lines)

    async def _last_lines(self) -> tuple[str, ...]:
        """Of all members; where they cannot be had (a container that never started), why we wait says enough."""
        try:
            return tuple((await self.logs(tail=LAST_LINES)).splitlines()[-LAST_LINES:])
        except OarsError:
            return ()

    # show

    def __repr__(self) -> str:
        report = self._home.last_seen(self._name)
        return card.text(type(self).__name__, self._name, self._spec, report)

    def _repr_html_(self) -> str:
        report = self._home.last_seen(self._name)
        return card.html(self._name, self._spec, report)


async def attach_at(home: Backend, name: str, **arguments: Any) -> AsyncCluster:
    """As AsyncCluster.attach, for whoever has found the home already."""
    return await AsyncCluster._at_home(home, name, **arguments)


def _stop_if_owner(home: Backend, name: str, owner: int) -> None:
    """Run at close, when the object is collected, or when Python ends; not in a forked copy of the owner."""
    if os.getpid() == owner:
        home.stop_at_exit(name)


def _spec(engine: str | ClusterSpec, wanted: Mapping[str, Any]) -> ClusterSpec:
    if isinstance(engine, ClusterSpec):
        base: Mapping[str, Any] = engine.model_dump(mode="json", by_alias=True)
    elif isinstance(engine, str):
        base = {"engine": engine}
    else:
        raise SpecError(f"{engine!r} is no engine.", "Give a name such as 'dask', or a ClusterSpec.")
    return load.build(base, overrides=wanted).spec


def _check_gate(spec: ClusterSpec) -> None:
    """Not where descriptions are checked: a cluster that runs may be scaled below it, as nobody waits any more."""
    workers = sum(group.replicas for group in spec.workers)
    if spec.min_ready is not None and spec.min_ready > workers:
        sentence = f"minReady waits for {spec.min_ready} workers, and the cluster has {workers}."
        raise SpecError(sentence, "Ask for more workers, or wait for fewer.")


def _checked_name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Example: demo-1.") from error


def _seconds(value: float | str) -> float:
    try:
        return resources.duration(value)
    except ValueError as error:
        raise SpecError(f"timeout: {error}.") from error


def _settled(status: Status, workers: int | None) -> bool:
    """Ready as asked: the head, and so many workers. Without a number nobody may still be on the way out."""
    if workers is not None:
        is_up = any(member.id == HEAD and member.phase is Phase.READY for member in status.members)
        return is_up and status.ready >= workers
    leaving = any(member.phase is Phase.STOPPING for member in status.members)
    return status.phase is Phase.READY and not leaving


def _raise_if_hopeless(report: Report) -> None:
    """A member that dies again and again will not become ready by waiting."""
    for cause in report.causes:
        if cause.reason == "CrashLoop":
            raise StartFailed(cause.message, cause.hint, cause.lines)
    if report.status.phase is Phase.FAILED:
        raise StartFailed(report.status.message or "The cluster failed.")


def _progress_line(report: Report) -> str:
    status = report.status
    message = f": {status.message}" if status.message else ""
    return f"{status.name}: {status.phase}, {status.ready}/{status.wanted} workers ready{message}"
