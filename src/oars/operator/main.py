"""The operator: one leader looks after all ComputeClusters, a second replica waits to take over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import socket
import time
from dataclasses import replace
from pathlib import Path

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.rate import PollSpread
from oars.client import operator_client
from oars.control.queue import Queue
from oars.kube import config
from oars.kube.client import Client
from oars.kube.informer import stop
from oars.kube.lease import Elector
from oars.operator import NAME, NAMESPACE, RunOptions
from oars.operator.index import Due, Key, Watches
from oars.operator.metrics import Metrics
from oars.operator.pages import Pages
from oars.operator.reconciler import Reconciler
from oars.places.kube import names

WORKERS = 16  # clusters looked after at a time: they mostly wait for answers
# Looks a second, for all clusters together that wait for Kubernetes and for all that rest: what happens is told to us
# anyway.
WAITING_LOOKS, RESTING_LOOKS = 10.0, 20.0
GARBAGE = 50_000  # new objects after which Python looks for cycles: watches make millions, and no cycles
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = get_logger(__name__)


async def run(options: RunOptions) -> None:
    """Until cancelled. Leads if nobody else does, waits if somebody does."""
    _log_to_stderr(options.log_format)
    gc.set_threshold(GARBAGE)
    path = Path(options.kubeconfig) if options.kubeconfig else None
    target = config.load(os.environ, context=options.context, kubeconfig=path)
    async with Client(target, user_agent="oars-operator") as client:
        home = options.lease_namespace or _own_namespace() or await operator_client.home(client)
        await Operator(client, replace(options, lease_namespace=home)).run()


def _own_namespace() -> str:
    """Of our pod, if this is one."""
    return ACCOUNT.read_text().strip() if ACCOUNT.exists() else ""


class Operator:
    """One replica."""

    def __init__(self, client: Client, options: RunOptions) -> None:
        self._client = client
        self._options = options
        self._queue: Queue[Key] = Queue(time.monotonic)
        self.metrics = Metrics(lambda: self._queue.ready if self.metrics.leading else 0)  # a spare has no work to do
        self._waiting = PollSpread(WAITING_LOOKS)
        self._watches = Watches(client, options.namespaces, self._wake)
        resting = PollSpread(RESTING_LOOKS)
        self._keeping = Reconciler(client, self._watches, self._waiting, resting, inside=ACCOUNT.exists())
        home = options.lease_namespace or NAMESPACE
        identity = f"{options.identity or socket.gethostname()}-{secrets.token_hex(3)}"
        lease = options.lease_seconds
        self._elector = Elector(client, home, NAME, identity, lease, renew=lease * 2 / 3, retry=lease / 7.5)
        watched = {names.OPERATOR_WATCHES: ",".join(options.namespaces)}
        self._elector.about = {"labels": names.OPERATOR, "annotations": watched}
        self._pages = Pages(self.metrics.text, self._is_well)

    def _wake(self, key: Key, due: Due) -> None:
        """What is not urgent waits longer while many clusters are on their way."""
        self._queue.add(key, due.pause(self._waiting.turn))

    async def run(self) -> None:
        """Watches run in every replica, so that the next leader starts with all that is known."""
        await self._pages.start(self._options.metrics_port, self._options.health_port)
        tasks = [asyncio.create_task(informer.run()) for informer in self._watches]
        tasks.append(asyncio.create_task(self._take_turns()))
        try:
            # None of them ends but by a mistake of ours. An operator that has gone blind must not look well: it ends,
            # and what starts it again begins with everything listed anew.
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
        except Exception:
            log.exception("ends by a mistake of ours")
            raise
        finally:
            await stop(tasks)
            await self._elector.release()
            await self._pages.close()

    async def _take_turns(self) -> None:
        while True:
            await self._elector.lead()
            await self._lead()

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
