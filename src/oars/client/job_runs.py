"""The runs of a local job that has a schedule: jobs that its keeper submits. See control.schedule.Runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, pairs
from oars.places.local.jobs import JobDir, JobRecord
from oars.plan.schedule import RunSeen
from oars.spec.job_status import JobStatus

if TYPE_CHECKING:
    from oars.client.jobs import LocalJobs

log = get_logger("oars.job_keeper")


class LocalRuns:
    def __init__(self, jobs: LocalJobs, record: JobRecord, directory: JobDir) -> None:
        self._jobs = jobs
        self._record = record
        self._dir = directory

    async def list(self) -> Sequence[RunSeen]:
        """Looking at a run also starts its keeper, if it needs one and has none."""
        found = []
        for name in self._jobs.store.names():
            try:
                if self._jobs.store.job(name).read().schedule == self._record.mark:
                    info = await self._jobs.job(name).info()
                    found.append(RunSeen(name, info.created, info.status.state.is_final))
            except NotFound:
                continue
            except OarsError as error:  # whose it is cannot be read
                log.warning(pairs("job cannot be read", job=name, error=error.message))
        return found

    async def start(self, name: str) -> None:
        spec = {key: value for key, value in self._record.spec.items() if key not in ("schedule", "suspend")}
        run = replace(
            self._record, name=name, spec=spec, mark=secrets.token_hex(16), created=time.time(),
            schedule=self._record.mark,
        )  # fmt: skip
        archive = self._dir.archive.read_bytes() if self._dir.archive.exists() else b""
        try:
            self._jobs.store.create(run, archive)
        except OarsError:
            if self._jobs.store.job(name).read().schedule != self._record.mark:
                raise
        self._jobs.job(name).ensure_keeper()

    async def cancel(self, name: str) -> None:
        with suppress(NotFound):
            await self._jobs.job(name).cancel()

    async def remove(self, run: RunSeen) -> None:
        with suppress(NotFound):  # its own keeper has removed it
            self._jobs.store.job(run.name).change(lambda record: replace(record, delete=True))
            self._jobs.job(run.name).ensure_keeper()

    async def record(self, status: JobStatus) -> None:
        self._dir.write_status(status)
