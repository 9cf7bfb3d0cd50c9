"""A machine with workers: follows the head on another machine, and keeps its own members in line with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from oars.base import codec
from oars.base.errors import OarsError
from oars.base.files import write_private
from oars.base.log import get_logger, pairs
from oars.engines.base import LiveEngine, Wire
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Drained,
    Ensure,
    Lifetime,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Role,
    View,
)
from oars.places.hosts import messages
from oars.places.hosts.messages import HeadState, Hello, HostReport, connect, digest, parse_token, receive, send
from oars.places.local.store import ClusterDir, ClusterRecord
from oars.places.process.ledger import write_json
from oars.places.process.machine import Machine
from oars.places.process.place import ProcessPlace
from oars.places.process.wire import ProcessWire
from oars.places.report import Report

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # between two attempts to reach the head's machine
LEAVE_SECONDS = 2.0
HEAD_CHANGED = "HeadChanged"  # the reason of a status: the head has another spec now

log = get_logger(__name__)


async def fetch(address: str, token: str) -> HeadState:
    """What the head's machine says to one that only asks. Raises OarsError if it refuses, or OSError."""
    parsed = parse_token(token)
    reader, writer = await connect(address, parsed)
    try:
        await send(writer, Hello(parsed.secret, ""))
        state = await receive(reader, HeadState)
    finally:
        writer.close()
    if state.error:
        raise messages.refused(state)
    return state


class WorkerLink:
    """Reports this machine's members to the head's machine, and learns from it where and how the head is."""

    def __init__(self, directory: ClusterDir, record: ClusterRecord, wake: Callable[[], None]) -> None:
        self._dir = directory
        self._record = record
        self._wake = wake
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.problem = ""  # why the head's machine does not answer
        self.report = HostReport()
        self.state = read_state(directory)

    async def open(self) -> None:
        """Start to follow the head. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Leave: the head no longer expects this machine."""
        if self._task is None:
            return
        self.publish(replace(self.report, is_leaving=True))
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._task

    def make_place(self, machine: Machine, wake: Callable[[], None]) -> ProcessPlace:
        return WorkerPlace(self._dir, machine, wake, self)

    def make_engine(self, engine: LiveEngine) -> LiveEngine:
        return _Remote(self)

    def desired(self, desired: Desired) -> Desired:
        """Without a lifetime: the head's machine ends the cluster."""
        return replace(desired, lifetime=Lifetime())

    def publish(self, report: HostReport) -> None:
        if report != self.report:
            self.report = report
            self._changed.set()

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while not self.report.is_leaving:
            try:
                await self._talk()
            except (OarsError, OSError, ValueError) as error:  # TimeoutError is an OSError
                text = error.message if isinstance(error, OarsError) else messages.failure(error)
                pause = FIRST_PAUSE if not self.problem else min(2 * pause, LONGEST_PAUSE)
                self.problem = text.rstrip(".")
                log.warning(pairs("head's host does not answer", error=text))
                self._wake()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        while not self.report.is_leaving:
                            await self._changed.wait()
                            self._changed.clear()

    async def _talk(self) -> None:
        assert self._record.link is not None
        token = parse_token((self._dir.secrets / "join.token").read_text())
        reader, writer = await connect(self._record.link.join, token)
        try:
            await send(writer, Hello(token.secret, self._dir.name, self._record.mark))
            while True:
                state = await receive(reader, HeadState)
                if state.error:
                    raise messages.refused(state)
                self._apply(state)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(messages.POLL_SECONDS):
                        await self._changed.wait()
                self._changed.clear()
                await send(writer, replace(self.report, has_secrets=self._secrets_digest()))
                if self.report.is_leaving:
                    return
        finally:
            writer.close()

    def _apply(self, state: HeadState) -> None:
        """Write new secrets first: members of a new head need them."""
        for name, text in (state.secrets or {}).items():
            write_private(self._dir.secrets / name, text.encode())
        stored = replace(state, secrets=None, views={})
        before = None if self.state is None else replace(self.state, secrets=None, views={})
        if stored != before:
            write_json(self._dir.path / "head.json", codec.dump(stored), durable=False)
        if state != self.state or self.problem:
            self.state, self.problem = state, ""
            self._wake()

    def _secrets_digest(self) -> str:
        paths = sorted(path for path in self._dir.secrets.glob("*") if path.name != "join.token")
        return digest({path.name: path.read_text(encoding="ascii") for path in paths})


