"""Clusters on this machine. A keeper process reconciles each of them.

Client and keeper meet in the cluster's directory: the client writes the desired state, the keeper the observed one. If
a keeper died, the next client that needs it starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oars import engines
from oars.base import codec
from oars.base.errors import NotFound, OarsError, Replaced, SpecError, TimedOut
from oars.base.log import get_logger, pairs
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import STOP_SECONDS, WHOLE_LOG, CreateOptions, Driver, LogOptions, Progress
from oars.client.driver_env import PACKAGE_ROOT, make_driver
from oars.client.handles import with_workers
from oars.engines.base import Access
from oars.envs.build import Environments, PythonEnv
from oars.model import HEAD, Desired
from oars.places.intent import Intent
from oars.places.local import logs
from oars.places.local.defaults import defaults
from oars.places.local.machine import HOST, KILL_SECONDS, path_values, remove_cluster
from oars.places.local.process import CLUSTER, boot_id, has_ended, identify, wait_for_exit
from oars.places.local.store import STOP, ClusterRecord, Store, empty_report, name_in_use
from oars.places.process.ledger import read_ledger
from oars.places.report import Report
from oars.plan import desired as plan
from oars.plan.fill import fill_mapping
from oars.secure.secrets import cluster_secrets
from oars.spec.resources import show_memory
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.plan.changes import Change
    from oars.spec.cluster import ClusterSpec

KEEPER_ATTEMPTS = 3  # to start a keeper that stops the cluster; then the client stops it
KEEPER_SECONDS = 20.0  # for a keeper to start, on a busy machine
REPORT_SECONDS = 40.0
MAX_WORKERS = 200  # each is a process of at least 100 MB
UNREADABLE = (OarsError, ValueError, KeyError, TypeError, OSError)  # raised by a damaged record

log = get_logger(__name__)


class LocalBackend:
    """All local clusters of this user. See backend.Backend."""

    place = "local"

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self.environ = environ
        self.store = Store(settings.state_dir)
        self.environments = Environments(settings.cache_dir)

    async def login(self) -> None:
        """Nothing to do: the user of this process owns the clusters."""

    async def create(self, name: str, spec: ClusterSpec, options: CreateOptions) -> LocalHandle:
        return await asyncio.to_thread(self._create, name, spec, options)

    def _create(self, name: str, spec: ClusterSpec, options: CreateOptions) -> LocalHandle:
        desired, chosen = _plan(name, spec, tied=options.tied)
        existing = self.store.cluster(name)
        if existing.exists:
            if existing.read().boot == boot_id():
                raise name_in_use(name)
            remove_cluster(existing, KILL_SECONDS)
        self.store.open()
        env = self.prepare(spec, options.progress)
        record = ClusterRecord(
            name=name,
            intent=Intent(_dump(plan.with_memory(spec, chosen)), tied=options.tied),
            spec_desired=desired,
            python=str(env.python),
            mark=secrets.token_hex(16),
            created=time.time(),
            owner=identify(os.getpid()) if options.tied else None,
            boot=boot_id(),
            cwd=os.getcwd(),
            import_path=self._import_path(options.modules),
        )
        self.store.create(record, cluster_secrets(name, desired.shape.secrets))
        handle = LocalHandle(self, name, record.mark)
        handle.start_keeper()
        return handle

    def prepare(self, spec: ClusterSpec, progress: Progress) -> PythonEnv:
        """The Python for the members: the running one or a cached environment, which is built if it is missing."""
        needs = engines.get(spec.engine).needs(spec)
        return self.environments.prepare(spec.engine, needs, spec.environment.packages, progress)

    def cancel_create(self) -> None:
        self.environments.cancel()

    def _import_path(self, modules: str | None) -> tuple[str, ...]:
        """Absolute paths of the user's modules: the script's directory (or `modules`) and PYTHONPATH."""
        listed = (self.environ.get("PYTHONPATH") or "").split(os.pathsep)
        first = sys.path[0] if modules is None else modules
        return tuple(dict.fromkeys(os.path.abspath(path) for path in (first, *filter(None, listed))))

    def cluster(self, name: str) -> LocalHandle:
        return LocalHandle(self, name)

    async def list(self, *, all_namespaces: bool = False) -> list[LocalHandle]:
        return [LocalHandle(self, name) for name in self.store.names()]

    async def close(self) -> None:
        """Nothing to do: keepers run on their own."""


class LocalHandle:
    """One local cluster. See backend.ClusterHandle."""

    namespace = ""
    runs_as = "as local processes"

    def __init__(self, backend: LocalBackend, name: str, mark: str = "") -> None:
        """mark: identifies the cluster if this process created it; without one the handle is for any of that name."""
        self._backend = backend
        self.name = name
        self.directory = backend.store.cluster(name, mark)
        self._keeper: int | None = None  # pid, if this handle started it

    # keeper

    def start_keeper(self) -> None:
        code = f"import sys, os; sys.path.append({str(PACKAGE_ROOT)!r}); from oars.keeper.main import main; "
        path = str(self.directory.path)
        argv = [sys.executable, "-P", "-c", code + "sys.exit(main(sys.argv[1], os.environ))", path]
        output = (os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.directory.keeper_log), *output),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        environ = {**self._backend.environ, CLUSTER: path}
        self._keeper = os.posix_spawn(sys.executable, argv, environ, file_actions=actions, setsid=True)

    def _ensure_keeper(self) -> bool:
        """Start a keeper unless one runs or, started by this handle, is about to. True if one was started."""
        if self._keeper is not None and not has_ended(self._keeper):
            return False
        if self.directory.has_keeper or not self.directory.exists:  # in this order: it may be removed meanwhile
            return False
        self.start_keeper()
        return True

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the keeper, which is started if it does not run."""
        directory, deadline = self.directory, time.monotonic() + KEEPER_SECONDS
        while True:
            try:
                with _short_path(directory.socket) as path:
                    return await asyncio.open_unix_connection(path, limit=2**24)
            except (ConnectionError, FileNotFoundError):
                if not directory.exists:
                    raise NotFound(f"Cluster {self.name!r} has been stopped.") from None
            self._ensure_keeper()
            if time.monotonic() > deadline:
                message = f"The keeper of cluster {self.name!r} did not start within {KEEPER_SECONDS:.0f} s."
                raise OarsError(message, f"Read its log: {directory.keeper_log}.")
            await asyncio.sleep(0.02)  # poll: a directory cannot be awaited portably

    def _wake_keeper(self) -> None:
        """Connecting wakes the keeper. If there is none, start it."""
        try:
            with _connection(self.directory.socket, 1.0):
                return
        except OSError:
            self._ensure_keeper()

    # read

    def _check_exists(self) -> None:
        if self.directory.exists:
            return
        if self._backend.store.cluster(self.name).exists:
            raise Replaced(self.name)
        hint = suggest(self.name, self._backend.store.names()).strip() or "Run `oars ls` to list clusters."
        raise NotFound(f"There is no cluster {self.name!r}.", hint)

    def _record(self) -> ClusterRecord:
        self._check_exists()
        return self.directory.read()

    async def exists(self) -> bool:
        return self.directory.exists

    async def has_leftovers(self) -> bool:
        return False

    async def spec(self) -> ClusterSpec:
        return _load(self._record())

    async def generation(self) -> int:
        return self._record().intent.generation

    async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (see ClusterHandle)
        self._check_exists()
        try:
            record = self.directory.read()
        except NotFound:
            raise
        except UNREADABLE as error:
            return self._damaged(error)
        if record.boot != boot_id():
            message = f"The machine was restarted, which ended the cluster. Run `oars down {self.name}` to remove it."
            return Report(replace(empty_report(record).status, phase=Phase.STOPPED, reason="Rebooted", message=message))
        seconds = REPORT_SECONDS if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                async for report in self.watch():
                    if report.status.generation >= record.intent.generation:
                        return report
        except TimeoutError:
            message = f"No status for {self.name!r}: its keeper did not answer within {seconds:.0f} s."
            raise TimedOut(message, f"Read its log: {self.directory.keeper_log}.") from None
        raise NotFound(f"Cluster {self.name!r} has been stopped.")

    def _damaged(self, error: Exception) -> Report:
        message = f"The record of the cluster cannot be read ({type(error).__name__})."
        return Report(Status(self.name, "?", "local", Phase.FAILED, "Damaged", message))

    async def watch(self) -> AsyncIterator[Report]:
        """Continues with another keeper if the first one dies."""
        while True:
            self._check_exists()
            reader, writer = await self._connect()
            try:
                while line := await reader.readline():
                    report = codec.load(Report, json.loads(line))
                    yield report
                    if report.status.phase is Phase.STOPPED:
                        return
            except ConnectionError:
                continue
            finally:
                writer.close()
            if not self.directory.exists:
                return

    def last_report(self) -> Report | None:
        return self.directory.read_report()

    def fallback_status(self, problem: str) -> Status:
        try:
            report = self.directory.read_report() or empty_report(self.directory.read())
        except UNREADABLE as error:
            return self._damaged(error).status
        message = f"Last known status: {problem}"
        return replace(report.status, phase=Phase.DEGRADED, reason="KeeperSilent", message=message)

    # change

    async def scale(self, replicas: int, group: str | None = None, *, force: bool = False) -> None:
        await asyncio.to_thread(self._scale, replicas, group, force)

    def _scale(self, replicas: int, group: str | None, force: bool) -> None:
        def change(record: ClusterRecord) -> ClusterRecord:
            spec = with_workers(self.name, _load(record), replicas, group)
            desired, _ = _plan(self.name, spec, tied=record.intent.tied)
            return record.changed(desired, spec=_dump(spec), force=force)

        self._check_exists()
        self.directory.change(change)
        self._wake_keeper()

    async def diff(self, spec: ClusterSpec) -> list[Change]:
        from oars.client.local_diff import compare

        return compare(await self.spec(), spec)

    async def apply(self, spec: ClusterSpec, *, force: bool = False) -> None:
        """Change the numbers of workers, which is all that can change (see diff)."""
        before = await self.spec()
        for group in spec.workers:
            known = before.group(group.name)
            if known is not None and known.replicas != group.replicas:
                await self.scale(group.replicas, group.name, force=force)

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:  # noqa: ASYNC109 (see ClusterHandle)
        return await asyncio.to_thread(self._stop, timeout)

    def stop_at_exit(self) -> None:
        self._stop(STOP_SECONDS)

    def _stop(self, timeout: float) -> bool:
        """Needs no event loop: it also runs while Python shuts down."""
        directory, deadline, keepers = self.directory, time.monotonic() + timeout, 0
        try:
            if directory.read().boot != boot_id():
                remove_cluster(directory, timeout)
            else:
                directory.change(lambda record: record.changed(running=False))
        except (NotFound, FileNotFoundError):
            return True
        except OarsError:  # a record that the keeper cannot read either
            remove_cluster(directory, timeout)
        except OSError as error:  # a full disk; STOP is enough
            log.info(pairs("intent not written", cluster=self.name, error=error))
        while directory.exists and (left := deadline - time.monotonic()) > 0:
            try:
                with _connection(directory.socket, left) as connection:
                    connection.sendall(STOP)
                    wait_for_exit(_peer(connection), left)  # the keeper ends when it has cleaned up
            except (ConnectionError, FileNotFoundError):
                keepers += self._ensure_keeper()
                if keepers > KEEPER_ATTEMPTS:
                    remove_cluster(directory, left)
                time.sleep(0.05)  # poll: its socket does not exist yet, or its directory is being removed
        return not directory.exists

    # use

    async def open(self) -> None:
        self._check_exists()

    def access(self) -> Access:
        desired = self._record().desired
        shape = desired.shape
        head = read_ledger(self.directory.ledger_file).entries.get(HEAD)
        if head is None:
            raise OarsError(f"Cluster {self.name!r} has no head yet.", f"Run `oars why {self.name}`.")
        values = {**path_values(self.directory, head, shape.head.process), "head.host": HOST}
        values |= {f"head.{name}": str(port) for name, port in head.ports.items()}
        endpoints = fill_mapping(shape.endpoints, values)
        env = fill_mapping(shape.driver_env, values)
        dashboard, secret = endpoints.get("dashboard", ""), values.get(f"secret.{shape.dashboard_secret}", "")
        return Access(self.name, desired.engine, endpoints["client"], dashboard, env, secret)

    def driver(self) -> Driver:
        return make_driver(self._record().python, self.access(), self._backend.environ, self.directory.path)

    async def members(self) -> Sequence[str]:
        self._check_exists()
        return sorted(path.stem for path in self.directory.logs.glob("*.log"))

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        """One file holds the output of all starts of a member: `previous` does not apply."""
        with contextlib.suppress(FileNotFoundError):  # the member was removed
            async for line in logs.lines(self.directory.log_file(member), follow=options.follow, tail=options.tail):
                yield line


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(spec: ClusterSpec, memory: int) -> None:
    """Raise SpecError if a member would get more memory than the machine has; processors can be shared."""
    requests = [("head", spec.head.memory or 0)]
    requests += [(f"workers[{number}]", group.memory or 0) for number, group in enumerate(spec.workers)]
    for path, amount in requests:
        if amount > memory:
            message = f"spec.{path}.memory is {show_memory(amount)}, but this machine has only {show_memory(memory)}."
            raise SpecError(message, "Reduce it, or use `--place kubernetes`.")
    workers = sum(group.replicas for group in spec.workers)
    if workers > MAX_WORKERS:
        message = f"spec.workers requests {workers} workers, but one machine can run at most {MAX_WORKERS}."
        raise SpecError(message, "Request fewer, or use `--place kubernetes`.")


def _plan(name: str, spec: ClusterSpec, *, tied: bool) -> tuple[Desired, plan.Defaults]:
    """The desired state on this machine, and the defaults that it uses. Raises SpecError if it does not fit."""
    check_fits(spec, total_memory())
    chosen = defaults(spec, total_memory())
    return plan.build(name, spec, engines.get(spec.engine), chosen, tied=tied), chosen


def _dump(spec: ClusterSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def _load(record: ClusterRecord) -> ClusterSpec:
    from oars.spec.cluster import ClusterSpec  # loads pydantic, which `oars status` and `oars ls` do not need

    return ClusterSpec.model_validate(record.intent.spec)


def _peer(connection: socket.socket) -> int:
    """The pid at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


@contextmanager
def _connection(path: Path, seconds: float) -> Iterator[socket.socket]:
    with _short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(seconds)
        connection.connect(short)
        yield connection


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A path to a socket that fits the kernel's limit of 107 bytes, however deep its directory is."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
