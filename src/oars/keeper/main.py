"""One keeper for one cluster: runs the loop, publishes reports to its listeners, and cleans up at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from oars import engines
from oars.base import codec
from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, log_to_file, pairs
from oars.control.loop import Loop
from oars.control.runner import Runner
from oars.engines.base import LiveEngine
from oars.model import Pause, Role
from oars.places.hosts.head import HeadLink
from oars.places.hosts.worker import WorkerLink
from oars.places.local.endings import write_gone
from oars.places.local.machine import LocalMachine
from oars.places.local.process import ExitWatch, boot_id
from oars.places.local.store import STOP, ClusterDir, ClusterRecord, lock_keeper
from oars.places.process.ledger import read_ledger
from oars.places.process.place import ProcessPlace, litter
from oars.places.report import Report
from oars.plan.lifetime import OWNER_GONE, ended
from oars.plan.status import failed
from oars.plan.why import pass_failure
from oars.spec.status import Phase, Status

log = get_logger("oars.keeper")


def main(path: str, environ: Mapping[str, str]) -> int:
    directory = ClusterDir(Path(path))
    os.umask(0o077)
    try:
        os.chdir(directory.path)  # the socket's full name may be too long for the kernel
        if lock_keeper(directory.keeper_lock) is None:
            return 0  # another keeper runs
        log_to_file(str(directory.keeper_log))
        record = directory.read()
        if record.host.boot != boot_id():
            log.warning(pairs("cluster of another host", host=record.host.name))
            return 0
        keeper = Keeper(record, directory.path, environ)
    except (FileNotFoundError, NotFound):
        return 0  # the cluster was stopped and removed before we started
    asyncio.run(keeper.run())
    return 0


class Keeper:
    """Reconciles one cluster until it is stopped (see control.runner.Reconciler)."""

    def __init__(self, record: ClusterRecord, path: Path, environ: Mapping[str, str]) -> None:
        self._record = record
        self._dir = ClusterDir(path, record.mark)  # another cluster may take the directory's name
        self._listeners: set[asyncio.StreamWriter] = set()
        self._report: Report | None = None
        self._runner: Runner[str] = Runner(self)
        self._owner = ExitWatch(self._wake)
        self._is_stop_requested = False
        self._litter: set[str] = set()
        self._machine = LocalMachine(self._dir, record, environ, self._wake)
        self._place: ProcessPlace | None = None
        self._loop: Loop | None = None
        self._link: HeadLink | WorkerLink | None = None  # to other machines
        if record.link is not None:
            kind = HeadLink if record.link.role is Role.HEAD else WorkerLink
            self._link = kind(self._dir, record, self._wake)

    def _wake(self) -> None:
        self._runner.wake(self._dir.name)

    async def run(self) -> None:
        log.info(pairs("keeper starts", pid=os.getpid()))
        self._dir.socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._listen, self._dir.socket.name)
        self._wake()
        try:
            await self._runner.run(until_empty=True)
            with contextlib.suppress(OarsError):  # a damaged ledger: the mark still finds every process
                entries = read_ledger(self._dir.ledger_file).entries.values()
                self._litter |= {pattern for entry in entries for pattern in entry.litter}
            # Before anything is closed: the fork servers must not start another member.
            await self._machine.sweep_all(self._litter)
        finally:
            server.close()
            if self._loop is not None and self._place is not None:
                await self._loop.close()
                await self._place.close()
            if self._link is not None:
                await self._link.close()
        self._dir.remove()
        for writer in self._listeners:
            writer.close()

    async def reconcile(self, key: str) -> Pause | None:
        try:
            self._record = record = self._with_stop_request(self._dir.read())
        except NotFound:
            return None  # the directory was removed: nothing of the cluster may stay
        self._litter |= {pattern for group in record.desired.groups for pattern in litter(group)}
        if self._loop is None:
            try:
                self._loop = await self._make_loop(record)
            except OarsError:
                if not record.intent.running:
                    return None  # nothing needs the damaged ledger any more
                raise
        desired = record.desired if self._link is None else self._link.desired(record.desired)
        pause = await self._loop.once(desired)
        self._publish(self._loop.report)
        expires = self._loop.outlook.expires
        if self._loop.outlook.is_due and expires is not None:
            self._end(expires.reason, expires.message)
            return Pause(0.0)
        report = self._loop.report
        return None if report is not None and report.status.phase is Phase.STOPPED else pause

    async def _make_loop(self, record: ClusterRecord) -> Loop:
        engine: LiveEngine = engines.get(record.desired.engine)
        if self._link is None:
            self._place = ProcessPlace(self._dir, self._machine, self._wake)
        else:
            await self._link.open()
            self._place = self._link.make_place(self._machine, self._wake)
            engine = self._link.make_engine(engine)
        return Loop(self._place, engine, time.time)

    async def report_failure(self, key: str, error: Exception) -> None:
        cause, desired = pass_failure(error, str(self._dir.keeper_log)), self._record.desired
        if self._loop is None:
            status = Status(self._record.name, desired.engine, desired.place, Phase.FAILED)
            self._publish(Report(failed(status, cause, self._record.intent.generation), (cause,)))
            return
        try:
            await self._loop.report_failure(desired, cause)
        finally:  # listeners hear of it even if the disk is full
            self._publish(self._loop.report)

    def _with_stop_request(self, record: ClusterRecord) -> ClusterRecord:
        """The record, not running if its owner ended or a client requested a stop. It is not written,
        because the disk may be full."""
        if not record.intent.running:
            return record
        if record.owner is not None and not record.owner.alive():
            if not self._is_stop_requested:
                self._end(OWNER_GONE, f"its owner, process {record.owner.pid}, ended")
        elif record.owner is not None:
            self._owner.watch(record.owner)
        return record.changed(running=False) if self._is_stop_requested else record

    def _end(self, reason: str, message: str) -> None:
        """Stop the cluster as a client would, also if this keeper is killed meanwhile, and store why."""
        log.info(pairs("cluster ends by itself", reason=reason, rule=message))
        self._is_stop_requested = True
        write_gone(
            self._dir.path.parents[1], self._record.mark, ended(self._record.desired, reason, message, time.time())
        )
        try:
            self._dir.change(lambda record: record.changed(running=False))
        except (OarsError, OSError) as error:  # the disk is full; the request in memory is enough
            log.warning(pairs("intent not stored", error=error))

    def _publish(self, report: Report | None) -> None:
        """Send a changed report to every listener."""
        if report is None or report == self._report:
            return
        self._report = report
        for writer in self._listeners:
            writer.write(_line(report))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client gets the report now and at every change. Its connecting wakes the loop, and its STOP stops the
        cluster."""
        self._listeners.add(writer)
        try:
            if self._report is not None:
                writer.write(_line(self._report))
            self._wake()
            while line := await reader.readline():
                self._is_stop_requested |= line == STOP
                self._wake()
        except OSError:
            log.info("listener disconnected")
        finally:
            self._listeners.discard(writer)
            writer.close()


def _line(report: Report) -> bytes:
    return json.dumps(codec.dump(report)).encode() + b"\n"
