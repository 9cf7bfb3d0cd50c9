"""The user's part of the toy engine."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Sequence
from concurrent.futures import Executor

from toy_library import Client

from oars.engines import runner
from oars.engines.base import Access
from oars.engines.calls import cloudpickled
from oars.engines.executor import Batch, Connection, EngineExecutor, HeadDied, WorkerDied


def connect(access: Access) -> Client:
    return Client(access.env["TOY_ADDRESS"])


def disconnect(client: Client) -> None:
    client.closed = True


def executor(access: Access) -> Executor:
    return EngineExecutor(lambda: ToyConnection(access), cloudpickled)


class ToyConnection(Connection):
    task_seconds = 0.02

    def __init__(self, access: Access) -> None:
        self.access = access
        self._client = connect(access)

    def processors(self) -> float:
        return len(self._client.workers())

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            threading.Thread(target=self._run, args=(batch,), daemon=True).start()

    def _run(self, batch: Batch) -> None:
        try:
            data = self._client.run(runner.run, *batch.arguments, "cloudpickle")
        except (OSError, http.client.HTTPException) as error:
            batch.end(batch, None, HeadDied(str(error)))
            return
        batch.end(batch, data or None, None if data else WorkerDied("The toy fell apart."))

    def close(self) -> None:
        disconnect(self._client)
