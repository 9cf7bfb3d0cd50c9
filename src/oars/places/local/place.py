"""Local: real engine processes on this machine, each leading a session of its own, all on 127.0.0.1."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Ensure,
    Group,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Process,
    Remove,
    Role,
)
from oars.places.ledger import Entry, Ledger, locked, read_ledger, write_ledger
from oars.places.local import logs
from oars.places.local.launcher import Launcher
from oars.places.local.litter import clear_away
from oars.places.local.ports import can_be_taken_again, free_ports
from oars.places.local.process import ExitWatch, Identity, gone, identify, marked, send
from oars.places.local.store import ClusterDir, Intent
from oars.places.local.values import HOST, member_values
from oars.places.local.wire import Helpers, LocalWire
from oars.places.report import Report
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
        self._wake = wake
        self._book = read_ledger(directory.ledger_file)
        self._litter = {pattern for entry in self._book.entries.values() for pattern in entry.litter}
        self._starter = Launcher(directory, intent, environ, wake)
        self._starting: dict[MemberId, asyncio.Task[None]] = {}
        self._unwanted: set[asyncio.Task[None]] = set()  # removed while they were being started
        self._exits = ExitWatch(wake)
        self._helpers = Helpers(self._start_helper)
        self._report: Report | None = None
        self._sweep_strangers()

    # observe

    async def observe(self) -> Observed:
        members = [await self._member(entry) for entry in list(self._book.entries.values())]
        return Observed(tuple(members), self._book.notes)

    async def _member(self, entry: Entry) -> Member:
        state, reason = await self._state(entry)
        exited = state is MemberState.EXITED
        return Member(
            id=entry.id, role=entry.role, group=entry.group, state=state, incarnation=str(entry.incarnation),
            head=entry.head, started=entry.started, pid=entry.pid if state is MemberState.RUNNING else None,
            address=next((f"{HOST}:{port}" for port in entry.ports.values()), ""), reason=reason,
            tail=logs.last_lines(self._dir.log_file(entry.id), TAIL_LINES) if exited else (),
        )  # fmt: skip

    async def _state(self, entry: Entry) -> tuple[MemberState, str]:
        identity = _identity(entry)
        if identity is not None and identity.alive():
            self._exits.watch(identity)
            return MemberState.RUNNING, ""
        if entry.id in self._starting:
            return MemberState.WAITING, "the engine is being loaded"
        if not entry.exit_reason:
            reason = await self._starter.exit_reason(entry.pid) if entry.pid else "could not be started"
            entry = replace(entry, exit_reason=reason or "ended, nobody saw how")
            self._keep(self._book.with_entry(entry))
        return MemberState.EXITED, entry.exit_reason

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        there = {m.id for m in (await self.observe()).members if m.state is not MemberState.EXITED}
        missing = [member for member in step.members if member not in there]
        await asyncio.gather(*(self._sweep(self._book.entries.get(member)) for member in missing))
        for entry in self._enter(step.group, missing):
            self._starting[entry.id] = asyncio.create_task(self._start(step.group, entry))

    def _enter(self, group: Group, members: list[MemberId]) -> list[Entry]:
        """Write down what is about to be started, with its ports, before anything is."""
        self._litter.update(group.process.litter)
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
        # The head's address is the cluster's; a worker may move if a stranger sits on its port.
        stolen = group.role is Role.WORKER and not can_be_taken_again(ports.values(), HOST)
        if stolen or set(ports) != {port.name for port in process.ports}:
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
        """In the background: the engine's import, which the first start waits for, takes seconds."""
        try:
            pid = await self._starter.start(entry, group.process, self._values(entry, group.process))
            # One that has ended already has no identity; its exit reason will tell.
            identity = identify(pid) or Identity(pid, 0, "")
            entry = replace(entry, pid=pid, start=identity.start, boot=identity.boot, started=time.time())
            log.info(pairs("started", member=entry.id, pid=pid, incarnation=entry.incarnation))
        except (OarsError, OSError) as error:
            log.warning(pairs("not started", member=entry.id, error=error))
            entry = replace(entry, exit_reason=f"could not be started ({error})")
        if self._starting.get(entry.id) is not asyncio.current_task():
            await self._sweep(entry)  # whoever removed it could not know its pid
            return
        self._keep(self._book.with_entry(entry))
        del self._starting[entry.id]
        self._wake()

    def _values(self, entry: Entry, process: Process) -> dict[str, str]:
        return member_values(self._dir, self._book, entry, process)

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
        starting = self._starting.pop(entry.id, None)
        if starting is not None:
            self._unwanted.add(starting)
            starting.add_done_callback(self._unwanted.discard)
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
        await _kill(left)
        clear_away(entry.litter, self._intent.tag(entry.incarnation))

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
        head, process = self._book.entries[HEAD], self._head.process
        await self._starter.start_helper(script, pipe, head, process, self._values(head, process))

    def logs(self, member: MemberId, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
        return logs.lines(self._dir.log_file(member), follow=follow, tail=tail)

    async def record(self, notes: LoopState, status: Status | None = None, causes: tuple[Cause, ...] = ()) -> None:
        if notes != self._book.notes:
            self._keep(replace(self._book, notes=notes))
        if status is not None and Report(status, causes) != self._report:
            self._report = Report(status, causes)
            self._dir.write_report(self._report)

    def _keep(self, book: Ledger) -> None:
        self._book = book
        write_ledger(self._dir.ledger_file, book)

    async def close(self) -> None:
        """Let go; the members stay as they are."""
        self._exits.close()
        self._helpers.close()
        for task in (*self._starting.values(), *self._unwanted):
            task.cancel()
        await self._starter.close()

    async def sweep_all(self) -> None:
        """The cluster is over: end everything that still carries its mark."""
        await self._starter.close(kill=True)
        left = [found.identity for found in marked(self._intent.mark)]
        await _kill(left)
        clear_away(self._litter, self._intent.tag("*"))


def _identity(entry: Entry) -> Identity | None:
    return None if entry.pid is None else Identity(entry.pid, entry.start, entry.boot)


def _claimed_ports(clusters: Path) -> set[int]:
    claimed: set[int] = set()
    for ledger in clusters.glob("*/ledger.json"):
        for entry in read_ledger(ledger).entries.values():
            claimed.update(entry.ports.values())
    return claimed


async def _kill(left: Sequence[Identity]) -> None:
    for identity in left:
        send(identity, signal.SIGKILL)
    if not await gone(left, KILL_SECONDS):
        log.warning(pairs("processes do not die", pids=[identity.pid for identity in left]))
