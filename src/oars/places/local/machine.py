"""This computer as a machine: fork servers start the members, which listen on 127.0.0.1 unless the
cluster spans several machines."""

from __future__ import annotations

import asyncio
import functools
import glob
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from oars.base.errors import OarsError, StartFailed
from oars.base.files import write_private
from oars.base.log import get_logger, pairs
from oars.model import OUT_OF_MEMORY, Limit, Process
from oars.places.local import cgroup, logs, ports
from oars.places.local.fork_client import ForkServerClient, Launch
from oars.places.local.memory import usable_memory
from oars.places.local.process import (
    CLUSTER,
    MARK,
    MEMBER,
    TAG,
    ExitWatch,
    Identity,
    gone,
    identify,
    marked,
    send,
    wait_for_exit,
)
from oars.places.local.store import ClusterDir, ClusterRecord, tag
from oars.places.process.ledger import Entry, read_ledger
from oars.places.process.machine import HELPER_GRACE, UNKNOWN_EXIT, Exit, Streams
from oars.plan.fill import fill, fill_mapping
from oars.spec.resources import show_memory

HOST = "127.0.0.1"
KILL_SECONDS = 10.0  # a process that survives SIGKILL for longer is stuck in the kernel
EXIT_SECONDS = 20.0  # for the fork server to report a child's exit, on a busy machine

log = get_logger(__name__)


