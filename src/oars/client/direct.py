"""Direct mode: the client reconciles the cluster in its own event loop while it holds the cluster's Lease. While no
client holds it, Deployments still replace failed pods."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from oars import engines
from oars.base import codec
from oars.base.errors import NotFound, OarsError, Replaced
from oars.base.log import get_logger, pairs
from oars.client.watches import Watches
from oars.control.loop import Loop
from oars.control.runner import Runner
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import Informer, stop_all
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, LEASE, POD, Object
from oars.kube.lease import Elector
from oars.model import Desired, Pause
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.state import endings, observe, ownership
from oars.places.kube.state.cache import trimmed_deployment, trimmed_pod
from oars.places.kube.state.nodes import NodeWatch
from oars.places.kube.state.root import INTENT, ConfigMapRoot, read_intent, reference, report_of
from oars.places.kube.why.api_errors import cause_of, denied_with_rule
from oars.places.kube.wire import Reach
from oars.places.report import Report
from oars.plan.desired import build, make_lifetime
from oars.plan.lifetime import ended, rules
from oars.plan.status import failed
from oars.spec import load
from oars.spec.status import Expires, Phase, Status

LONGEST_PAUSE = 5.0  # after an error
MIN_ORPHAN_TIMEOUT = 10.0  # seconds: two renewals of the Lease

log = get_logger(__name__)


def lease_metadata(root: Object) -> Object:
    """Labels, owner reference and annotations of the cluster's Lease. The annotations tell the helper the orphan
    timeout, at least two renewals or 0 for none, and the lifetime."""
    intent = read_intent(root)
    metadata = {"labels": root["metadata"]["labels"], "ownerReferences": [reference(CONFIG_MAP, root)]}
    spec = load.build(intent.spec, option_model=engines.option_model).spec
    orphaned = spec.lifetime.orphaned if intent.tied else 0
    timeout = max(orphaned, MIN_ORPHAN_TIMEOUT) if orphaned else 0
    created = observe.seconds(root["metadata"].get("creationTimestamp"))
    lifetime = {"created": created, "rules": codec.dump(rules(make_lifetime(spec)))}
    return {**metadata, "annotations": {names.ORPHANED: f"{timeout:g}", names.LIFETIME: json.dumps(lifetime)}}


async def make_lease(client: Client, root: Object, identity: str) -> None:
    """Create the Lease, held by this client from the start. Raises Denied if we may not: nobody could lead."""
    metadata = {key: root["metadata"][key] for key in ("name", "namespace")}
    lease = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {**metadata, **lease_metadata(root)},
        "spec": {"holderIdentity": identity, "leaseDurationSeconds": 15},
    }
    try:
        with denied_with_rule():
            await client.create(lease)
    except ApiError as error:  # most likely a cluster that was just deleted left one: the elector takes it over
        log.info(pairs("lease not created", lease=metadata["name"], error=error.message))


class DirectCache(Watches):
    """Watches the objects of one cluster (see places.kube.state.cache.ClusterCache)."""

    def __init__(self, client: Client, namespace: str, name: str, wake: Callable[[], None], uid: str = "") -> None:
        labels = names.selector({names.CLUSTER: name})
        informer = functools.partial(Informer, client, namespace=namespace, on_change=lambda *_: wake())
        self._pods = informer(POD, labels=labels, transform=trimmed_pod)
        self._deployments = informer(DEPLOYMENT, labels=labels, transform=trimmed_deployment)
        self._roots = informer(CONFIG_MAP, fields=f"metadata.name={names.root(name)}")
        self._root = (CONFIG_MAP.kind, names.root(name))
        self._uid = uid  # of the root; if empty, of the first root seen. A later object of that name is another cluster
        super().__init__((self._pods, self._deployments, self._roots), wake)

    async def start(self) -> None:
        await super().start()
        for root in self._roots.objects.values():
            self._uid = self._uid or root["metadata"]["uid"]

    def pods(self) -> list[Object]:
        return [pod for pod in self._pods.objects.values() if observe.is_member(pod)]

    def deployments(self) -> list[Object]:
        return [each for each in self._deployments.objects.values() if ownership.has_owner(each, self._uid)]

    def has(self, kind: str, name: str) -> bool | None:
        """Most kinds are not watched: every user of direct mode would need the rights for it. The root exists as long
        as the cluster does."""
        if kind == DEPLOYMENT.kind:
            return any(each["metadata"]["name"] == name for each in self.deployments())
        return True if (kind, name) == self._root else None

    @property
    def root(self) -> Object | None:
        """None: the cluster was deleted, and maybe another one has its name."""
        for found in self._roots.objects.values():
            if found["metadata"]["uid"] == self._uid and not found["metadata"].get("deletionTimestamp"):
                return found
        return None


class Direct:
    """One cluster, reconciled from here or, while another client holds its Lease, followed (see
    control.runner.Reconciler)."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str, uid: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._elector = Elector(client, namespace, names.root(name), identity)
        self._runner: Runner[str] = Runner(self, longest_backoff=LONGEST_PAUSE)
        self._changed = asyncio.Condition()
        self._cache = DirectCache(client, namespace, name, self.wake, uid)
        self._electing: asyncio.Task[bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._watching_nodes: asyncio.Task[None] | None = None
        self._over = False
        self._intent = Intent({"engine": ""})  # as last read
        self._built: tuple[str, Desired] | None = None  # the intent as written, and the desired state built from it
        self._leading: tuple[KubePlace, Loop] | None = None  # while we hold the Lease
        self.report: Report | None = None

    async def start(self) -> None:
        await self._cache.start()
        root = self._cache.root
        if root is None:
            await self._cache.close()
            message = f"There is no cluster {self._name!r} in namespace {self._namespace!r}."
            raise NotFound(message, f"Run `oars ls -n {self._namespace}` to list clusters.")
        self._intent = read_intent(root)
        self._elector.lease_metadata = lease_metadata(root)
        self._task = asyncio.create_task(self._run(), name=f"oars {self._name}")

    def wake(self) -> None:
        self._runner.wake(self._name)

    async def watch(self) -> AsyncIterator[Report]:
        """Yield the report now and at every change, until the cluster is deleted."""
        last: Report | None = None
        while True:
            async with self._changed:
                while not self._over and self.report == last:
                    await self._changed.wait()
            if self._over:
                return
            last = self.report
            if last is not None:
                yield last

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._cache.close()

    # the loop

    async def _run(self) -> None:
        self.wake()
        try:
            await self._runner.run(until_empty=True)
        finally:
            if self._electing is not None:
                self._electing.cancel()
            await self._stop_leading()
            await self._elector.release()  # others take a renewed Lease as a sign that a client runs the loop
            async with self._changed:
                self._over = True
                self._changed.notify_all()

    async def reconcile(self, key: str) -> Pause | None:
        self._cache.check()
        root = self._cache.root
        if root is None:
            return None
        if not self._elector.is_leader:
            await self._stop_leading()
            if self._electing is None or self._electing.done():
                self._electing = asyncio.create_task(self._elector.lead())
                self._electing.add_done_callback(lambda _: self.wake())
            await self._publish(self._followed(root))
            return Pause(LONGEST_PAUSE)
        desired = self._desired(root)
        if self._leading is None:
            self._leading = await self._start_leading(root, desired)
        _, loop = self._leading
        pause = await loop.once(desired)
        await self._publish(loop.report)
        if loop.outlook.is_due and loop.outlook.expires is not None:
            await self._end(root, desired, loop.outlook.expires)
        return pause

    async def _end(self, root: Object, desired: Desired, expires: Expires) -> None:
        """The lifetime is over: delete the root, as the helper next to the head does if no client runs the loop."""
        log.info(pairs("cluster ends by itself", cluster=self._name, reason=expires.reason, rule=expires.message))
        uid = root["metadata"]["uid"]
        client = self._client.guarded(self._check_leader)
        await endings.store(client, uid, ended(desired, expires.reason, expires.message, time.time()))
        await client.delete(CONFIG_MAP, names.root(self._name), self._namespace, uid=uid)

    async def report_failure(self, key: str, error: Exception) -> None:
        root = self._cache.root
        if root is None or isinstance(error, NotFound) or (isinstance(error, OarsError) and is_not_found(error)):
            return  # the cluster is being deleted, or was and another has its name: the watch will show it
        with contextlib.suppress(OarsError):  # a damaged intent is what the report is about
            self._intent = read_intent(root)
        await self._publish(self._failed(error, self._intent))

    async def _start_leading(self, cached: Object, desired: Desired) -> tuple[KubePlace, Loop]:
        """Read the root again: the cache may be older than what the last leader recorded."""
        root = await self._client.get(CONFIG_MAP, names.root(self._name), self._namespace)
        if root["metadata"]["uid"] != cached["metadata"]["uid"]:
            raise Replaced(self._name)
        client = self._client.guarded(self._check_leader)
        nodes = NodeWatch(self._client, lambda _: self.wake())
        self._watching_nodes = asyncio.create_task(nodes.run())
        setting = Setting(
            client, self._cache, ConfigMapRoot(client, root), Reach(client, self._namespace), nodes=nodes.departing
        )
        place = KubePlace(setting, self._namespace)
        return place, Loop(place, engines.get(desired.engine), time.time)

    def _check_leader(self) -> None:
        if not self._elector.is_leader:
            raise OarsError(f"Another client may hold the Lease of cluster {self._name!r} now.")

    async def _stop_leading(self) -> None:
        """Drop the place and the loop. The next leader records new state, and we read it when we lead again."""
        leading, self._leading = self._leading, None
        watching, self._watching_nodes = self._watching_nodes, None
        if watching is not None:
            await stop_all([watching])
        if leading is not None:
            place, loop = leading
            await loop.close()
            await place.close()

    def _desired(self, root: Object) -> Desired:
        """The desired state, rebuilt only if the intent changed: most changes of the root are our own."""
        text = (root.get("data") or {}).get(INTENT, "")
        if self._built is None or text != self._built[0]:
            intent = read_intent(root)
            spec = load.build(intent.spec, option_model=engines.option_model).spec
            engine = engines.get(spec.engine)
            desired = build(self._name, spec, engine, DEFAULTS, namespace=self._namespace, tied=intent.tied)
            self._elector.lease_metadata = lease_metadata(root)
            created = observe.seconds(root["metadata"].get("creationTimestamp"))
            self._built = (text, replace(intent.applied_to(desired), mode="direct", created_at=created))
        return self._built[1]

    def _followed(self, root: Object) -> Report | None:
        """The leader's report. If we cannot ask who leads, it may be outdated; if we may not lead, it may not cover the
        present intent: then a report that says what is wrong."""
        report, intent, error = report_of(root), read_intent(root), self._elector.error
        is_current = report is not None and report.status.generation >= intent.generation
        may_not_lead = isinstance(error, ApiError) and error.status == 403
        if error is None or (is_current and may_not_lead):
            return report
        return self._failed(error, intent)

    def _failed(self, error: Exception, intent: Intent) -> Report:
        """A report about the present intent, so that clients that wait for it see the cause."""
        cause = cause_of(error)
        engine = str(intent.spec.get("engine", ""))
        nothing = Status(self._name, engine, "kubernetes", Phase.PENDING, mode="direct", namespace=self._namespace)
        before = self.report.status if self.report else nothing
        return Report(failed(before, cause, intent.generation), (cause,))

    async def _publish(self, report: Report | None) -> None:
        if report is None:
            return
        if root := self._cache.root:
            created = observe.seconds(root["metadata"].get("creationTimestamp")) or None
            report = replace(report, status=replace(report.status, created=created))
        if report == self.report:
            return
        async with self._changed:
            self.report = report
            self._changed.notify_all()
