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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oars import engines
from oars.base import codec
from oars.base.errors import NotFound, OarsError, OtherHost, Replaced, SpecError, TimedOut
from oars.base.log import get_logger, pairs
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import STOP_SECONDS, WHOLE_LOG, CreateOptions, Driver, LogOptions, Progress, Usage
from oars.client.drains import check_workers, with_drains
from oars.client.driver_env import PACKAGE_ROOT, make_driver, without_cluster
from oars.engines.base import Access
from oars.envs.build import Environments, PythonEnv
from oars.model import HEAD, Desired, Role
from oars.places.hosts.worker import read_state
from oars.places.intent import Intent
from oars.places.local import logs
from oars.places.local.defaults import defaults
from oars.places.local.endings import read_gone
from oars.places.local.host import Residence, this_host
from oars.places.local.machine import HOST, KILL_SECONDS, path_values, read_secret, remove_cluster
from oars.places.local.memory import usable_memory
from oars.places.local.process import CLUSTER, has_ended, identify, is_supported, marked, usage_of, wait_for_exit
from oars.places.local.store import STOP, ClusterRecord, Store, empty_report, name_in_use
from oars.places.process.ledger import Entry, read_ledger
from oars.places.process.link import Link
from oars.places.report import Report
from oars.plan import desired as plan
from oars.plan.fill import fill_mapping
from oars.secure.secrets import cluster_secrets
from oars.spec.resources import show_duration, show_memory
from oars.spec.status import Endpoints, Gone, Phase, Status

if TYPE_CHECKING:
    from oars.plan.changes import Change
    from oars.spec.cluster import ClusterSpec

