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
from typing import Any

from oars import engines
from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, pairs
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.errors import is_not_found
from oars.kube.informer import Informer
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Object
from oars.kube.lease import Elector
from oars.places.kube import names
from oars.places.kube.beside import Watch
from oars.places.kube.describe import describe, desired
from oars.places.kube.place import KubePlace, Setting, unreachable
from oars.places.kube.pod import Cluster
from oars.places.kube.root import INTENT, ConfigMapRoot, Intent, report_of
from oars.places.kube.seen import trimmed_deployment, trimmed_pod
from oars.places.kube.wire import Reach
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Phase, Status

SYNC_SECONDS = 30.0
LONGEST_PAUSE = 5.0  # after an error

log = get_logger(__name__)


def new_identity() -> str:
    """Of a client, unlike any other."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Following:
    """Watches over the objects of one cluster; also the `Seen` of its place."""

    def __init__(self, client: Client, namespace: str, name: str, changed: asyncio.Event) -> None:
        selector = names.selector({names.CLUSTER: name})

        def wake(*_: object) -> None:
            changed.set()

        self._pods = Informer(client, POD, namespace, labels=selector, keep=trimmed_pod, changed=wake)
        self._deployments = Informer(
            client, DEPLOYMENT, namespace, labels=selector, keep=trimmed_deployment, changed=wake
        )
        self._roots = Informer(client, CONFIG_MAP, namespace, fields=f"metadata.name={names.root(name)}", changed=wake)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        informers = (self._pods, self._deployments, self._roots)
        self._tasks = [asyncio.create_task(informer.run()) for informer in informers]
        async with asyncio.timeout(SYNC_SECONDS):
            for informer in informers:
                await informer.synced.wait()

    def pods(self) -> list[Object]:
        return list(self._pods.objects.values())

    def deployments(self) -> list[Object]:
        return list(self._deployments.objects.values())

    @property
    def root(self) -> Object | None:
        """None: the cluster has been deleted."""
        found = next(iter(self._roots.objects.values()), None)
        return found if found and not found["metadata"].get("deletionTimestamp") else None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Direct:
    """One cluster, looked after from here or, while another client does that, looked at."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._elector = Elector(client, namespace, names.root(name), identity)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._following = Following(client, namespace, name, self._wake)
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._description: tuple[str, Any] = ("", None)  # as it was written, and what it comes to
        self.report: Report | None = None

    async def start(self) -> None:
        await self._following.start()
        if self._following.root is None:
            await self._following.close()
            raise NotFound(f"There is no cluster {self._name!r} in the namespace {self._namespace}.")
        self._task = asyncio.create_task(self._run(), name=f"oars {self._name}")

    def poke(self) -> None:
        self._wake.set()

    async def watch(self) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone."""
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
        await self._elector.release()
        await self._following.close()

    # the loop

    async def _run(self) -> None:
        electing = self._elect()
        place: KubePlace | None = None
        loop: Loop | None = None
        try:
            while (root := self._following.root) is not None:
                self._wake.clear()
                if not self._elector.leads:
                    await self._tell(report_of(root))
                    if electing.done():
                        electing = self._elect()
                    await self._pause(LONGEST_PAUSE)
                    continue
                if place is None or loop is None:
                    place, loop = await self._begin(root)
                pause = await self._once(root, place, loop)
                await self._pause(pause)
        finally:
            electing.cancel()
            if loop is not None:
                await loop.close()
            if place is not None:
                await place.close()
            async with self._changed:
                self._over = True
                self._changed.notify_all()

    def _elect(self) -> asyncio.Task[bool]:
        electing = asyncio.create_task(self._elector.lead())
        electing.add_done_callback(lambda _: self._wake.set())
        return electing

    def _described(self, root: Object) -> tuple[Intent, Cluster]:
        """What shall be. Worked out anew only when it was written anew: most changes of the root are our own notes."""
        text = root["data"][INTENT]
        if text != self._description[0]:
            intent = Intent.of(root)
            spec = ClusterSpec.model_validate(intent.spec)
            watched = bool(intent.tied and spec.lifetime.orphaned)
            cluster = describe(self._name, self._namespace, spec, engines.get(spec.engine), watched=watched)
            self._description = (text, (intent, cluster))
        described: tuple[Intent, Cluster] = self._description[1]
        return described

    async def _begin(self, root: Object) -> tuple[KubePlace, Loop]:
        root = await self._client.get(CONFIG_MAP, root["metadata"]["name"], self._namespace)
        intent, cluster = self._described(root)
        orphaned = cluster.spec.lifetime.orphaned
        watch = Watch(orphaned) if intent.tied and orphaned else None
        reach = Reach(self._client, self._namespace)
        setting = Setting(self._client, self._following, ConfigMapRoot(self._client, root), reach, "direct", watch)
        place = KubePlace(setting, cluster)
        return place, Loop(place, engines.get(cluster.spec.engine), time.time)

    async def _once(self, root: Object, place: KubePlace, loop: Loop) -> float:
        intent, cluster = self._described(root)
        try:
            place.describe(cluster)
            await place.know_token()
            pause = await loop.once(desired(cluster, force=intent.force, generation=intent.generation))
        except OarsError as error:
            if is_not_found(error):
                return 0.5  # it is being deleted
            log.warning(pairs("pass failed", cluster=self._name, error=error.message))
            await self._tell(self._troubled(error, intent))
            return LONGEST_PAUSE
        if loop.status is not None:
            status = replace(loop.status, mode="direct", namespace=self._namespace)
            await self._tell(Report(status, loop.causes))
        return pause

    def _troubled(self, error: OarsError, intent: Intent) -> Report:
        cause = unreachable(error)
        engine = str(intent.spec["engine"])
        before = self.report.status if self.report else Status(self._name, engine, "kubernetes", Phase.PENDING)
        return Report(replace(before, reason=cause.reason, message=cause.message), (cause,))

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
