"""Looking after a cluster on Kubernetes without an operator: the loop runs here, in the client's own event loop, for as
long as we hold the cluster's Lease. Deployments heal while nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from oars import engines
from oars.base.errors import NotFound, OarsError, Replaced
from oars.base.log import get_logger, pairs
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_denied, is_not_found
from oars.kube.informer import Informer, await_synced, check, start, stop
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, LEASE, POD, Object
from oars.kube.lease import Elector
from oars.places.kube import names
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render.describe import describe, desired
from oars.places.kube.render.pod import Cluster
from oars.places.kube.state import observe, ownership
from oars.places.kube.state.cache import trimmed_deployment, trimmed_pod
from oars.places.kube.state.root import INTENT, ConfigMapRoot, Intent, reference, report_of
from oars.places.kube.why.api_errors import cause_of, rights_told
from oars.places.kube.wire import Reach
from oars.places.report import Report
from oars.spec import load
from oars.spec.status import Phase, Status

SYNC_SECONDS = 30.0
LONGEST_PAUSE = 5.0  # after an error
LEAST_PATIENCE = 10.0  # seconds of lifetime.orphaned: a Lease is renewed every five

log = get_logger(__name__)


def new_identity() -> str:
    """Of a client, unlike any other."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def about_lease(root: Object) -> Object:
    """What marks it as the cluster's, lets it go with the root, and tells the helper beside the head how long to wait
    for an owner who is silent: for ever, or for two renewals at least."""
    intent = Intent.of(root)
    about = {"labels": root["metadata"]["labels"], "ownerReferences": [reference(CONFIG_MAP, root)]}
    orphaned = load.build(intent.spec).spec.lifetime.orphaned
    patience = max(orphaned, LEAST_PATIENCE) if orphaned else 0
    return {**about, "annotations": {names.ORPHANED: f"{patience:g}"} if intent.tied else {}}


async def make_lease(client: Client, root: Object, identity: str) -> None:
    """Ours from the beginning. Without the right to make it nobody could ever lead."""
    metadata = {key: root["metadata"][key] for key in ("name", "namespace")}
    lease = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {**metadata, **about_lease(root)},
        "spec": {"holderIdentity": identity, "leaseDurationSeconds": 15},
    }
    try:
        with rights_told():
            await client.create(lease)
    except ApiError as error:  # most likely one is left of a cluster that was just deleted: it is taken over
        log.info(pairs("lease not made", lease=metadata["name"], error=error.message))


class Following:
    """Watches over the objects of one cluster; also the `Seen` of its place."""

    def __init__(self, client: Client, namespace: str, name: str, changed: asyncio.Event, uid: str = "") -> None:
        selector = names.selector({names.CLUSTER: name})

        def wake(*_: object) -> None:
            changed.set()

        self._pods = Informer(client, POD, namespace, labels=selector, keep=trimmed_pod, changed=wake)
        self._deployments = Informer(
            client, DEPLOYMENT, namespace, labels=selector, keep=trimmed_deployment, changed=wake
        )
        self._roots = Informer(client, CONFIG_MAP, namespace, fields=f"metadata.name={names.root(name)}", changed=wake)
        self._root = (CONFIG_MAP.kind, names.root(name))
        self._uid = uid  # of the root, or else of the first: the cluster is that one, whatever has its name later
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        informers = (self._pods, self._deployments, self._roots)
        self._tasks = start(informers, self._changed.set)
        try:
            with rights_told():
                await await_synced(informers, SYNC_SECONDS)
        except BaseException:
            await self.close()
            raise
        for root in self._roots.objects.values():
            self._uid = self._uid or root["metadata"]["uid"]

    def pods(self) -> list[Object]:
        return [pod for pod in self._pods.objects.values() if observe.is_member(pod)]

    def deployments(self) -> list[Object]:
        return [each for each in self._deployments.objects.values() if ownership.hangs_on(each, *self._root)]

    def has(self, kind: str, name: str) -> bool | None:
        """Most kinds are not watched: the rights for it would be asked of everyone who starts a cluster for an hour.
        The root is there for as long as there is a cluster to look after."""
        if kind == DEPLOYMENT.kind:
            return any(each["metadata"]["name"] == name for each in self.deployments())
        return True if (kind, name) == self._root else None

    @property
    def root(self) -> Object | None:
        """None: the cluster has been deleted, and maybe another one was made that has its name. Raises what has blinded
        us, which is a mistake of ours."""
        check(self._tasks)
        for found in self._roots.objects.values():
            if found["metadata"]["uid"] == self._uid and not found["metadata"].get("deletionTimestamp"):
                return found
        return None

    async def close(self) -> None:
        await stop(self._tasks)


