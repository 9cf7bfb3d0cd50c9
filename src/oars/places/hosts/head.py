"""The head's machine: listens for machines with workers, and shows their members to the loop as its own."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.text import join_names
from oars.engines.base import LiveEngine, Wire
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Drained,
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
    View,
)
from oars.places.hosts import messages
from oars.places.hosts.messages import HeadAddress, HeadState, Hello, HostReport, digest, receive, send
from oars.places.local.store import ClusterDir, ClusterRecord
from oars.places.process.machine import Machine
from oars.places.process.place import ProcessPlace
from oars.places.process.wire import ProcessWire
from oars.places.report import Report

MAX_STRANGERS = 16  # connections that have not shown the join token; each may buffer twice messages.MAX_MESSAGE
FORGET_SECONDS = 600.0  # after which a machine that does not return is no longer expected
FAREWELL_SECONDS = 2 * messages.POLL_SECONDS  # for which the machines that have joined may still ask at the end
UNSENT = ("join.token", "join.cert.pem", "join.key.pem")  # secrets of the head's machine that others do not get

log = get_logger(__name__)


@dataclass
class JoinedHost:
    """A machine that has joined."""

    instance: str
    report: HostReport
    connection: asyncio.Transport | None = None  # its last one
    lost_since: float | None = None  # monotonic; None: it is connected


class _Accepted(asyncio.Protocol):
    """A connection whose TLS handshake has not begun. Its first bytes wait for the handshake."""

    def __init__(self, accept: Callable[[asyncio.Transport, ssl.SSLContext], None], context: ssl.SSLContext) -> None:
        self._accept = accept
        self._context = context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        connection.pause_reading()
        self._accept(connection, self._context)


class HeadLink:
    """Accepts machines that know the join token, and keeps what they report."""

    def __init__(self, directory: ClusterDir, record: ClusterRecord, wake: Callable[[], None]) -> None:
        self._dir = directory
        self._record = record
        self._wake = wake
        self._server: asyncio.Server | None = None
        self._strangers: list[asyncio.Transport] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.hosts: dict[str, JoinedHost] = {}
        self.last_view = View(message="the head is being started")
        self._published: tuple[HeadAddress | None, View] = None, self.last_view  # what other machines get

    async def open(self) -> None:
        """Listen. Idempotent. Raises OarsError if the address is taken."""
        if self._server is not None:
            return
        link = self._record.link
        assert link is not None
        host, port = messages.split(link.join)
        context = messages.server_context(self._secret("join.cert.pem"), self._secret("join.key.pem"))
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Accepted(self._accept, context), host, port, reuse_address=True
            )
        except OSError as error:
            message = f"Cannot listen on {link.join}: {error.strerror or error}."
            raise OarsError(message, "Choose another port: `oars head --listen HOST:PORT`.") from error
        log.info(pairs("listening for hosts", address=link.join))

    async def close(self) -> None:
        """Tell the machines that have joined that there is no head any more. Otherwise they would take it for one that
        cannot be reached, and keep workers for it."""
        if self._server is None:
            return
        self._server.close()
        self._published, self._is_closing = (None, View(message="the head was stopped")), True
        for transport in self._strangers:
            transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)

    def make_place(self, machine: Machine, wake: Callable[[], None]) -> ProcessPlace:
        return HeadPlace(self._dir, machine, wake, self)

    def make_engine(self, engine: LiveEngine) -> LiveEngine:
        return _Recorded(engine, self)

    def desired(self, desired: Desired) -> Desired:
        """The desired state with a group for every machine that has joined."""
        now = time.monotonic()
        for name, host in list(self.hosts.items()):
            if host.lost_since is not None and now - host.lost_since > FORGET_SECONDS:
                del self.hosts[name]
        groups = tuple(
            Group(name, Role.WORKER, len(host.report.members), Process(())) for name, host in sorted(self.hosts.items())
        )
        return replace(desired, shape=replace(desired.shape, workers=groups))

    def publish(self, address: HeadAddress | None) -> None:
        """Send the head's address and the engine's last view to other machines from now on."""
        self._published = address, self.last_view

    def members(self, observed: Observed, address: HeadAddress | None) -> list[Member]:
        """The members on other machines. Those that serve an earlier head are of an earlier epoch."""
        epoch, found = observed.state.head_epoch, []
        for host in self.hosts.values():
            for member in host.report.members:
                is_current = address is not None and host.report.heads.get(member.id) == address.key
                changed = replace(member, head_epoch=epoch if is_current else epoch - 1, pid=None)
                if host.lost_since is not None:
                    changed = replace(changed, state=MemberState.WAITING, reason="its host does not answer")
                found.append(changed)
        return found

    def _secret(self, name: str) -> Path:
        return self._dir.secrets / name

    # connections

    def _accept(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """Limit strangers before the TLS handshake. Machines that join show the token at once."""
        self._strangers.append(transport)
        for oldest in self._strangers[:-MAX_STRANGERS]:
            oldest.abort()
        del self._strangers[:-MAX_STRANGERS]
        task = asyncio.get_running_loop().create_task(self._serve(transport, context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        name, writer = "", None
        try:
            reader, writer = await messages.start_tls(transport, context)
            hello = await receive(reader, Hello, messages.CONNECT_SECONDS)
            problem = self._problem(hello)
            if problem:
                log.warning(pairs("host refused", name=hello.name, reason=problem))
                await send(writer, HeadState(error=problem))
                return
            name = hello.name
            self._forget_stranger(transport)
            await self._talk(hello, transport, reader, writer)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            log.info(pairs("host disconnected", name=name, error=error or type(error).__name__))
        finally:
            self._forget_stranger(transport)
            host = self.hosts.get(name)
            if host is not None and host.connection is transport:
                host.lost_since = time.monotonic()
            (writer or transport).close()
            if name:
                self._wake()

    def _forget_stranger(self, transport: asyncio.Transport) -> None:
        if transport in self._strangers:
            self._strangers.remove(transport)

    def _problem(self, hello: Hello) -> str:
        token = self._secret("join.token").read_text().partition(".")[0]
        if not secrets.compare_digest(hello.token.encode(), token.encode()):
            return "its join token is not this head's"
        if hello.protocol != messages.PROTOCOL:
            return "its version of Oars differs from the head's"
        known = self.hosts.get(hello.name)
        if known is not None and known.lost_since is None and known.instance != hello.instance:
            return f"another machine has joined as {hello.name!r}; choose another --name"
        return ""

    async def _talk(
        self, hello: Hello, transport: asyncio.Transport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A state for every report, until the machine leaves."""
        report, known = HostReport(), self.hosts.get(hello.name)
        if known is not None:
            known.connection = transport
        while True:
            await send(writer, self._state(report))
            if not hello.name or self._is_closing:
                return
            report = await receive(reader, HostReport)
            if report.is_leaving:
                self.hosts.pop(hello.name, None)
                return
            before = self.hosts.get(hello.name)
            self.hosts[hello.name] = JoinedHost(hello.instance, report, transport)
            if before is None or before.report != report or before.lost_since is not None:
                self._wake()

    def _state(self, report: HostReport) -> HeadState:
        paths = sorted(path for path in self._dir.secrets.glob("*") if path.name not in UNSENT)
        private = {path.name: path.read_text(encoding="ascii") for path in paths}
        mine = {member.id for member in report.members}
        address, view = self._published
        return HeadState(
            cluster=self._record.name,
            spec=self._record.intent.spec,
            spec_digest=digest(dict(self._record.intent.spec)),
            head=address,
            is_up=view.up,
            message=view.message,
            views={member: each for member, each in view.members.items() if member in mine},
            secrets=None if report.has_secrets == digest(private) else private,
        )