def read_state(directory: ClusterDir) -> HeadState | None:
    """What the head's machine last said; None if nothing yet, or if it cannot be read: the head says it again."""
    try:
        return codec.load(HeadState, json.loads((directory.path / "head.json").read_text()))
    except (FileNotFoundError, ValueError):
        return None


class WorkerPlace(ProcessPlace):
    """Workers are processes of this machine. The head is a member, too, but of another machine."""

    def __init__(self, files: ClusterDir, machine: Machine, wake: Callable[[], None], link: WorkerLink) -> None:
        super().__init__(files, machine, wake)
        self._link = link
        record = files.read()
        assert record.link is not None
        self._spec_digest = record.link.spec_digest
        self._join = record.link.join
        self._observed: tuple[Member, ...] = ()  # the members of this machine

    async def observe(self, desired: Desired) -> Observed:
        observed = await super().observe(desired)
        self._observed = observed.members
        if not desired.running:
            return observed
        return replace(observed, members=(*self._head(), *observed.members), causes=self._causes())

    def _head(self) -> list[Member]:
        """The head, as its machine last reported it. A head that cannot be reached has not ended."""
        head = self._link.state.head if self._link.state else None
        if head is None:
            return []
        port = next(iter(head.ports.values()), 0)
        reason = "" if head.state is MemberState.RUNNING else "its own host starts it"
        return [Member(HEAD, Role.HEAD, "head", head.state, head.key, address=f"{head.host}:{port}", reason=reason)]

    def _causes(self) -> tuple[Cause, ...]:
        if self._link.problem:
            message = f"The head's host at {self._join} does not answer: {self._link.problem}. Oars retries."
            return (Cause("HeadUnreachable", message, "Check that `oars head` runs there and that its port is open."),)
        if self._link.state is not None and self._link.state.spec_digest != self._spec_digest:
            return (Cause(HEAD_CHANGED, "The head was started again with another spec.", "Restart `oars worker`."),)
        return ()

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        """The head's machine gets the members first: it needs them even if this machine's disk is full."""
        self._link.publish(self._host_report(state))
        await super().record(desired, state, report)

    def _host_report(self, state: LoopState) -> HostReport:
        host = self._machine.host
        mine = {m: entry for m, entry in self._ledger.entries.items() if entry.role is Role.WORKER}
        return HostReport(
            members=tuple(member for member in self._observed if member.id in mine),
            addresses={m: {name: f"{host}:{port}" for name, port in entry.ports.items()} for m, entry in mine.items()},
            heads={m: state.head if entry.head_epoch == state.head_epoch else "" for m, entry in mine.items()},
        )

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        if step.group.role is Role.WORKER and self._link.state is not None and self._link.state.head is not None:
            await super().ensure(desired, step)

    def _head_values(self) -> Mapping[str, str]:
        head = self._link.state.head if self._link.state else None
        if head is None:
            return {}
        return {"head.host": head.host, **{f"head.{name}": str(port) for name, port in head.ports.items()}}

    def wire(self, desired: Desired) -> ProcessWire:
        return replace(super().wire(desired), head_values=self._head_values())


class _Remote(LiveEngine):
    """The engine as the head's machine sees it."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    async def look(self, wire: Wire) -> View:
        state = self._link.state
        if self._link.problem or state is None:
            return View(message="the head's host does not answer")
        return View(up=state.is_up, message=state.message, members=state.views)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        raise OarsError("Workers of this machine leave together.", "Stop them with `oars down`.")
