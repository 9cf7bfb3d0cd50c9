"""What both KubeClusters have in common: life cycle, and a connection that follows the scheduler."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import weakref
from collections.abc import Coroutine, Generator
from typing import Any, ClassVar, Self

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.objects import SchedulerInfo
from distributed.utils import silence_logging_cmgr
from tornado.ioloop import IOLoop

from oars.base.errors import OarsError

logger = logging.getLogger("oars.compat.dask_kubernetes")

CLOSE_AT_EXIT_SECONDS = 10.0
RECONNECT_SECONDS = 1.0

# Keyword arguments of both classes, with their defaults: those of distributed's cluster managers.
OPTIONS = {"asynchronous": False, "loop": None, "quiet": False, "silence_logs": False, "shutdown_on_close": True,
           "scheduler_sync_interval": 1}  # fmt: skip


class ClusterManager(Cluster):  # type: ignore[misc]
    """A cluster manager of distributed. Subclasses implement `_deploy`, which sets `scheduler_comm` and puts on
    `_opened` how to undo what it did."""

    _instances: ClassVar[weakref.WeakSet[ClusterManager]] = weakref.WeakSet()
    status = Status.closed  # there is nothing to close if an argument is wrong
    scheduler_info: Any

    def __init__(self, name: str, **options: Any) -> None:
        """`options`: see OPTIONS."""
        options = {**OPTIONS, **options}
        asynchronous, loop = options["asynchronous"], options["loop"]
        self.shutdown_on_close = options["shutdown_on_close"]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: asyncio.Task[Any] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opened = contextlib.AsyncExitStack()
        if options["silence_logs"]:
            self._opened.enter_context(silence_logging_cmgr(level=options["silence_logs"]))
        super().__init__(
            asynchronous=asynchronous,
            loop=IOLoop.current() if asynchronous and loop is None else loop,
            quiet=options["quiet"],
            name=name,
            scheduler_sync_interval=options["scheduler_sync_interval"],
        )
        self._instances.add(self)
        if not self.called_from_running_loop:
            self._loop_runner.start()
            try:
                self.sync(self._start)
            except BaseException:
                try:
                    self.sync(self._end_start)
                finally:
                    self._loop_runner.stop()
                raise

    def __await__(self) -> Generator[Any, Any, Self]:
        async def started() -> Self:
            if self.status == Status.created:
                await self._start()
            return self

        return started().__await__()

    async def _start(self) -> None:
        self.status = Status.starting
        self._starting = asyncio.current_task()
        try:
            await self._deploy()
            await super()._start()
        except BaseException:
            self.status = Status.failed
            await self._close()
            raise

    async def _end_start(self) -> None:
        """After Ctrl-C the start still runs in the loop's thread: wait until it has undone what it did."""
        if self._starting is not None:
            if not self._starting.cancelling():
                self._starting.cancel()
            await asyncio.wait([self._starting])

    async def _deploy(self) -> None:
        raise NotImplementedError

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it in the background until the cluster is closed."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self, timeout: float | None = None) -> Any:
        """Close the cluster: delete all that this object created."""
        result = super().close(timeout)
        if not self.asynchronous:
            self._loop_runner.stop()
        return result

    async def _close(self) -> None:
        """A second call waits for the same end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close_once())
        await asyncio.shield(self._closing)

    async def _close_once(self) -> None:
        self.status = Status.closing
        if self._adaptive is not None:
            self._adaptive.stop()
        for task in self._tasks:
            task.cancel()
        try:
            await self._opened.aclose()
        finally:
            await super()._close()

    # a scheduler that was restarted

    async def _watch_worker_status(self, comm: Any) -> None:
        await super()._watch_worker_status(comm)
        if self.status == Status.running:
            self._run(self._subscribe_again())

    async def _subscribe_again(self) -> None:
        self.scheduler_info["workers"] = {}
        while self.status == Status.running:
            try:
                comm = await self.scheduler_comm.live_comm()
                await comm.write({"op": "subscribe_worker_status"})
                self.scheduler_info = SchedulerInfo(await comm.read())
            except OSError:
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            self._watch_worker_status_comm = comm
            self._watch_worker_status_task = asyncio.ensure_future(self._watch_worker_status(comm))
            return


@atexit.register
def close_clusters() -> None:
    """Delete the pods of clusters that a program did not close."""
    for cluster in list(ClusterManager._instances):
        if cluster.shutdown_on_close and not cluster.asynchronous and cluster.status != Status.closed:
            try:
                cluster.close(timeout=CLOSE_AT_EXIT_SECONDS)
            except (OarsError, OSError) as error:  # TimeoutError is an OSError
                logger.warning("Cluster %r was not closed at exit, and may still run: %r", cluster.name, error)