class Direct:
    """One cluster, looked after from here or, while another client does that, looked at."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str, uid: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._elector = Elector(client, namespace, names.root(name), identity)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._following = Following(client, namespace, name, self._wake, uid)
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._mistake: Exception | None = None  # of ours, by which it is over
        self._description: tuple[str, Cluster] | None = None  # as it was written, and what it comes to
        self._led: tuple[KubePlace, Loop] | None = None  # while we lead
        self.report: Report | None = None

    async def start(self) -> None:
        await self._following.start()
        root = self._following.root
        if root is None:
            await self._following.close()
            raise NotFound(f"There is no cluster {self._name!r} in the namespace {self._namespace}.")
        self._elector.about = about_lease(root)
        self._task = asyncio.create_task(self._run(), name=f"oars {self._name}")

    def poke(self) -> None:
        self._wake.set()

    async def watch(self) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone, or we are no longer able to look after it."""
        last: Report | None = None
        while True:
            async with self._changed:
                while not self._over and self.report == last:
                    await self._changed.wait()
            if self._over:
                if self._mistake is not None:
                    raise self._mistake
                return
            last = self.report
            if last is not None:
                yield last

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._elector.release()
        await self._following.close()

    # the loop

    async def _run(self) -> None:
        electing = self._elect()
        try:
            while (root := self._following.root) is not None:
                self._wake.clear()
                if self._elector.leads:
                    await self._pause(await self._pass(root))
                    continue
                await self._let_go()
                await self._tell(self._heard(root))
                if electing.done():
                    electing = self._elect()
                await self._pause(LONGEST_PAUSE)
        except Exception as error:  # whoever waits for the cluster must not be told that it was deleted
            log.exception(pairs("nobody looks after it any more", cluster=self._name))
            self._mistake = error
        finally:
            electing.cancel()
            await self._let_go()
            await self._elector.release()  # a Lease that is renewed says that somebody looks after it
            async with self._changed:
                self._over = True
                self._changed.notify_all()

    async def _pass(self, root: Object) -> float:
        """As the one who leads; returns after how many seconds the next is due."""
        intent = Intent.of(root)
        try:
            cluster = self._described(root)
            if self._led is None:
                self._led = await self._begin(root, cluster)
            return await self._once(intent, cluster, *self._led)
        except OarsError as error:
            return await self._failed(error, intent)

    async def _let_go(self) -> None:
        """Whoever leads next may write other notes: if that is us once more, we begin with those."""
        led, self._led = self._led, None
        if led is not None:
            place, loop = led
            await loop.close()
            await place.close()

    def _elect(self) -> asyncio.Task[bool]:
        electing = asyncio.create_task(self._elector.lead())
        electing.add_done_callback(lambda _: self._wake.set())
        return electing

    def _described(self, root: Object) -> Cluster:
        """What shall be. Worked out anew only when it was written anew: most changes of the root are our own notes."""
        text = root["data"][INTENT]
        if self._description is None or text != self._description[0]:
            intent = Intent.of(root)
            spec = load.build(intent.spec).spec
            cluster = describe(self._name, self._namespace, spec, engines.get(spec.engine), watched=intent.tied)
            self._elector.about = about_lease(root)
            self._description = (text, cluster)
        return self._description[1]

    def _heard(self, root: Object) -> Report | None:
        """From whoever leads. Where nobody has a word on what is asked for, it matters that we may not lead."""
        report, intent, error = report_of(root), Intent.of(root), self._elector.error
        is_told = report is not None and report.status.generation >= intent.generation
        if is_told or not isinstance(error, ApiError) or not is_denied(error):
            return report
        return self._troubled(error, intent)

    async def _begin(self, seen: Object, cluster: Cluster) -> tuple[KubePlace, Loop]:
        """With the root as it is now: what was seen of it may be older than the notes of whoever led before us."""
        root = await self._client.get(CONFIG_MAP, names.root(self._name), self._namespace)
        if root["metadata"]["uid"] != seen["metadata"]["uid"]:
            raise Replaced(self._name)
        reach, tied = Reach(self._client, self._namespace), Intent.of(root).tied
        setting = Setting(self._client, self._following, ConfigMapRoot(self._client, root), reach, "direct", tied)
        place = KubePlace(setting, cluster)
        return place, Loop(place, engines.get(cluster.spec.engine), time.time)

    async def _once(self, intent: Intent, cluster: Cluster, place: KubePlace, loop: Loop) -> float:
        place.describe(cluster)
        await place.ensure_helper_token()
        pause = await loop.once(desired(cluster, force=intent.force, generation=intent.generation))
        if loop.status is not None:
            status = replace(loop.status, mode="direct", namespace=self._namespace)
            await self._tell(Report(status, loop.causes))
        return pause

    async def _failed(self, error: OarsError, intent: Intent) -> float:
        if is_not_found(error) or isinstance(error, NotFound):
            return 0.5  # it is being deleted, or was and another has its name: the watch will show it
        log.warning(pairs("pass failed", cluster=self._name, error=error.message))
        await self._tell(self._troubled(error, intent))
        return LONGEST_PAUSE

    def _troubled(self, error: OarsError, intent: Intent) -> Report:
        """It speaks of what is asked for now, so that whoever waits for that hears it; which is then not ready."""
        cause = cause_of(error)
        engine = str(intent.spec["engine"])
        nothing = Status(self._name, engine, "kubernetes", Phase.PENDING, mode="direct", namespace=self._namespace)
        before = self.report.status if self.report else nothing
        is_outdated = before.phase is Phase.READY and before.generation < intent.generation
        phase = Phase.DEGRADED if is_outdated else before.phase
        told = replace(before, phase=phase, reason=cause.reason, message=cause.message, generation=intent.generation)
        return Report(told, (cause,))

    async def _tell(self, report: Report | None) -> None:
        if report is None or report == self.report:
            return
        async with self._changed:
            self.report = report
            self._changed.notify_all()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
