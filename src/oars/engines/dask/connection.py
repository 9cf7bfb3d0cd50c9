"""An executor's calls as tasks of Dask. Dask's futures are only used in the client's event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from oars.engines.base import Access
from oars.engines.calls import make_run
from oars.engines.executor import Batch, Connection, HeadDied, WorkerDied

SCHEDULER_LOST = "The Dask scheduler closed the connection."


class DaskConnection(Connection):
    """Fetches results together that were computed since the last fetch: fetching one costs the worker more than
    computing a small one."""

    task_seconds = 0.002
    max_attempts = 1  # Dask itself tries again: distributed.scheduler.allowed-failures

    def __init__(self, client: Any, access: Access, close: Callable[[], None]) -> None:
        self.access = access
        self._client = client
        self._close = close
        self._run = make_run()
        self._computed: list[tuple[Batch, Any]] = []  # with Dask's future
        self._fetching: asyncio.Task[None] | None = None

    def processors(self) -> float:
        return float(sum(self._client.nthreads().values()))

    def send(self, batches: Sequence[Batch]) -> None:
        self._client.loop.add_callback(self._submit, batches)

    def close(self) -> None:
        self._close()

    # The rest runs in the client's event loop.

    def _submit(self, batches: Sequence[Batch]) -> None:
        columns = zip(*(batch.arguments for batch in batches), strict=True)
        keys = [f"{batch.name}-{uuid.uuid4().hex}" for batch in batches]
        try:
            remotes = self._client.map(self._run, *columns, key=keys, pure=False)
        except Exception as error:  # noqa: BLE001 (the client is closed)
            for batch in batches:
                batch.end(batch, None, HeadDied(f"{SCHEDULER_LOST} {error}"))
            return
        for batch, remote in zip(batches, remotes, strict=True):
            asyncio.ensure_future(self._await(batch, remote))  # noqa: RUF006 (referenced by what it awaits)

    async def _await(self, batch: Batch, remote: Any) -> None:
        while remote.status in ("pending", "lost"):  # lost: its worker died, and Dask computes it again
            await remote._state.wait()
        if remote.status != "finished":
            batch.end(batch, None, _error(remote, None))
            remote.release()
            return
        self._computed.append((batch, remote))
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._fetch_all())

    async def _fetch_all(self) -> None:
        try:
            while self._computed:
                computed, self._computed = self._computed, []
                await self._fetch(computed)
        finally:
            self._fetching = None

    async def _fetch(self, computed: Sequence[tuple[Batch, Any]]) -> None:
        try:
            results = await self._client.gather([remote for _, remote in computed], asynchronous=True)
        except Exception as error:  # noqa: BLE001 (fetch each one to find out which failed)
            if len(computed) > 1:
                await asyncio.gather(*(self._fetch([each]) for each in computed))
                return
            results = [error]
        for (batch, remote), result in zip(computed, results, strict=True):
            if isinstance(result, bytes):
                batch.end(batch, result, None)
            else:
                batch.end(batch, None, _error(remote, result))
            remote.release()


def _error(remote: Any, error: Exception | None) -> BaseException:
    from distributed.scheduler import KilledWorker

    if remote.status == "error":
        error = remote._state.exception
    if isinstance(error, KilledWorker):
        return WorkerDied(str(error))
    if error is None or isinstance(error, OSError | CancelledError | asyncio.CancelledError):
        return HeadDied(SCHEDULER_LOST)
    return error