KEEPER_ATTEMPTS = 3  # to start a keeper that stops the cluster; then the client stops it
KEEPER_SECONDS = 20.0  # for a keeper to start, on a busy machine
REPORT_SECONDS = 40.0
MAX_WORKERS = 200  # each is a process of at least 100 MB
REBOOTED = "The machine was restarted, which ended the cluster."
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
        if not is_supported():
            raise OarsError("Local clusters need Linux with /proc.", "Use `--place kubernetes`, or run Oars on Linux.")
        desired, chosen = _plan(name, spec, usable_memory(self.environ), tied=options.tied)
        self.check_free(name)
        private = cluster_secrets(name, desired.shape.secrets)
        return self.create_planned(plan.with_memory(spec, chosen), desired, options, private)

    def check_free(self, name: str) -> None:
        """Raise NameInUse if a cluster of that name runs. Remove one that has ended."""
        existing = self.store.cluster(name)
        if not existing.exists:
            return
        before = existing.read()
        match existing.residence(before):
            case Residence.HERE if before.owner is None or before.owner.alive() or existing.has_keeper:
                raise name_in_use(name)
            case Residence.ELSEWHERE:
                raise name_in_use(name, before.host.describe(this_host()))
            case _:  # a restart of the machine ended it, or its owner and its keeper were killed
                remove_cluster(existing, KILL_SECONDS)

    def create_planned(
        self, spec: ClusterSpec, desired: Desired, options: CreateOptions, private: Mapping[str, bytes],
        link: Link | None = None,
    ) -> LocalHandle:  # fmt: skip
        """Create a cluster whose desired state is known. `private`: its secrets."""
        name = desired.name
        self.store.open()
        env = self.prepare(spec, options.progress)
        record = ClusterRecord(
            name=name,
            intent=Intent(_dump(spec), tied=options.tied),
            spec_desired=desired,
            python=str(env.python),
            mark=secrets.token_hex(16),
            created=time.time(),
            owner=identify(os.getpid()) if options.tied else None,
            host=this_host(),
            cwd=options.cwd or os.getcwd(),
            import_path=self._import_path(options.modules),
            link=link,
            job=options.job,
        )
        self.store.create(record, private)
        handle = LocalHandle(self, name, record.mark)
        handle.start_keeper()
        return handle

    def prepare(self, spec: ClusterSpec, progress: Progress) -> PythonEnv:
        """The Python for the members: the running one or a cached environment, which is built if it is missing."""
        needs = engines.get(spec.engine).needs(spec)
        return self.environments.prepare(spec.engine, needs, spec.environment.packages, progress)

    def where(self, *, all_namespaces: bool = False) -> str:
        return "on this machine"

    async def explain_missing(self, name: str) -> NotFound | None:
        """Every cluster on this machine has a record, but one that ended by itself is only remembered."""
        found = [gone for gone in read_gone(self.store.root) if gone.name == name]
        if not found:
            return None
        ago = show_duration(time.time() - found[-1].ended)
        message = f"There is no cluster {name!r} {self.where()}: it ended by itself {ago} ago, {found[-1].message}."
        return NotFound(message, "`oars ls --gone` lists all such clusters.")

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

    async def gone(self, *, all_namespaces: bool = False) -> Sequence[Gone]:
        return read_gone(self.store.root)

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

    @property
    def host(self) -> str:
        try:
            record = self.directory.read()
        except UNREADABLE:
            return ""
        is_elsewhere = self.directory.residence(record) is Residence.ELSEWHERE
        return record.host.describe(this_host()) if is_elsewhere else ""

    async def usage(self) -> dict[str, Usage]:
        return await asyncio.to_thread(_usage, self._own_record().mark)

    def _own_record(self) -> ClusterRecord:
        """The record of a cluster that this host and user may change. Raises OtherHost, or NotFound if the cluster
        ended when the machine was restarted."""
        record = self._record()
        if self._has_ended(record):
            raise NotFound(REBOOTED, f"Run `oars down {self.name}` to remove it.")
        return record

    def _has_ended(self, record: ClusterRecord) -> bool:
        """True if the machine was restarted since. Raises OtherHost."""
        residence = self.directory.residence(record)
        if residence is Residence.ELSEWHERE:
            raise OtherHost(self.name, record.host.describe(this_host()), self.directory.path)
        return residence is Residence.ENDED

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
        environ = {**without_cluster(self._backend.environ), CLUSTER: path}  # or another cluster would sweep it
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

    def sized(self, spec: ClusterSpec) -> ClusterSpec:
        return spec  # the record has the sizes

    async def generation(self) -> int:
        return self._record().intent.generation

    async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (see ClusterHandle)
        return self._dated(await self._report(timeout))

    def _dated(self, report: Report) -> Report:
        """With the time at which the cluster was created, which its keeper does not report."""
        with contextlib.suppress(*UNREADABLE):
            return replace(report, status=replace(report.status, created=self.directory.read().created))
        return report

    async def _report(self, timeout: float | None) -> Report:  # noqa: ASYNC109 (see ClusterHandle)
        self._check_exists()
        try:
            record = self.directory.read()
        except NotFound:
            raise
        except UNREADABLE as error:
            return self._damaged(error)
        match self.directory.residence(record):
            case Residence.ELSEWHERE:
                return self._of_other_host(record)
            case Residence.ENDED:
                message = f"{REBOOTED} Run `oars down {self.name}` to remove it."
                status = empty_report(record).status
                return Report(replace(status, phase=Phase.STOPPED, reason="Rebooted", message=message))
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

    def _of_other_host(self, record: ClusterRecord) -> Report:
        """The last report of the keeper there. Its endpoints are of no use here."""
        host = record.host.describe(this_host())
        status = (self.directory.read_report() or empty_report(record)).status
        message = f"It belongs to {host}, which shares this state directory. This is its last report."
        return Report(replace(status, endpoints=Endpoints(), reason="OtherHost", message=message, host=host))

    def _damaged(self, error: Exception) -> Report:
        message = f"The record of the cluster cannot be read ({type(error).__name__})."
        return Report(Status(self.name, "?", "local", Phase.FAILED, "Damaged", message))

    async def watch(self) -> AsyncIterator[Report]:
        """Continues with another keeper if the first one dies."""
        while True:
            self._own_record()
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
        return replace(self._dated(report).status, phase=Phase.DEGRADED, reason="KeeperSilent", message=message)

    # change

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool = False) -> None:
        await asyncio.to_thread(self._change, change, force)

    def _change(self, change: Callable[[ClusterSpec], ClusterSpec], force: bool) -> None:
        def changed(record: ClusterRecord) -> ClusterRecord:
            spec = change(_load(record))
            memory = usable_memory(self._backend.environ)
            desired, _ = _plan(self.name, spec, memory, tied=record.intent.tied)
            return record.changed(desired, spec=_dump(spec), force=force)

        self._require_own_workers()
        self.directory.change(changed)
        self._wake_keeper()

    def _require_own_workers(self) -> None:
        if self._own_record().link is not None:
            message = f"{self.name!r} is a part of a cluster over several machines, which have their own workers."
            raise OarsError(message, "Start or stop `oars worker` on a machine instead.")

    async def drain(self, members: Sequence[str], *, force: bool = False) -> None:
        self._require_own_workers()
        entries = read_ledger(self.directory.ledger_file).entries
        present: dict[str, str] = {
            entry.id: str(entry.incarnation) for entry in entries.values() if entry.role is Role.WORKER
        }
        check_workers(self.name, members, present)
        chosen = {member: present[member] for member in members}
        await asyncio.to_thread(self._change_intent, lambda intent: with_drains(intent, chosen, present, force=force))

    async def drain_all(self, wanted: bool) -> None:
        self._own_record()
        await asyncio.to_thread(self._change_intent, lambda intent: intent.changed(drain_all=wanted))

    def _change_intent(self, change: Callable[[Intent], Intent]) -> None:
        self.directory.change(lambda record: replace(record, intent=change(record.intent)))
        self._wake_keeper()

    async def diff(self, spec: ClusterSpec) -> list[Change]:
        from oars.client.local_diff import compare

        return compare(await self.spec(), spec)

    async def apply(self, spec: ClusterSpec, *, force: bool = False) -> None:
        """Change numbers of workers and autoscaling, which is all that can change (see diff)."""
        from oars.client.local_diff import with_numbers

        await self.change(lambda before: with_numbers(before, spec), force=force)

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:  # noqa: ASYNC109 (see ClusterHandle)
        return await asyncio.to_thread(self._stop, timeout)

    def stop_at_exit(self) -> None:
        self._stop(STOP_SECONDS)

    def _stop(self, timeout: float) -> bool:
        """Needs no event loop: it also runs while Python shuts down."""
        directory, deadline, keepers = self.directory, time.monotonic() + timeout, 0
        try:
            if self._has_ended(directory.read()):
                remove_cluster(directory, timeout)
            else:
                directory.change(lambda record: record.changed(running=False))
        except (NotFound, FileNotFoundError):
            return True
        except OtherHost:
            raise
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
        self._own_record()

    def access(self) -> Access:
        record = self._own_record()
        desired, shape = record.desired, record.desired.shape
        head = Entry(HEAD, Role.HEAD, "head")
        values = {**path_values(self.directory, head, shape.head.process), **self._head_values(record)}
        endpoints = fill_mapping(shape.endpoints, values)
        env = fill_mapping(shape.driver_env, values)
        return Access(self.name, desired.engine, endpoints["client"], endpoints.get("dashboard", ""), env)

    def _head_values(self, record: ClusterRecord) -> dict[str, str]:
        """Where the head is: on this machine, or where its own machine says."""
        host, ports = HOST if record.link is None else record.link.host, None
        if record.link is not None and record.link.role is Role.WORKER:
            if (state := read_state(self.directory)) is not None and state.head is not None:
                host, ports = state.head.host, state.head.ports
        elif (head := read_ledger(self.directory.ledger_file).entries.get(HEAD)) is not None:
            ports = head.ports
        if ports is None:
            raise OarsError(f"Cluster {self.name!r} has no head yet.", f"Run `oars why {self.name}`.")
        return {"head.host": host, **{f"head.{name}": str(port) for name, port in ports.items()}}

    async def dashboard_token(self) -> str:
        secret = self._record().desired.shape.dashboard_secret
        return read_secret(self.directory, secret) if secret else ""

    def driver(self) -> Driver:
        record = self._record()
        files = record.desired.shape.driver_files
        return make_driver(record.python, self.access(), self._backend.environ, self.directory.path, files)

    async def members(self) -> Sequence[str]:
        self._check_exists()
        return sorted(path.stem for path in self.directory.logs.glob("*.log"))

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        """One file holds the output of all starts of a member: `previous` does not apply."""
        with contextlib.suppress(FileNotFoundError):  # the member was removed
            path, since = self.directory.log_file(member), options.since
            async for line in logs.lines(path, follow=options.follow, tail=options.tail, since=since):
                yield line


