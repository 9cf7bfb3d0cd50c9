"""Local: real engine processes on this machine, each leading a session of its own, all on 127.0.0.1."""

from __future__ import annotations

import asyncio
import glob
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from oars.base.log import get_logger, pairs
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Ensure,
    Group,
    Member,
    MemberId,
    MemberState,
    Notes,
    Observed,
    Process,
    Remove,
)
from oars.places.ledger import Book, Entry, locked, read_book, write_book
from oars.places.local import logs
from oars.places.local.nursery import Launch, Nursery, base_environment
from oars.places.local.ports import free_ports
from oars.places.local.process import MARK, MEMBER, ExitWatch, Identity, gone, identify, marked, send
from oars.places.local.store import ClusterDir, Intent, Report
from oars.places.local.values import HOST, member_values
from oars.places.local.wire import Helpers, LocalWire
from oars.plan.fill import fill, fill_mapping
from oars.spec.status import Status

TAIL_LINES = 20
KILL_SECONDS = 10.0  # a SIGKILLed process that is not gone by then hangs in the kernel

log = get_logger(__name__)


class LocalPlace:
    """The six verbs for one cluster on this machine. `wake` is called when a member ends."""

    def __init__(
        self, directory: ClusterDir, intent: Intent, head: Group, environ: Mapping[str, str], wake: Callable[[], None]
    ) -> None:
        self._dir = directory
        self._intent = intent
        self._head = head
        self._environ = environ
        self._wake = wake
        self._book = read_book(directory.ledger_file)
        self._nurseries: dict[tuple[tuple[str, str], ...], Nursery] = {}
        self._exits = ExitWatch(wake)
        self._helpers = Helpers(self._start_helper)
        self._report: Report | None = None
        self._sweep_strangers()

    # observe

    async def observe(self) -> Observed:
        members = []
        for entry in list(self._book.entries.values()):
            identity = _identity(entry)
            if identity is not None and identity.alive():
                self._exits.watch(identity)
                members.append(self._member(entry, MemberState.RUNNING))
            else:
                members.append(self._member(await self._with_exit_reason(entry), MemberState.EXITED))
        return Observed(tuple(members), self._book.notes)

    def _member(self, entry: Entry, state: MemberState) -> Member:
        running = state is MemberState.RUNNING
        return Member(
            id=entry.id, role=entry.role, group=entry.group, state=state, incarnation=str(entry.incarnation),
            head=entry.head, started=entry.started, pid=entry.pid if running else None,
            address=next((f"{HOST}:{port}" for port in entry.ports.values()), ""),
            reason="" if running else entry.exit_reason,
            tail=() if running else logs.last_lines(self._dir.log_file(entry.id), TAIL_LINES),
        )  # fmt: skip

    async def _with_exit_reason(self, entry: Entry) -> Entry:
        if entry.exit_reason or entry.pid is None:
            return replace(entry, exit_reason=entry.exit_reason or "could not be started")
        reasons = [await nursery.exit_reason(entry.pid) for nursery in self._nurseries.values()]
        entry = replace(entry, exit_reason=next(filter(None, reasons), "ended, nobody saw how"))
        self._keep(self._book.with_entry(entry))
        return entry

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        running = {m.id for m in (await self.observe()).members if m.state is MemberState.RUNNING}
        missing = [member for member in step.members if member not in running]
        for member in missing:
            await self._sweep(self._book.entries.get(member))
        entries = self._enter(step.group, missing)
        results = await asyncio.gather(*(self._start(step.group, entry) for entry in entries), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _enter(self, group: Group, members: list[MemberId]) -> list[Entry]:
        """Write down what is about to be started, with its ports, before anything is."""
        with locked(self._dir.path.parent.parent / "ports.lock"):
            claimed = _claimed_ports(self._dir.path.parent)
            entries = []
            for member in members:
                entry = self._new_entry(group, member, claimed)
                claimed.update(entry.ports.values())
                entries.append(entry)
                self._book = self._book.with_entry(entry)
            self._keep(self._book)
        return entries

    def _new_entry(self, group: Group, member: MemberId, claimed: set[int]) -> Entry:
        before = self._book.entries.get(member)
        process = group.process
        ports = before.ports if before else {}
        if set(ports) != {port.name for port in process.ports}:
            numbers = free_ports(len(process.ports), claimed, HOST)
            ports = {port.name: number for port, number in zip(process.ports, numbers, strict=True)}
        incarnation = self._book.incarnations + 1
        head = self._book.entries.get(HEAD)
        return Entry(
            id=member, role=group.role, group=group.name, incarnation=incarnation, started=time.time(), ports=ports,
            head=str(incarnation if member == HEAD else head.incarnation if head else 0),
            signal=process.stop.signal, grace=process.stop.grace, litter=process.litter,
        )  # fmt: skip

    async def _start(self, group: Group, entry: Entry) -> None:
        process = group.process
        values = self._values(entry, process)
        _prepare_directory(Path(values["dir"]), fill_mapping(process.files, values))
        env = self._environment(process, entry, values)
        launch = Launch(
            argv=[fill(word, values) for word in process.argv], entry=fill(process.entry, values), env=env,
            cwd=self._cwd(), log=str(self._dir.log_file(entry.id)), title=entry.id,
        )  # fmt: skip
        pid = await self._nursery(process, env).spawn(launch)
        identity = identify(pid)
        if identity is None:  # it has ended already; the exit reason will tell
            identity = Identity(pid, 0, "")
        self._keep(self._book.with_entry(replace(entry, pid=pid, start=identity.start, boot=identity.boot)))
        log.info(pairs("started", member=entry.id, pid=pid, incarnation=entry.incarnation))

    def _environment(self, process: Process, entry: Entry, values: Mapping[str, str]) -> dict[str, str]:
        marks = {MARK: self._intent.mark, MEMBER: f"{entry.id}:{entry.incarnation}"}
        base = base_environment(self._environ, self._intent.python)
        base["PYTHONPATH"] = os.pathsep.join(self._intent.import_path)
        return {**base, "TMPDIR": values["dir"], **fill_mapping(process.env, values), **marks}

    def _cwd(self) -> str:
        """Where the user was, so that tasks find the same files; the state directory if that is gone."""
        return self._intent.cwd if os.path.isdir(self._intent.cwd) else str(self._dir.path)

    def _values(self, entry: Entry, process: Process) -> dict[str, str]:
        return member_values(self._dir, self._book, entry, process)

    def _nursery(self, process: Process, env: Mapping[str, str]) -> Nursery:
        """The zygote whose imports saw the same environment, as far as it matters at import time."""
        late = {*process.late_env, MEMBER, "TMPDIR"}
        early = {name: text for name, text in process.env.items() if name not in late}
        key = tuple(sorted((name, env[name]) for name in early))
        nursery = self._nurseries.get(key)
        if nursery is None or not nursery.alive:
            plain = {name: value for name, value in env.items() if name not in late or name == "TMPDIR"}
            plain["TMPDIR"] = str(self._dir.members)
            nursery = Nursery(self._intent.python, plain, self._dir.keeper_log, self._wake)
            self._nurseries[key] = nursery
        nursery.preload(process.preload)
        return nursery

    # remove

    async def remove(self, desired: Desired, step: Remove) -> None:
        entries = [self._book.entries[m] for m in step.members if m in self._book.entries]
        await asyncio.gather(*(self._end(entry, step.grace) for entry in entries))
        book = self._book
        for entry in entries:
            book = book.without(entry.id)
        self._keep(book)

    async def _end(self, entry: Entry, grace: float | None) -> None:
        """Ask it to end, wait, then end everything that is left of it."""
        patience = entry.grace if grace is None else grace
        identity = _identity(entry)
        if identity is not None and patience > 0 and send(identity, getattr(signal, f"SIG{entry.signal}")):
            await gone([identity], patience)
        await self._sweep(entry)
        shutil.rmtree(self._dir.members / entry.id, ignore_errors=True)

    async def _sweep(self, entry: Entry | None) -> None:
        """End whatever is left of a member, and remove what it left outside its directory."""
        if entry is None:
            return
        left = [
            found.identity for found in marked(self._intent.mark)
            if found.member == f"{entry.id}:{entry.incarnation}" or found.session == entry.pid
        ]  # fmt: skip
        for identity in left:
            send(identity, signal.SIGKILL)
        if not await gone(left, KILL_SECONDS):
            log.warning(pairs("processes do not die", member=entry.id))
        values = {"dir": str(self._dir.members / entry.id), "pid": str(entry.pid or 0), "member": entry.id}
        for pattern in entry.litter:
            for path in glob.glob(fill(pattern, values)):
                _remove_path(Path(path))

    def _sweep_strangers(self) -> None:
        """Started by an earlier keeper that died before it could write them down: nobody else will ever end them."""
        known = {entry.pid for entry in self._book.entries.values()}
        labels = {f"{entry.id}:{entry.incarnation}" for entry in self._book.entries.values() if entry.pid is not None}
        for found in marked(self._intent.mark):
            if found.session not in known and found.member not in labels and found.identity.pid != os.getpid():
                send(found.identity, signal.SIGKILL)

    # wire, logs, record

    @property
    def report(self) -> Report | None:
        return self._report

    def wire(self) -> LocalWire:
        entries = self._book.entries
        addresses = {m: {name: f"{HOST}:{port}" for name, port in e.ports.items()} for m, e in entries.items()}
        incarnations = {m: str(e.incarnation) for m, e in entries.items()}
        head = entries.get(HEAD)
        return LocalWire(addresses, incarnations, self._values(head, self._head.process) if head else {}, self._helpers)

    async def _start_helper(self, script: str, pipe: socket.socket) -> None:
        head = self._book.entries[HEAD]
        values = self._values(head, self._head.process)
        path = self._dir.members / "beside.py"
        _write_file(path, script)
        env = self._environment(self._head.process, head, values)
        log_file = str(self._dir.log_file("beside"))
        launch = Launch([str(path)], str(path), env, str(self._dir.members), log_file, "beside")
        await self._nursery(self._head.process, env).spawn(launch, pipe)

    def logs(self, member: MemberId, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
        return logs.lines(self._dir.log_file(member), follow=follow, tail=tail)

    async def record(self, notes: Notes, status: Status | None = None, causes: tuple[Cause, ...] = ()) -> None:
        if notes != self._book.notes:
            self._keep(replace(self._book, notes=notes))
        if status is not None and Report(status, causes) != self._report:
            self._report = Report(status, causes)
            self._dir.write_report(self._report)

    def _keep(self, book: Book) -> None:
        self._book = book
        write_book(self._dir.ledger_file, book)

    async def close(self) -> None:
        """Let go; the members stay as they are."""
        self._exits.close()
        self._helpers.close()
        await asyncio.gather(*(nursery.close() for nursery in self._nurseries.values()))

    async def sweep_all(self) -> None:
        """The cluster is over: end everything that still carries its mark."""
        left = [found.identity for found in marked(self._intent.mark)]
        for identity in left:
            send(identity, signal.SIGKILL)
        await gone(left, KILL_SECONDS)


def _identity(entry: Entry) -> Identity | None:
    return None if entry.pid is None else Identity(entry.pid, entry.start, entry.boot)


def _claimed_ports(clusters: Path) -> set[int]:
    claimed: set[int] = set()
    for ledger in clusters.glob("*/ledger.json"):
        for entry in read_book(ledger).entries.values():
            claimed.update(entry.ports.values())
    return claimed


def _prepare_directory(scratch: Path, files: Mapping[str, str]) -> None:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        _write_file(scratch / "files" / name, text)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
