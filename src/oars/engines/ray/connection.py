"""An executor's calls as tasks of Ray. Ray reports results on its own thread, which must not block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from oars.base.errors import ClusterLost
from oars.engines.calls import make_run
from oars.engines.executor import Batch, Connection, HeadDied, WorkerDied
from oars.engines.ray.link import Link

LOSS_SECONDS = 0.5  # Ray may report a lost node this long before the Link notices a lost head


class RayConnection(Connection):
    """Calls `release` when it is closed."""

    task_seconds = 0.001

    def __init__(self, link: Link, release: Callable[[], None]) -> None:
        self.access = link.access
        self._link = link
        self._release = release
        # The executor sends calls again: Ray would do it without limit if memory runs out.
        self._run = link.ray.remote(max_retries=0)(make_run("ray.cloudpickle"))
        self._lock = threading.Lock()
        self._sent: dict[Batch, Any] = {}  # with Ray's reference
        link.on_loss.add(self._lose)

    def processors(self) -> float:
        return self._link.processors()

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            try:
                reference = self._run.options(name=batch.name).remote(*batch.arguments)
            except Exception:
                if not self._link.lost.wait(LOSS_SECONDS):
                    raise
                batch.end(batch, None, HeadDied(self._link.error().message))
                continue
            with self._lock:
                self._sent[batch] = reference
            reference._on_completed(partial(self._complete, batch))
            if self._link.lost.is_set():  # _lose may have run before the batch was in _sent
                self._end(batch, None, HeadDied(self._link.error().message))

    def _complete(self, batch: Batch, result: Any) -> None:
        """Runs in Ray's thread."""
        if isinstance(result, bytes):
            self._end(batch, result, None)
        elif isinstance(result, self._link.ray.exceptions.RayTaskError):
            self._end(batch, None, result)
        else:
            threading.Thread(target=self._explain, args=(batch, result), daemon=True).start()

    def _explain(self, batch: Batch, error: Any) -> None:
        is_head = self._link.lost.wait(LOSS_SECONDS)
        self._end(batch, None, HeadDied(self._link.error().message) if is_head else WorkerDied(str(error)))

    def _end(self, batch: Batch, data: bytes | None, error: BaseException | None) -> None:
        with self._lock:
            if self._sent.pop(batch, None) is None:
                return
        batch.end(batch, data, error)

    def _lose(self, error: ClusterLost) -> None:
        with self._lock:
            batches = list(self._sent)
        for batch in batches:
            self._end(batch, None, HeadDied(error.message))

    def close(self) -> None:
        self._link.on_loss.discard(self._lose)
        self._release()
