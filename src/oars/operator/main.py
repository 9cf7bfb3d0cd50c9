"""The operator: one leader looks after all ComputeClusters, a second replica waits to take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from pathlib import Path

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.control.queue import Queue
from oars.kube import config
from oars.kube.client import Client
from oars.kube.lease import Elector
from oars.operator import NAME, NAMESPACE, RunOptions
from oars.operator.index import Key, Watches
from oars.operator.keeping import Keeping
from oars.operator.metrics import Metrics
from oars.operator.pages import Pages

WORKERS = 16  # clusters looked after at a time: they mostly wait for answers
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = get_logger(__name__)


async def run(options: RunOptions) -> None:
    """Until cancelled. Leads if nobody else does, waits if somebody does."""
    _log_to_stderr(options.log_format)
    path = Path(options.kubeconfig) if options.kubeconfig else None
    target = config.load(os.environ, context=options.context, kubeconfig=path)
    async with Client(target, user_agent="oars-operator") as client:
        await Operator(client, options).run()


class Operator:
    """One replica."""

    def __init__(self, client: Client, options: RunOptions) -> None:
        self._client = client
        self._options = options
        self._queue: Queue[Key] = Queue(time.monotonic)
        self.metrics = Metrics(lambda: self._queue.ready)
        inside = ACCOUNT.exists()
        self._watches = Watches(client, options.namespaces, self._queue.add)
        self._keeping = Keeping(client, self._watches, inside=inside)
        home = options.lease_namespace or (ACCOUNT.read_text().strip() if inside else NAMESPACE)
        identity = f"{options.identity or socket.gethostname()}-{secrets.token_hex(3)}"
        lease = options.lease_seconds
        self._elector = Elector(client, home, NAME, identity, lease, renew=lease * 2 / 3, retry=lease / 7.5)
        self._pages = Pages(self.metrics.text, self._is_well)

    async def run(self) -> None:
        """Watches run in every replica, so that the next leader starts with all that is known."""
        await self._pages.start(self._options.metrics_port, self._options.health_port)
        watching = [asyncio.create_task(informer.run()) for informer in self._watches]
        try:
            while True:
                await self._elector.lead()
                await self._lead()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self._elector.release()
            await self._pages.close()

    async def _lead(self) -> None:
        """Work until the Lease is lost."""
        for informer in self._watches:
            await informer.synced.wait()
        for key in self._watches.clusters:
            self._queue.add(key)
        self.metrics.leading = True
        working = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        lost = asyncio.create_task(self._elector.lost.wait())
        try:
            done, _ = await asyncio.wait([lost, *working], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {lost}:
                task.result()  # a worker ends only by a mistake of ours
        finally:
            self.metrics.leading = False
            for task in (lost, *working):
                task.cancel()
            await asyncio.gather(lost, *working, return_exceptions=True)
            await self._keeping.close()

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._pass(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: Key) -> None:
        started = time.monotonic()
        try:
            pause = await self._keeping.once(key)
        except (OarsError, TimeoutError, OSError) as error:
            self.metrics.count(time.monotonic() - started, failed=True)
            wait = self._queue.failed(key)
            log.warning(pairs("pass failed", cluster=f"{key[0]}/{key[1]}", error=error, again=f"{wait:.1f}s"))
            return
        except Exception:  # a mistake of ours that one cluster brought to light must not end the care for all others
            self.metrics.count(time.monotonic() - started, failed=True)
            wait = self._queue.failed(key)
            log.exception(pairs("pass broke", cluster=f"{key[0]}/{key[1]}", again=f"{wait:.1f}s"))
            return
        self.metrics.count(time.monotonic() - started, failed=False)
        self._queue.succeeded(key)
        if pause is not None:
            self._queue.add(key, pause)

    def _is_well(self) -> bool:
        """Ready to lead or leading: everything has been listed once."""
        return all(informer.synced.is_set() for informer in self._watches)


def _log_to_stderr(form: str) -> None:
    handler = logging.StreamHandler()
    if form == "json":
        from oars.operator.jsonlog import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("oars")
    with contextlib.suppress(IndexError):
        root.handlers.clear()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
