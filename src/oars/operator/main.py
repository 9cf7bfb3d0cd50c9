"""The operator process: one leader reconciles all ComputeClusters, the other replicas stand by."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from oars.base.errors import OarsError
from oars.base.log import get_logger
from oars.client import operator_client
from oars.control.runner import Runner
from oars.kube import config
from oars.kube.client import Client
from oars.kube.informer import stop_all
from oars.kube.lease import Elector
from oars.operator import NAME, NAMESPACE, RunOptions
from oars.operator.index import Watches
from oars.operator.monitoring import Metrics, MonitoringServer
from oars.operator.reconciler import ClusterReconciler
from oars.operator.resources import RESOURCE_KINDS, Key, ResourceKind
from oars.places.kube import names

WORKERS = 16  # concurrent passes; they mostly wait for responses
GC_THRESHOLD = 50_000  # allocations between runs of the cycle collector: watches allocate millions, and no cycles
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = get_logger(__name__)


async def run(options: RunOptions) -> None:
    """Run one replica until cancelled."""
    _log_to_stderr(options.log_format)
    gc.set_threshold(GC_THRESHOLD)
    path = Path(options.kubeconfig) if options.kubeconfig else None
    target = config.load(os.environ, context=options.context, kubeconfig=path)
    async with Client(target, user_agent="oars-operator") as client:
        namespace = options.lease_namespace or _pod_namespace() or await operator_client.operator_namespace(client)
        await Operator(client, replace(options, lease_namespace=namespace)).run()


def _pod_namespace() -> str:
    """The namespace of this pod; empty outside a cluster."""
    return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.exists() else ""


class Operator:
    """One replica of the operator."""

    def __init__(self, client: Client, options: RunOptions, kinds: Sequence[ResourceKind] = RESOURCE_KINDS) -> None:
        self._client = client
        self._options = options
        self.metrics = Metrics(lambda: self._runner.due if self.metrics.leading else 0)  # a standby has no queue
        self._watches = Watches(client, options.namespaces, kinds, lambda key, pause: self._runner.wake(key, pause))
        self._reconciler = ClusterReconciler(
            client.guarded(self._check_leader),
            self._watches,
            kinds,
            in_cluster=POD_NAMESPACE.exists(),
            is_leader=lambda: self._elector.is_leader,
        )
        self._runner: Runner[Key] = Runner(self._reconciler, workers=WORKERS, observe_pass=self.metrics.count)
        namespace = options.lease_namespace or NAMESPACE
        identity = f"{options.identity or socket.gethostname()}-{secrets.token_hex(3)}"
        lease = options.lease_seconds
        self._elector = Elector(
            client, namespace, NAME, identity, lease, renew_deadline=lease * 2 / 3, retry_period=lease / 7.5
        )
        watched = {names.OPERATOR_WATCHES: ",".join(options.namespaces)}
        self._elector.lease_metadata = {"labels": names.OPERATOR, "annotations": watched}
        self._server = MonitoringServer(self.metrics.text, self._is_synced)

    def _check_leader(self) -> None:
        """Called before each write of a pass. The Lease may expire during a pass, for example while the machine is
        suspended, and another replica may lead by now."""
        if not self._elector.is_leader:
            raise OarsError("The Lease of this operator replica has expired.")

    async def run(self) -> None:
        """Run until cancelled. Every replica watches, so that the next leader starts with filled caches."""
        await self._server.start(self._options.metrics_port, self._options.health_port)
        tasks = [asyncio.create_task(informer.run()) for informer in self._watches]
        tasks.append(asyncio.create_task(self._lead_repeatedly()))
        try:
            # A task ends only because of a bug. An operator without its watches must not look healthy: it exits, and
            # Kubernetes restarts it.
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
        except Exception:
            log.exception("unexpected error; the operator exits")
            raise
        finally:
            await stop_all(tasks)
            await self._elector.release()
            await self._server.close()

    async def _lead_repeatedly(self) -> None:
        while True:
            await self._elector.lead()
            await self._lead()

    async def _lead(self) -> None:
        """Reconcile until the Lease is lost."""
        for informer in self._watches:
            await informer.synced.wait()
        for key in self._watches.resources:
            self._runner.wake(key)
        self.metrics.leading = True
        running = asyncio.create_task(self._runner.run())
        lost = asyncio.create_task(self._elector.lost.wait())
        try:
            done, _ = await asyncio.wait([lost, running], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {lost}:
                task.result()
        finally:
            self.metrics.leading = False
            for task in (lost, running):
                task.cancel()
            await asyncio.gather(lost, running, return_exceptions=True)
            await self._reconciler.close()

    def _is_synced(self) -> bool:
        """True if every informer has listed its objects: the replica leads or can lead."""
        return all(informer.synced.is_set() for informer in self._watches)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _log_to_stderr(log_format: str) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    root = logging.getLogger("oars")
    root.handlers.clear()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
