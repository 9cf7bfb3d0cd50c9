"""One keeper for one cluster: runs the loop, publishes reports to its listeners, and cleans up at the end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from oars import engines
from oars.base import codec
from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, log_to_file, pairs
from oars.control.loop import Loop, Pause
from oars.control.runner import Runner
from oars.model import Cause
from oars.places.local.machine import LocalMachine
from oars.places.local.process import ExitWatch
from oars.places.local.store import ClusterDir, ClusterRecord
from oars.places.process.ledger import read_ledger
from oars.places.process.place import ProcessPlace
from oars.places.report import Report
from oars.spec.status import Phase, Status

log = get_logger("oars.keeper")


def main(path: str, environ: Mapping[str, str]) -> int:
    directory = ClusterDir(Path(path))
    os.umask(0o077)
    try:
        os.chdir(directory.path)  # the socket's full name may be too long for the kernel
    except FileNotFoundError:
        return 0  # the cluster was stopped and removed before we started
    lock = os.open(directory.keeper_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another keeper runs
    log_to_file(str(directory.keeper_log))
    asyncio.run(Keeper(directory, environ).run())
    return 0


class Keeper:
    """Reconciles one cluster until it is stopped (see control.runner.Reconciler)."""

    def __init__(self, directory: ClusterDir, environ: Mapping[str, str]) -> None:
        self._dir = directory
        self._listeners: set[asyncio.StreamWriter] = set()
        self._report: Report | None = None
        self._runner: Runner[str] = Runner(self)
        self._owner = ExitWatch(self._wake)
        self._record = directory.read()
        self._litter = {pattern for group in self._record.desired.groups for pattern in group.process.litter}
        self._machine = LocalMachine(directory, self._record, environ, self._wake)
        self._place: ProcessPlace | None = None
        self._loop: Loop | None = None

    def _wake(self) -> None:
        self._runner.wake(self._dir.name)

    async def run(self) -> None:
        log.info(pairs("keeper starts", pid=os.getpid()))
        self._dir.socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._listen, self._dir.socket.name)
        self._wake()
        try:
            await self._runner.run(until_empty=True)
            # Before anything is closed: the fork servers must not start another member.
            await self._end_all()
        finally:
            server.close()
            if self._loop is not None and self._place is not None:
                await self._loop.close()
                await self._place.close()
        self._dir.remove()
        for writer in self._listeners:
            writer.close()

    async def _end_all(self) -> None:
        with contextlib.suppress(OarsError):  # a damaged ledger: the mark still finds every process
            entries = read_ledger(self._dir.ledger_file).entries.values()
            self._litter |= {pattern for entry in entries for pattern in entry.litter}
        await self._machine.sweep_all(self._litter)

    async def reconcile(self, key: str) -> Pause | None:
        try:
            self._record = record = self._check_owner(self._dir.read())
        except NotFound:
            return None  # somebody removed the directory: nothing of the cluster may stay
        self._litter |= {pattern for group in record.desired.groups for pattern in group.process.litter}
        if self._loop is None:
            try:
                self._place = ProcessPlace(self._dir, self._machine, self._wake)
            except OarsError:
                if not record.intent.running:
                    return None  # nothing needs the damaged ledger any more
                raise
            self._loop = Loop(self._place, engines.get(record.desired.engine), time.time)
        pause = await self._loop.once(record.desired)
        self._publish(self._loop.report)
        report = self._loop.report
        return None if report is not None and report.status.phase is Phase.STOPPED else pause

    async def report_failure(self, key: str, error: Exception) -> None:
        if isinstance(error, OarsError | OSError):
            cause = Cause("PassFailed", f"The keeper could not reconcile the cluster: {error}. It tries again.")
        else:
            cause = Cause(
                "InternalError",
                f"Unexpected error in the keeper: {type(error).__name__}: {error}. It tries again.",
                f"Please report it, with {self._dir.keeper_log}.",
            )
        if self._loop is None:
            status = Status(self._record.name, self._record.desired.engine, self._record.desired.place, Phase.FAILED)
            status = replace(
                status, reason=cause.reason, message=cause.message, generation=self._record.intent.generation
            )
            self._publish(Report(status, (cause,)))
            return
        try:
            await self._loop.report_failure(self._record.desired, cause)
        finally:  # listeners hear of it even if the disk is full
            self._publish(self._loop.report)

    def _check_owner(self, record: ClusterRecord) -> ClusterRecord:
        """A tied cluster ends when its owner does, however that happened."""
        if record.owner is None or not record.intent.running:
            return record
        if record.owner.alive():
            self._owner.watch(record.owner)
            return record
        log.info(pairs("owner is gone", pid=record.owner.pid))
        return self._dir.change(running=False)

    def _publish(self, report: Report | None) -> None:
        """Send a changed report to every listener."""
        if report is None or report == self._report:
            return
        self._report = report
        for writer in self._listeners:
            writer.write(_line(report))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client gets the report now and at every change; whatever it sends, and its connecting, wakes the loop."""
        self._listeners.add(writer)
        try:
            if self._report is not None:
                writer.write(_line(self._report))
            self._wake()
            while await reader.readline():
                self._wake()
        except OSError:
            log.info("listener disconnected")
        finally:
            self._listeners.discard(writer)
            writer.close()


def _line(report: Report) -> bytes:
    return json.dumps(codec.dump(report)).encode() + b"\n"