class HeadPlace(ProcessPlace):
    """The head is a process of this machine; workers are started and stopped by their own machines."""

    def __init__(self, files: ClusterDir, machine: Machine, wake: Callable[[], None], link: HeadLink) -> None:
        super().__init__(files, machine, wake)
        self._link = link
        self._mark = files.read().mark
        self._address: HeadAddress | None = None  # as last observed

    async def observe(self, desired: Desired) -> Observed:
        observed = await super().observe(desired)
        self._address = self._find_head(observed)
        if not desired.running:
            return observed
        return replace(observed, members=(*observed.members, *self._link.members(observed, self._address)))

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        """Other machines get the head's address first: they need it even if this machine's disk is full."""
        self._link.publish(self._address)
        await super().record(desired, state, report)

    def _find_head(self, observed: Observed) -> HeadAddress | None:
        head, entry = observed.member(HEAD), self._ledger.entries.get(HEAD)
        if head is None or entry is None:
            return None
        return HeadAddress(f"{self._mark[:8]}:{head.incarnation}", head.state, self._machine.host, entry.ports)

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        if step.group.role is Role.HEAD:
            await super().ensure(desired, step)

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        remote = tuple(member for member in step.members if member not in self._ledger.entries)
        causes = await super().remove(desired, step)
        if not remote:
            return causes
        message = f"Waiting for other hosts to remove their workers {join_names(remote)}: {step.reason}."
        hint = "Each host removes its own workers. Check that `oars worker` runs there."
        return (*causes, Cause("RemovedByTheirHost", message, hint, members=remote))

    def wire(self, desired: Desired) -> ProcessWire:
        wire, reports = super().wire(desired), [host.report for host in self._link.hosts.values()]
        addresses = {member: found for report in reports for member, found in report.addresses.items()}
        incarnations = {member.id: member.incarnation for report in reports for member in report.members}
        return replace(
            wire,
            addresses={**addresses, **wire.addresses},
            incarnations={**incarnations, **wire.incarnations},
        )


class _Recorded(LiveEngine):
    """The engine; what it last reported is passed on to the other machines."""

    def __init__(self, engine: LiveEngine, link: HeadLink) -> None:
        self._engine = engine
        self._link = link

    async def look(self, wire: Wire) -> View:
        self._link.last_view = await self._engine.look(wire)
        return self._link.last_view

    async def reconcile(self, wire: Wire, view: View) -> None:
        await self._engine.reconcile(wire, view)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        return await self._engine.drain(wire, members, deadline, force)
