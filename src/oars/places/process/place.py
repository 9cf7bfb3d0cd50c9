"""The process place: members are processes of a machine, each leading its own session."""

from __future__ import annotations

import asyncio
import glob
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.model import (
    HEAD,
    Cause,
    Death,
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
from oars.places.process.ledger import Entry, Ledger, read_ledger, write_ledger
from oars.places.process.machine import UNKNOWN_EXIT, Machine
from oars.places.process.wire import Helpers, ProcessWire
from oars.places.report import Report
from oars.plan import why
from oars.plan.fill import fill
from oars.secure import expiry

TAIL_LINES = 20
SPILL = "oars-$(tag)"  # the member's own directory in a spill path

log = get_logger(__name__)


class Files(Protocol):
    """Where the place stores its ledger and publishes its report."""

    ledger_file: Path

    def write_report(self, report: Report) -> None: ...

    def claim_ports(self) -> AbstractContextManager[set[int]]:
        """Hold the machine-wide lock on ports; yields the ports that clusters have claimed."""

    def secrets_expire_at(self) -> float | None:
        """When the cluster's certificates expire; None if it has none."""

    def renew_certificates(self) -> None:
        """Replace the cluster's certificates."""


class ProcessPlace:
    """One cluster's members on one machine. `wake` is called when a start has completed or failed."""

    def __init__(self, files: Files, machine: Machine, wake: Callable[[], None]) -> None:
        self._files = files
        self._machine = machine
        self._wake = wake
        self._ledger = read_ledger(files.ledger_file)
        self._starting: dict[MemberId, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()  # removed while they were being started
        self._exits: dict[MemberId, Entry] = {}  # observed exits that are not recorded yet
        self._swept: set[int] | None = (
            None  # incarnations that ended and of which nothing is left; None: none swept yet
        )
        self._unwritten = False  # the ledger on disk is older than the one in memory
        self._helpers = Helpers(self._start_helper)
        self._head_process: Process | None = None
        self._expires_at = files.secrets_expire_at()
        self.report: Report | None = None

    # observe

    async def observe(self, desired: Desired) -> Observed:
        members, deaths, kills = [], {}, []
        for entry in self._ledger.entries.values():
            member = self._member(entry)
            members.append(member)
            if member.state is MemberState.RUNNING and (count := self._machine.memory_kills(entry)):
                kills.append(why.memory_kills(member, count, entry.memory or 0))
            if member.state is MemberState.EXITED:
                at = self._exits.get(entry.id, entry).exited_at
                deaths[entry.id] = Death(member.incarnation, at, entry.started_at, member.reason, member.tail)
        hint = f"To do it at a time of your choice, run `oars down {desired.name}` and create the cluster again."
        remarks = (*kills, *expiry.announcement(self._expires_at, time.time(), hint))
        return Observed(tuple(members), self._ledger.state, deaths, remarks=remarks, limits=self._machine.limits)

    def _member(self, entry: Entry) -> Member:
        state, reason, code = self._state(entry)
        exited = state is MemberState.EXITED
        return Member(
            id=entry.id,
            role=entry.role,
            group=entry.group,
            state=state,
            incarnation=str(entry.incarnation),
            head_epoch=entry.head_epoch,
            started_at=entry.started_at,
            pid=entry.pid if state is MemberState.RUNNING else None,
            address=next((f"{self._machine.host}:{port}" for port in entry.ports.values()), ""),
            reason=reason,
            tail=self._machine.tail(entry.id, TAIL_LINES) if exited else (),
            exit_code=code,
        )

    def _state(self, entry: Entry) -> tuple[MemberState, str, int | None]:
        if entry.pid is not None and not entry.exit_reason and self._machine.is_running(entry):
            return MemberState.RUNNING, "", None
        if entry.id in self._starting:
            return MemberState.WAITING, "the engine is being loaded", None
        known = self._exits.get(entry.id)  # until it is recorded
        if not entry.exit_reason and known is not None and known.incarnation == entry.incarnation:
            entry = known
        if not entry.exit_reason:
            end = self._machine.exit_of(entry) if entry.pid is not None else UNKNOWN_EXIT
            if end is None:
                return MemberState.WAITING, "its process has ended; waiting for the exit status", None
            entry = replace(entry, exit_reason=end.reason, exit_code=end.code, exited_at=time.time())
            self._exits[entry.id] = entry
        return MemberState.EXITED, entry.exit_reason, entry.exit_code

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        """A member that ended starts again after `collect` has removed what is left of it: its children may hold its
        ports. Before that its death is observed, so that it counts."""
        if step.group.role is Role.HEAD:
            await self._renew_certificates()
        entries, swept = self._ledger.entries, self._swept or set()
        missing = [m for m in step.members if m not in entries or entries[m].incarnation in swept]
        if missing:
            for entry in self._record_starts(step.group, missing, desired.head_epoch):
                self._starting[entry.id] = asyncio.create_task(self._start(step.group, entry))

    async def _renew_certificates(self) -> None:
        """Replace certificates that expire soon, and the head with them. A head that starts anyway gets new ones
        earlier. The head is stopped first: if we die in between, it starts again and is stopped again."""
        head, now = self._ledger.entries.get(HEAD), time.time()
        is_running = head is not None and self._state(head)[0] is not MemberState.EXITED
        is_needed = expiry.is_due if is_running else expiry.is_announced
        if not is_needed(self._expires_at, now):
            return
        if head is not None and is_running:
            log.warning(pairs("head stopped: its certificates expire", pid=head.pid))
            await self._stop(head, None)
            self._swept = {*(self._swept or ()), head.incarnation}  # it starts again at once, and did not fail
        self._files.renew_certificates()
        self._expires_at = self._files.secrets_expire_at()

    def _record_starts(self, group: Group, members: Sequence[MemberId], head_epoch: int) -> list[Entry]:
        """Record the members, with their ports, before they are started."""
        with self._files.claim_ports() as claimed:
            entries: list[Entry] = []
            for number, member in enumerate(members, self._ledger.incarnations + 1):
                ports = self._ports(group, member, claimed)
                claimed.update(ports.values())
                entries.append(
                    Entry(
                        id=member,
                        role=group.role,
                        group=group.name,
                        incarnation=number,
                        head_epoch=head_epoch,
                        started_at=time.time(),
                        ports=ports,
                        signal=group.process.stop.signal,
                        grace=group.process.stop.grace,
                        litter=litter(group),
                        # A head that is killed costs all results; what it holds is small.
                        memory=group.resources.memory if group.role is Role.WORKER else None,
                        spill=_spill_directories(group, member),
                    )
                )
            for member in members:
                self._exits.pop(member, None)
            ledger = self._ledger.with_entries(entries)
            write_ledger(self._files.ledger_file, ledger)  # if this fails, nothing is started
            self._ledger, self._unwritten = ledger, False
        return entries

    def _ports(self, group: Group, member: MemberId, claimed: set[int]) -> Mapping[str, int]:
        """The member's ports. A restarted member keeps its ports. The head must, for clients know its address; a worker
        gets new ones if another program took one of them."""
        before = self._ledger.entries.get(member)
        ports = before.ports if before else {}
        taken = group.role is Role.WORKER and not self._machine.can_bind(ports.values())
        wanted = [port.name for port in group.process.ports]
        if not taken and set(ports) == set(wanted):
            return ports
        fixed = {name: port for name, port in self._machine.fixed_ports.items() if name in wanted}
        free = [name for name in wanted if name not in fixed]
        taken_ports = {*claimed, *fixed.values()}
        return {**dict(zip(free, self._machine.free_ports(len(free), taken_ports), strict=True)), **fixed}

    async def _start(self, group: Group, entry: Entry) -> None:
        """Start a member as a background task: the first start takes seconds, for it imports the engine."""
        try:
            entry = await self._machine.start(entry, group.process, self._values(entry, group.process))
            log.info(pairs("started", member=entry.id, pid=entry.pid, incarnation=entry.incarnation))
        except Exception as error:  # after any error the member must not appear to be starting
            expected = isinstance(error, OarsError | OSError)
            log.warning(pairs("start failed", member=entry.id, error=error), exc_info=not expected)
            entry = replace(entry, exit_reason=f"could not be started ({error})", exited_at=time.time())
        if self._starting.get(entry.id) is not asyncio.current_task():
            await self._machine.sweep([entry])  # it was removed before its pid was known
            return
        del self._starting[entry.id]
        self._write_if_possible(self._ledger.with_entries([entry]))
        self._wake()

    def _values(self, entry: Entry, process: Process) -> dict[str, str]:
        """Values for the `$(…)` of templates."""
        host = self._machine.host
        values = {"host": host, "bind": host, "member": entry.id, "incarnation": str(entry.incarnation)}
        values |= {f"port.{name}": str(port) for name, port in entry.ports.items()}
        values |= {**self._head_values(), **self._machine.values(entry, process)}
        spill = [fill(path, values) for path in entry.spill] or [values["dir"]]
        return {**values, "spill": spill[0], "spill.all": ":".join(spill)}

    def _head_values(self) -> Mapping[str, str]:
        head = self._ledger.entries.get(HEAD)
        ports = {f"head.{name}": str(port) for name, port in (head.ports if head else {}).items()}
        return {"head.host": self._machine.host, **ports}

    # remove

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        entries = [self._ledger.entries[m] for m in step.members if m in self._ledger.entries]
        await asyncio.gather(*(self._stop(entry, step.grace) for entry in entries))
        for entry in entries:
            self._exits.pop(entry.id, None)
        if entries:
            self._write_if_possible(self._ledger.without(entry.id for entry in entries))
        return ()

    async def _stop(self, entry: Entry, grace: float | None) -> None:
        starting = self._starting.pop(entry.id, None)
        if starting is not None:
            self._abandoned.add(starting)
            starting.add_done_callback(self._abandoned.discard)
        await self._machine.stop(entry, entry.grace if grace is None else grace)

    async def collect(self, desired: Desired) -> None:
        """Kill what is left of members that ended, so that they can start again. The first time also kill what no entry
        records: later passes record what they start."""
        entries = self._ledger.entries.values()
        ended = [entry for entry in entries if entry.exit_reason or entry.id in self._exits]
        left = [entry for entry in ended if self._swept is None or entry.incarnation not in self._swept]
        if self._swept is None:
            await self._machine.sweep_unknown(list(entries))
        if left:
            await self._machine.sweep(left)
            self._wake()
        self._swept = {entry.incarnation for entry in ended}

    # wire, record

    def wire(self, desired: Desired) -> ProcessWire:
        host, entries = self._machine.host, self._ledger.entries
        addresses = {m: {name: f"{host}:{port}" for name, port in e.ports.items()} for m, e in entries.items()}
        incarnations = {m: str(e.incarnation) for m, e in entries.items()}
        self._head_process = desired.shape.head.process
        head = entries.get(HEAD)
        values = self._values(head, self._head_process) if head else {}
        tokens = {port.name: self._machine.secret(port.secret) for port in self._head_process.ports if port.secret}
        return ProcessWire(addresses, incarnations, values, self._helpers, tokens)

    async def _start_helper(self, script: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        head, process = self._ledger.entries[HEAD], self._head_process
        assert process is not None  # `wire` sets it
        return await self._machine.start_helper(script, head, process, self._values(head, process))

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        ledger = replace(self._ledger.with_entries(self._exits.values()), state=state)
        self._exits.clear()
        try:
            if ledger != self._ledger or self._unwritten:
                self._ledger, self._unwritten = ledger, True
                write_ledger(self._files.ledger_file, ledger)
                self._unwritten = False
            if report is not None and report != self.report:
                self._files.write_report(report)
                self.report = report
        except OSError as error:
            if desired.running:
                raise
            log.warning(pairs("state not written", error=error))  # a full disk must not keep a cluster from stopping

    def _write_if_possible(self, ledger: Ledger) -> None:
        """Record what has happened already. If the disk is full, `record` tries again."""
        self._ledger, self._unwritten = ledger, True
        try:
            write_ledger(self._files.ledger_file, ledger)
            self._unwritten = False
        except OSError as error:
            log.warning(pairs("ledger not written", error=error))

    async def close(self) -> None:
        self._helpers.close()
        for task in (*self._starting.values(), *self._abandoned):
            task.cancel()
        await self._machine.close()


def litter(group: Group) -> tuple[str, ...]:
    """Patterns of what a killed member leaves outside its directory."""
    paths = group.spill.paths if group.spill else ()
    return (*group.process.litter, *(f"{glob.escape(path)}/{SPILL}" for path in paths))


def _spill_directories(group: Group, member: MemberId) -> tuple[str, ...]:
    """A directory of the member in each path of the group. Members begin with different paths, in turn."""
    paths = group.spill.paths if group.spill else ()
    number = member.rpartition("-")[2]
    first = int(number) % len(paths) if paths and number.isdigit() else 0
    return tuple(f"{path}/{SPILL}" for path in (*paths[first:], *paths[:first]))
