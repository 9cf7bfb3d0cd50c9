"""This computer as a machine: fork servers start the members, which all listen on 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oars.base.log import get_logger, pairs
from oars.model import Process
from oars.places.local import logs, ports
from oars.places.local.fork_client import ForkServerClient, Launch, base_environment
from oars.places.local.litter import remove_litter
from oars.places.local.process import CLUSTER, MARK, MEMBER, TAG, ExitWatch, Identity, gone, identify, marked, send
from oars.places.local.store import ClusterDir, ClusterRecord
from oars.places.process.ledger import Entry
from oars.places.process.machine import UNKNOWN_EXIT, Exit, Streams
from oars.plan.fill import fill, fill_mapping

HOST = "127.0.0.1"
KILL_SECONDS = 10.0  # a process that survives SIGKILL for longer is stuck in the kernel
EXIT_SECONDS = 20.0  # for the fork server to report a child's exit, on a busy machine

log = get_logger(__name__)


class LocalMachine:
    """See machine.Machine. One fork server per set of import-time environment variables; usually there is one. `wake`
    is called when a member ends."""

    host = HOST

    def __init__(
        self, directory: ClusterDir, record: ClusterRecord, environ: Mapping[str, str], wake: Callable[[], None]
    ) -> None:
        self._dir = directory
        self._record = record
        self._environ = environ
        self._wake = wake
        self._exits = ExitWatch(wake)
        self._fork_servers: dict[tuple[tuple[str, str], ...], ForkServerClient] = {}
        self._ended: dict[tuple[str, int], float] = {}  # member, incarnation → when we first saw that it had ended

    def free_ports(self, count: int, claimed: Collection[int]) -> list[int]:
        return ports.free_ports(count, claimed, HOST)

    def can_bind(self, numbers: Collection[int]) -> bool:
        return ports.can_rebind(numbers, HOST)

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        return path_values(self._dir, entry, process)

    # start

    async def start(self, entry: Entry, process: Process, values: Mapping[str, str]) -> Entry:
        _prepare_directory(Path(values["dir"]), fill_mapping(process.files, values))
        env = self._environment(process, entry, values)
        launch = Launch(
            argv=[fill(word, values) for word in process.argv],
            entry=fill(process.entry, values),
            env=env,
            cwd=self._cwd(),
            log=str(self._dir.log_file(entry.id)),
            title=entry.id,
        )
        pid = await self._fork_server(process, env).spawn(launch)
        identity = identify(pid) or Identity(pid, 0, "")  # a process that has already ended has no identity
        return replace(entry, pid=pid, start=identity.start, boot=identity.boot, started_at=time.time())

    async def start_helper(self, script: str, head: Entry, process: Process, values: Mapping[str, str]) -> Streams:
        path = self._dir.members / "head_helper.py"
        _write_file(path, script)
        env = self._environment(process, head, values)
        log_file = str(self._dir.log_file("helper"))
        launch = Launch([str(path)], str(path), env, str(self._dir.members), log_file, "helper")
        ours, theirs = socket.socketpair()
        try:
            await self._fork_server(process, env).spawn(launch, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return await asyncio.open_connection(sock=ours, limit=2**24)

    def _cwd(self) -> str:
        """The user's directory, so that tasks find the same files; the cluster's directory if it no longer exists."""
        return self._record.cwd if os.path.isdir(self._record.cwd) else str(self._dir.path)

    def _environment(self, process: Process, entry: Entry, values: Mapping[str, str]) -> dict[str, str]:
        marks = {MARK: self._record.mark, MEMBER: _label(entry), CLUSTER: str(self._dir.path)}
        marks[TAG] = self._record.tag(entry.incarnation)
        base = base_environment(self._environ, self._record.python)
        base["PYTHONPATH"] = os.pathsep.join(self._record.import_path)
        return {**base, "TMPDIR": values["dir"], **fill_mapping(process.env, values), **marks}

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
            return found
        if None not in known:
            return UNKNOWN_EXIT
        since = self._ended.setdefault((entry.id, entry.incarnation), time.monotonic())
        return UNKNOWN_EXIT if time.monotonic() - since > EXIT_SECONDS else None

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
        left = []
        for found in marked(self._record.mark):
            # A child that was forked a moment ago has neither its own session nor its own environment yet.
            if found.member in labels or {found.session, found.identity.pid} & sessions:
                left.append(found.identity)
        await _kill(left)
        for entry in entries:
            self._ended.pop((entry.id, entry.incarnation), None)
            remove_litter(entry.litter, self._record.tag(entry.incarnation))

    async def sweep_unknown(self, known: Sequence[Entry]) -> None:
        """Spare the children of our own fork servers: they are helpers, or their start is about to be recorded."""
        sessions = {entry.pid for entry in known}
        labels = {_label(entry) for entry in known}
        servers = {server.pid for server in self._fork_servers.values()}
        await _kill(
            [
                found.identity
                for found in marked(self._record.mark)
                if found.session not in sessions | servers
                and found.parent not in servers
                and found.member not in labels
                and found.identity.pid not in servers | {os.getpid()}
            ]
        )

    async def sweep_all(self, litter: Collection[str]) -> None:
        """Kill every process that carries the cluster's mark. Call it when the cluster is removed."""
        await self._close(kill=True)
        deadline = time.monotonic() + KILL_SECONDS
        while left := [f.identity for f in marked(self._record.mark) if f.identity.pid != os.getpid()]:
            await _kill(left)
            if time.monotonic() > deadline:
                break
        remove_litter(litter, self._record.tag("*"))

    async def close(self) -> None:
        await self._close(kill=False)

    async def _close(self, *, kill: bool) -> None:
        """Release the fork servers; their children keep running. With `kill` they start no pending children."""
        self._exits.close()
        servers, self._fork_servers = self._fork_servers, {}
        await asyncio.gather(*(server.close(kill=kill) for server in servers.values()))


def path_values(directory: ClusterDir, entry: Entry, process: Process) -> dict[str, str]:
    """Values for the paths in templates."""
    scratch = directory.members / entry.id
    values = {"dir": str(scratch)}
    values |= {f"secret.{path.name}": str(path) for path in directory.secrets.glob("*")}
    values |= {f"file.{name}": str(scratch / "files" / name) for name in process.files}
    return values


def _label(entry: Entry) -> str:
    """Labels all processes of one incarnation of a member."""
    return f"{entry.id}:{entry.incarnation}"


def _identity(entry: Entry) -> Identity | None:
    return None if entry.pid is None else Identity(entry.pid, entry.start, entry.boot)


async def _kill(identities: Sequence[Identity]) -> None:
    for identity in identities:
        send(identity, signal.SIGKILL)
    if not await gone(identities, KILL_SECONDS):
        log.warning(pairs("processes survived SIGKILL", pids=[identity.pid for identity in identities]))


def _prepare_directory(scratch: Path, files: Mapping[str, str]) -> None:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        _write_file(scratch / "files" / name, text)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
