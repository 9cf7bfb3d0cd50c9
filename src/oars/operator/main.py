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
from oars.base.log import LogLine, get_logger, pairs
from oars.client import operator_client
from oars.control.runner import Runner
from oars.kube import config
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import stop_all
from oars.kube.kinds import CRD, LEASE
from oars.kube.lease import Elector
from oars.model import Pause
from oars.operator import MARS_JOB, NAME, NAMESPACE, RunOptions, marsjob
from oars.operator.index import Watches
from oars.operator.jobs import JobReconciler
from oars.operator.monitoring import Metrics, MonitoringServer
from oars.operator.reconciler import ClusterReconciler
from oars.operator.resources import RESOURCE_KINDS, Key, ResourceKind
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_JOB
from oars.places.kube.state.events import event
from oars.places.kube.state.root import now

JOBS_SECONDS = 10.0  # between two looks for the kind ComputeJob
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
        kinds = (*RESOURCE_KINDS, *await adopted(client, options))
        await Operator(client, replace(options, lease_namespace=namespace), kinds).run()


async def adopted(client: Client, options: RunOptions) -> list[ResourceKind]:
    """The kinds of `--adopt` that this Kubernetes has. Waits until the API server serves those that are defined: KubeDL
    defines only one of the two groups of MarsJob."""
    found = []
    for each in marsjob.RESOURCE_KINDS if MARS_JOB in options.adopt else ():
        name = f"{each.kind.plural}.{each.kind.group}"
        try:
            await client.get(CRD, name)
        except ApiError as error:
            if not is_not_found(error):
                raise
            log.warning(pairs("kind not served: its definition does not exist", crd=name))
            continue
        while await operator_client.if_allowed(client.list(each.kind, _first(options), limit=1)) is None:
            log.info(pairs("waiting until MarsJobs can be listed", crd=name))
            await asyncio.sleep(1.0)  # poll: the API server serves a new definition after a moment
        found.append(each)
    return found


def _first(options: RunOptions) -> str | None:
    return next(iter(options.namespaces), None)


def _pod_namespace() -> str:
    """The namespace of this pod; empty outside a cluster."""
    return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.exists() else ""


class Operator:
    """One replica of the operator."""

    def __init__(self, client: Client, options: RunOptions, kinds: Sequence[ResourceKind] = RESOURCE_KINDS) -> None:
        self._client = client
        self._options = options
        self.metrics = Metrics(
            lambda: self._runner.due if self.metrics.leading else 0,  # a standby has no queue
            lambda: self._reconciler.statuses(),
            client.errors,
        )
        self._watches = Watches(client, options.namespaces, kinds, lambda key, pause: self._runner.wake(key, pause))
        self._reconciler = ClusterReconciler(
            client.guarded(self._check_leader),
            self._watches,
            kinds,
            pod_namespace=_pod_namespace(),
            trust_authors=options.trust_authors,
            is_leader=lambda: self._elector.is_leader,
            waiting=lambda: self._runner.waiting(),
        )
        self._jobs = JobReconciler(
            client.guarded(self._check_leader),
            options.namespaces,
            self._watches,
            lambda key, pause: self._runner.wake(key, pause),
            trust_authors=options.trust_authors,
            is_leader=lambda: self._elector.is_leader,
        )
        both = _ByKind(self._reconciler, self._jobs)
        self._runner: Runner[Key] = Runner(
            both, workers=WORKERS, tenant=lambda key: key.namespace, observe_pass=self.metrics.count
        )
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
        tasks.append(asyncio.create_task(self._watch_jobs()))
        tasks.append(asyncio.create_task(self._watches.nodes.run()))
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
        for key in (*self._watches.resources, *self._jobs.resources):
            self._runner.wake(key)
        self.metrics.leading = True
        announcing = asyncio.create_task(self._announce())
        running = asyncio.create_task(self._runner.run())
        lost = asyncio.create_task(self._elector.lost.wait())
        try:
            done, _ = await asyncio.wait([lost, running], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {lost}:
                task.result()
        finally:
            self.metrics.leading = False
            for task in (lost, running, announcing):
                task.cancel()
            await asyncio.gather(lost, running, announcing, return_exceptions=True)
            await self._reconciler.close()
            await self._jobs.close()

    async def _announce(self) -> None:
        """Create an Event about the new leader, as Kubernetes' own controllers do. A refused Event changes nothing."""
        namespace = self._options.lease_namespace or NAMESPACE
        about = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "name": NAME, "namespace": namespace}
        message = f"{self._elector.identity} became leader"
        made = event(about, "LeaderElection", message, event_type="Normal", source=NAME, moment=now())
        try:
            await self._client.create(made)
        except OarsError as error:
            log.warning(pairs("event refused", lease=NAME, error=error.message))

    async def _watch_jobs(self) -> None:
        """An older installation has no ComputeJobs, or does not let the operator read them. It then serves clusters
        only, until that changes."""
        namespace = _first(self._options)
        while True:
            try:
                if await operator_client.if_allowed(self._client.list(COMPUTE_JOB, namespace, limit=1)) is not None:
                    break
            except OarsError as error:
                log.info(pairs("ComputeJobs cannot be listed", error=error.message))
            await asyncio.sleep(JOBS_SECONDS)  # poll: kinds are rarely installed
        informers = (informer.run() for informer in self._jobs.informers)
        await asyncio.gather(*informers, self._jobs.queues.run(self._jobs.resources))

    def _is_synced(self) -> bool:
        """True if every informer has listed its objects: the replica leads or can lead."""
        return all(informer.synced.is_set() for informer in self._watches)


class _ByKind:
    """Passes each key to the reconciler of its kind."""

    def __init__(self, clusters: ClusterReconciler, jobs: JobReconciler) -> None:
        self._clusters = clusters
        self._jobs = jobs

    def _of(self, key: Key) -> ClusterReconciler | JobReconciler:
        return self._jobs if key.kind == COMPUTE_JOB.kind else self._clusters

    async def reconcile(self, key: Key) -> Pause | None:
        return await self._of(key).reconcile(key)

    async def report_failure(self, key: Key, error: Exception) -> None:
        await self._of(key).report_failure(key, error)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object, in which the fields of the line, such as `cluster`, are keys."""

    def format(self, record: logging.LogRecord) -> str:
        given = record.msg
        line = {
            **(given.fields if isinstance(given, LogLine) else {}),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": given.message if isinstance(given, LogLine) else record.getMessage(),
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
