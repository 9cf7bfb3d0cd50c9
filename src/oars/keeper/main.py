"""One keeper for one cluster: read the intent, run the loop, tell whoever listens, and clean up at the end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from oars import engines
from oars.base.errors import NotFound
from oars.base.log import get_logger, log_to_file, pairs
from oars.control.loop import Loop
from oars.model import Desired
from oars.places.local.place import LocalPlace
from oars.places.local.process import ExitWatch
from oars.places.local.store import ClusterDir, Intent
from oars.places.report import Report
from oars.plan.codec import load_shape
from oars.spec.status import Phase

log = get_logger("oars.keeper")


def main(path: str, environ: Mapping[str, str]) -> int:
    directory = ClusterDir(Path(path))
    os.umask(0o077)
    try:
        os.chdir(directory.path)  # the socket's name may be too long for the kernel otherwise
    except FileNotFoundError:
        return 0  # it was stopped and swept away before we came
    lock = os.open(directory.keeper_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another keeper is at work
    log_to_file(str(directory.keeper_log))
    asyncio.run(Keeper(directory, environ).run())
    return 0


class Keeper:
    """Runs the loop until the cluster is stopped."""

    def __init__(self, directory: ClusterDir, environ: Mapping[str, str]) -> None:
        self._dir = directory
        self._wake = asyncio.Event()
        self._listeners: set[asyncio.StreamWriter] = set()
        self._report: Report | None = None
        self._owner = ExitWatch(self._wake.set)
        intent = directory.read_intent()
        self._engine = engines.get(str(intent.spec["engine"]))
        head = self._desired(intent).shape.head
        self._place = LocalPlace(directory, intent, head, environ, self._wake.set)
        self._loop = Loop(self._place, self._engine, time.time)

    async def run(self) -> None:
        log.info(pairs("keeper starts", pid=os.getpid()))
        (self._dir.socket).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._listen, self._dir.socket.name)
        try:
            while await self._once():
                pass
        finally:
            server.close()
            await self._loop.close()
            await self._place.close()
        await self._place.sweep_all()
        self._dir.remove()
        for writer in self._listeners:
            writer.close()

    async def _once(self) -> bool:
        """One pass of the loop and the pause after it; False when the cluster is gone."""
        self._wake.clear()
        try:
            intent = self._heed_owner(self._dir.read_intent())
        except NotFound:
            return False  # somebody removed the directory: nothing must be left of the cluster
        pause = await self._loop.once(self._desired(intent))
        status = self._loop.status
        self._tell()
        if status is not None and status.phase is Phase.STOPPED:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        return True

    def _heed_owner(self, intent: Intent) -> Intent:
        """A tied cluster ends when its owner does, however that happened."""
        if intent.owner is None or not intent.running:
            return intent
        if intent.owner.alive():
            self._owner.watch(intent.owner)
            return intent
        log.info(pairs("owner is gone", pid=intent.owner.pid))
        return self._dir.change_intent(running=False)

    def _desired(self, intent: Intent) -> Desired:
        return Desired(
            name=intent.name,
            engine=self._engine.name,
            place="local",
            shape=load_shape(intent.shape),
            running=intent.running,
            force=intent.force,
            drain_seconds=intent.drain_seconds,
            generation=intent.generation,
        )

    def _tell(self) -> None:
        """Everyone who listens hears of each change."""
        report = self._place.report
        if report is None or report == self._report:
            return
        self._report = report
        for writer in self._listeners:
            writer.write(_line(report))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client: it hears the report now and at every change; anything it says (or its coming) wakes the loop."""
        self._listeners.add(writer)
        try:
            if self._report is not None:
                writer.write(_line(self._report))
            self._wake.set()
            while await reader.readline():
                self._wake.set()
        except OSError:
            log.info("a listener went away")
        finally:
            self._listeners.discard(writer)
            writer.close()


def _line(report: Report) -> bytes:
    return json.dumps(report.to_json()).encode() + b"\n"