def check_fits(spec: ClusterSpec, memory: int) -> None:
    """Raise SpecError if a member would get more memory than can be used; processors can be shared."""
    requests = [("head", spec.head.memory or 0)]
    requests += [(f"workers[{number}]", group.memory or 0) for number, group in enumerate(spec.workers)]
    for path, amount in requests:
        if amount > memory:
            message = f"spec.{path}.memory is {show_memory(amount)}, but only {show_memory(memory)} can be used here."
            raise SpecError(message, "Reduce it, or use place 'kubernetes'.")
    workers = sum(group.replicas for group in spec.workers)
    if workers > MAX_WORKERS:
        message = f"spec.workers requests {workers} workers, but one machine can run at most {MAX_WORKERS}."
        raise SpecError(message, "Request fewer, or use place 'kubernetes'.")


def check_spec(name: str, spec: ClusterSpec, environ: Mapping[str, str]) -> None:
    """Raise SpecError if a cluster with this spec cannot run on this machine."""
    _plan(name, spec, usable_memory(environ), tied=False)


def _plan(name: str, spec: ClusterSpec, memory: int, *, tied: bool) -> tuple[Desired, plan.Defaults]:
    """The desired state on a machine with that much memory, and the defaults that it uses. Raises SpecError if it does
    not fit."""
    check_fits(spec, memory)
    chosen = defaults(spec, memory)
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


def _usage(mark: str) -> dict[str, Usage]:
    """Of each member, from its processes."""
    found: dict[str, Usage] = {}
    for process in marked(mark):
        member = process.member.rpartition(":")[0]
        if member:
            (seconds, memory), before = usage_of(process.identity.pid), found.get(member, Usage())
            found[member] = Usage(before.cpu_seconds + seconds, before.memory + memory)
    return found