class LocalMachine:
    """See machine.Machine. One fork server per set of import-time environment variables; usually there is one. `wake`
    is called when a member ends."""

    def __init__(
        self, directory: ClusterDir, record: ClusterRecord, environ: Mapping[str, str], wake: Callable[[], None]
    ) -> None:
        self._dir = directory
        self._record = record
        self._environ = environ
        self.host = record.link.host if record.link else HOST
        self.fixed_ports: Mapping[str, int] = record.link.ports if record.link else {}
        self._wake = wake
        self._exits = ExitWatch(wake)
        self._cgroups = cgroup.delegation(environ)
        self._fork_servers: dict[tuple[tuple[str, str], ...], ForkServerClient] = {}
        self._helpers: set[asyncio.Task[None]] = set()  # each ends a helper whose streams are closed
        self._ended: dict[tuple[str, int], float] = {}  # member, incarnation → when we first saw that it had ended

    @functools.cached_property
    def limits(self) -> tuple[Limit, ...]:
        processors, memory = len(os.sched_getaffinity(0)), usable_memory(self._environ)
        return (
            Limit(f"this machine has {processors} processor{'' if processors == 1 else 's'}", "cpu", processors),
            Limit(f"this machine has {show_memory(memory)} of memory", "memory", memory),
        )

    def free_ports(self, count: int, claimed: Collection[int]) -> list[int]:
        return ports.free_ports(count, claimed, self.host)

    def can_bind(self, numbers: Collection[int]) -> bool:
        return ports.can_rebind(numbers, self.host)

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        return path_values(self._dir, entry, process) | {"tag": tag(self._record.mark, entry.incarnation)}

    def secret(self, name: str) -> str:
        return read_secret(self._dir, name)

    # start

    async def start(self, entry: Entry, process: Process, values: Mapping[str, str]) -> Entry:
        launch = self._prepare(entry, process, values)
        if entry.memory is not None:
            path = cgroup.create(self._cgroups, tag(self._record.mark, entry.incarnation), entry.memory)
            launch, entry = replace(launch, cgroup=path), replace(entry, cgroup=path)
        pid = await self._fork_server(process, launch.env).spawn(launch)
        identity = identify(pid) or Identity(pid, 0, "")  # a process that has already ended has no identity
        return replace(entry, pid=pid, start=identity.start, boot=identity.boot, started_at=time.time())

    def _prepare(self, entry: Entry, process: Process, values: Mapping[str, str]) -> Launch:
        """Create the member's directory and files."""
        Path(values["dir"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (fill(each, values) for each in entry.spill):
            _make_spill_directory(Path(path))
        for name, text in fill_mapping(process.files, values).items():
            write_private(Path(values[f"file.{name}"]), text.encode())
        return Launch(
            argv=[fill(word, values) for word in process.argv],
            entry=fill(process.entry, values),
            env=self._environment(process, entry, values),
            # The user's directory, so that tasks find the same files, unless it no longer exists.
            cwd=self._record.cwd if os.path.isdir(self._record.cwd) else str(self._dir.path),
            log=str(self._dir.log_file(entry.id)),
            title=entry.id,
        )

    async def start_helper(self, script: str, head: Entry, process: Process, values: Mapping[str, str]) -> Streams:
        path = self._dir.members / "head_helper.py"
        write_private(path, script.encode())
        env = self._environment(process, head, values)
        log_file = str(self._dir.log_file("helper"))
        launch = Launch([str(path)], str(path), env, str(self._dir.members), log_file, "helper")
        ours, theirs = socket.socketpair()
        try:
            pid = await self._fork_server(process, env).spawn(launch, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=2**24)
        if (identity := identify(pid)) is not None:
            task = asyncio.create_task(_end_helper(identity, writer))
            self._helpers.add(task)
            task.add_done_callback(self._helpers.discard)
        return reader, writer

    def _environment(self, process: Process, entry: Entry, values: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process that started the cluster, without the variables of another cluster, with the
        engine's own programs first on the PATH, and with the marks by which Oars finds the member."""
        dropped = ("OARS_", "PYTHONHOME", "__PYVENV_LAUNCHER__")
        env = {name: value for name, value in self._environ.items() if not name.startswith(dropped)}
        env["PATH"] = os.pathsep.join([str(Path(self._record.python).parent), env.get("PATH", os.defpath)])
        env |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(self._record.import_path)}
        env |= {"TMPDIR": values["dir"], **fill_mapping(process.env, values)}
        env |= {MARK: self._record.mark, MEMBER: _label(entry), CLUSTER: str(self._dir.path)}
        return {**env, TAG: tag(self._record.mark, entry.incarnation)}

    def _fork_server(self, process: Process, env: Mapping[str, str]) -> ForkServerClient:
        """The fork server whose engine was imported with the same environment, as far as imports depend on it."""
        late = {*process.late_env, MEMBER, TAG}
        key = tuple(sorted((name, env[name]) for name in process.env if name not in late))
        server = self._fork_servers.get(key)
        if server is None or not server.alive:
            plain = {name: value for name, value in env.items() if name not in late}
            plain["TMPDIR"] = str(self._dir.members)
            server = ForkServerClient(self._record.python, plain, self._dir.keeper_log, self._wake)
            self._fork_servers[key] = server
        server.preload(process.preload)
        return server

    # watch

    def is_running(self, entry: Entry) -> bool:
        identity = _identity(entry)
        if identity is None or not identity.alive():
            return False
        self._exits.watch(identity)
        return True

    def exit_of(self, entry: Entry) -> Exit | None:
        assert entry.pid is not None
        known = [server.exit_of(entry.pid) for server in self._fork_servers.values()]
        if found := next((each for each in known if each not in (None, UNKNOWN_EXIT)), None):
            return _with_cause(found, entry)
        if None not in known:
            return _with_cause(UNKNOWN_EXIT, entry)
        since = self._ended.setdefault((entry.id, entry.incarnation), time.monotonic())
        return UNKNOWN_EXIT if time.monotonic() - since > EXIT_SECONDS else None

    def memory_kills(self, entry: Entry) -> int:
        return cgroup.kills(entry.cgroup) if entry.cgroup else 0

    def tail(self, member: str, count: int) -> tuple[str, ...]:
        return logs.last_lines(self._dir.log_file(member), count)

    # stop

    async def stop(self, entry: Entry, grace: float) -> None:
        identity = _identity(entry)
        if identity is not None and grace > 0 and send(identity, signal.Signals[f"SIG{entry.signal}"]):
            await gone([identity], grace)
        await self.sweep([entry])
        shutil.rmtree(self._dir.members / entry.id, ignore_errors=True)

    async def sweep(self, entries: Sequence[Entry]) -> None:
        labels, sessions = {_label(entry) for entry in entries}, {entry.pid for entry in entries}
        found = marked(self._record.mark)
        # Also by session: a child that was forked a moment ago has no label yet.
        await _kill([f.identity for f in found if f.member in labels or {f.session, f.identity.pid} & sessions])
        for entry in entries:
            self._ended.pop((entry.id, entry.incarnation), None)
            remove_litter(entry.litter, tag(self._record.mark, entry.incarnation))
            if entry.cgroup:
                cgroup.remove(entry.cgroup)

    async def sweep_unknown(self, known: Sequence[Entry]) -> None:
        """Spare the children of our own fork servers: they are helpers, or their start is about to be recorded."""
        labels, servers = {_label(entry) for entry in known}, {server.pid for server in self._fork_servers.values()}
        spared = {entry.pid for entry in known} | servers | {os.getpid()}
        found = [f for f in marked(self._record.mark) if f.member not in labels and f.parent not in servers]
        await _kill([f.identity for f in found if not {f.session, f.identity.pid} & spared])

    async def sweep_all(self, litter: Collection[str]) -> None:
        """Kill every process that carries the cluster's mark. Call it when the cluster is removed."""
        await self._close(kill=True)
        deadline = time.monotonic() + KILL_SECONDS
        while left := [f.identity for f in marked(self._record.mark) if f.identity.pid != os.getpid()]:
            await _kill(left)
            if time.monotonic() > deadline:
                break
        remove_litter(litter, tag(self._record.mark, "*"))
        cgroup.remove_all(self._cgroups, tag(self._record.mark, ""))

    async def close(self) -> None:
        await self._close(kill=False)

    async def _close(self, *, kill: bool) -> None:
        """Release the fork servers; their children keep running. With `kill` they start no pending children."""
        self._exits.close()
        for task in self._helpers:
            task.cancel()
        servers, self._fork_servers = self._fork_servers, {}
        await asyncio.gather(*(server.close(kill=kill) for server in servers.values()))


def path_values(directory: ClusterDir, entry: Entry, process: Process) -> dict[str, str]:
    """Values for the paths in templates."""
    scratch = directory.members / entry.id
    values = {"dir": str(scratch)}
    values |= {f"secret.{path.name}": str(path) for path in directory.secrets.glob("*")}
    values |= {f"file.{name}": str(scratch / "files" / name) for name in process.files}
    return values


def read_secret(directory: ClusterDir, name: str) -> str:
    """Empty if there is no such file."""
    try:
        return (directory.secrets / name).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def remove_cluster(directory: ClusterDir, seconds: float) -> None:
    """Kill all processes of a cluster and remove its files, without a keeper. It needs no record: the record may be
    damaged, or written by another version of Oars. It blocks; it needs no event loop. Raises OarsError, and removes
    no file, if a keeper still holds its lock."""
    entries: list[Entry] = []
    marks: set[str] = set()
    with suppress(OarsError):
        entries = list(read_ledger(directory.ledger_file).entries.values())
    with suppress(OarsError):
        marks.add(directory.read().mark)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = [each for each in marked(str(directory.path), CLUSTER) if each.identity.pid != os.getpid()]
        marks |= {each.mark for each in found if each.mark}
        recorded = [identity for entry in entries if (identity := _identity(entry)) and identity.alive()]
        if not found and not recorded:
            break
        for identity in (*(each.identity for each in found), *recorded):
            send(identity, signal.SIGKILL)
            wait_for_exit(identity.pid, deadline - time.monotonic())
    if directory.has_keeper:  # it survived, so it runs on another host that shares the directory
        message = f"A keeper of cluster {directory.name!r} runs on another host that shares the state directory."
        raise OarsError(message, f"Run `oars down {directory.name}` on the host where it was created.")
    for entry in entries:
        if entry.cgroup:
            cgroup.remove(entry.cgroup)
    for mark in marks:
        remove_litter({pattern for entry in entries for pattern in entry.litter}, tag(mark, "*"))
    directory.remove()


def _make_spill_directory(path: Path) -> None:
    """Nobody else can have created it: a part of its name is random."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartFailed(
            f"The spill directory {path.parent} cannot be used: {error.strerror}.",
            "Choose another directory in `spill.paths`, or change its owner.",
        ) from error


def remove_litter(patterns: Iterable[str], tag: str) -> None:
    """Remove what members leave outside their directories (Process.litter), such as links and shared memory. The
    processes with the tag must have ended. Other users can create files with such names: those stay, and a file that
    cannot be removed stops nothing."""
    for pattern in patterns:
        for found in map(Path, glob.glob(fill(pattern, {"tag": tag}))):
            try:
                if found.lstat().st_uid != os.geteuid():
                    log.warning(pairs("file of another user has the name of a leftover", path=found))
                elif found.is_dir() and not found.is_symlink():
                    shutil.rmtree(found, ignore_errors=True)
                else:
                    found.unlink(missing_ok=True)
            except OSError as error:
                log.warning(pairs("leftover not removed", path=found, error=error))


def _with_cause(found: Exit, entry: Entry) -> Exit:
    """Say so if the kernel killed a process of the member for its memory. Another exit may be a consequence of that."""
    if found.code == 0 or not entry.cgroup or not cgroup.kills(entry.cgroup):
        return found
    return replace(found, reason=f"{OUT_OF_MEMORY} and {found.reason} (the limit is {show_memory(entry.memory or 0)})")


def _label(entry: Entry) -> str:
    """Labels all processes of one incarnation of a member."""
    return f"{entry.id}:{entry.incarnation}"


def _identity(entry: Entry) -> Identity | None:
    return None if entry.pid is None else Identity(entry.pid, entry.start, entry.boot)


async def _end_helper(helper: Identity, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        await writer.wait_closed()
    if not await gone([helper], HELPER_GRACE):
        log.info(pairs("helper killed", pid=helper.pid))
        send(helper, signal.SIGKILL)


async def _kill(identities: Sequence[Identity]) -> None:
    for identity in identities:
        send(identity, signal.SIGKILL)
    if not await gone(identities, KILL_SECONDS):
        log.warning(pairs("processes survived SIGKILL", pids=[identity.pid for identity in identities]))
