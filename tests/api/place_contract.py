"""The place contract on Kubernetes, with a custom resource as the root (operator) or a ConfigMap (direct)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

from lab.kube import Kube
from tests.api.stage import resource

from oars import engines
from oars.client.direct import DirectCache
from oars.kube import config
from oars.kube.client import Client
from oars.kube.informer import start_all, stop_all, wait_all_synced
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, POD, SECRET, Object, kind_of
from oars.model import Desired, LoopState, Member
from oars.operator.index import OWNED_KINDS, Watches
from oars.operator.resources import RESOURCE_KINDS, Key
from oars.places.base import Place, PlaceError
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.state.root import ConfigMapRoot, ResourceRoot, dump_intent
from oars.places.kube.state.status_codec import COMPUTE_CLUSTER_STATUS
from oars.places.kube.wire import Reach
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec
from oars.testing import PlaceContract
from oars.testing.place import in_place, incarnations, until, with_workers, workers

SECONDS = 60.0
KINDS = (DEPLOYMENT, POD, SECRET, CONFIG_MAP, *OWNED_KINDS)


class RecordingClient(Client):
    """A spy: lists the requests that write."""

    writes: Sequence[str] = ()

    async def create(self, *args: Any, **options: Any) -> Any:
        self.writes = [*self.writes, "create"]
        return await super().create(*args, **options)

    async def apply(self, *args: Any, **options: Any) -> Any:
        self.writes = [*self.writes, "apply"]
        return await super().apply(*args, **options)

    async def patch(self, *args: Any, **options: Any) -> Any:
        self.writes = [*self.writes, "patch"]
        return await super().patch(*args, **options)

    async def delete(self, *args: Any, **options: Any) -> Any:
        self.writes = [*self.writes, "delete"]
        return await super().delete(*args, **options)


class KubePlaceContract(PlaceContract):
    """Subclasses set `kube` in a fixture and say what the members are."""

    mode: ClassVar[str]
    kube: Kube

    def spec(self) -> dict[str, Any]:
        """Of a cluster with two workers."""
        raise NotImplementedError

    def desired(self) -> Desired:
        spec = ClusterSpec.model_validate({**self.spec(), "place": "kubernetes"})
        return build("demo", spec, engines.get(spec.engine), DEFAULTS, namespace=self.kube.namespace)

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        target = config.load({}, namespace=self.kube.namespace, kubeconfig=self.kube.kubeconfig)
        self.client = RecordingClient(target, user_agent="oars-test")
        self.opened: list[KubePlace] = []
        self.watching: list[asyncio.Task[None]] = []
        self.caches: list[DirectCache] = []
        root = await self.client.create(self._root_object())
        try:
            yield await self._open(), self.desired()
        finally:
            for place in self.opened:
                await place.close()
            kind = CONFIG_MAP if self.mode == "direct" else COMPUTE_CLUSTER
            await self.client.delete(kind, root["metadata"]["name"], self.kube.namespace)
            await stop_all(self.watching)
            for cache in self.caches:
                await cache.close()
            await self.client.close()

    def _root_object(self) -> Object:
        if self.mode == "operator":
            body = resource("demo")
            return {**body, "metadata": {**body["metadata"], "namespace": self.kube.namespace}, "spec": self.spec()}
        metadata = {"name": names.root("demo"), "namespace": self.kube.namespace, "labels": names.labels("demo", "toy")}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dump_intent(Intent(self.spec()))}

    async def _open(self) -> KubePlace:
        """As a process that takes over: with watches of its own and the root as it is now."""
        client, namespace = self.client, self.kube.namespace
        setting: Setting
        if self.mode == "operator":
            watches = Watches(client, (namespace,), RESOURCE_KINDS, lambda *_: None)
            self.watching += start_all(watches.informers, lambda: None)
            await wait_all_synced(watches.informers, SECONDS)
            found = await client.get(COMPUTE_CLUSTER, "demo", namespace)
            root = ResourceRoot(client, COMPUTE_CLUSTER, found, COMPUTE_CLUSTER_STATUS)
            cache = watches.cluster(Key(COMPUTE_CLUSTER.kind, namespace, "demo"), found["metadata"]["uid"])
            setting = Setting(client, cache, root, Reach(client, namespace))
        else:
            self.caches.append(DirectCache(client, namespace, "demo", lambda: None))
            await self.caches[-1].start()
            found = await client.get(CONFIG_MAP, names.root("demo"), namespace)
            setting = Setting(client, self.caches[-1], ConfigMapRoot(client, found), Reach(client, namespace))
        self.opened.append(KubePlace(setting, namespace))
        return self.opened[-1]

    async def reopen(self, place: Place) -> Place:
        return await self._open()

    async def start(self, place: Place, desired: Desired, *, wait: bool = True) -> None:
        await super().start(place, desired, wait=wait)

        async def is_ready() -> bool:
            return all(member.probe_ready for member in (await place.observe(desired)).members)

        if wait:
            await until(is_ready)

    async def inventory(self, place: Place) -> Mapping[str, str]:
        found: dict[str, str] = {"requests": " ".join(self.client.writes)}
        for kind in KINDS:
            listed = await self.client.list(kind, self.kube.namespace, labels=names.selector({names.CLUSTER: "demo"}))
            found |= {f"{kind.kind} {each['metadata']['name']}": "" for each in listed.items}
        events = (await self.client.list(EVENT, self.kube.namespace)).items
        ours = [each for each in events if each.get("source", {}).get("component") == "oars"]
        return found | {f"Event {each['metadata']['name']}": "" for each in ours}

    async def pod_of(self, member: Member) -> Object:
        found = await asyncio.to_thread(self.kube.pods, f"{names.CLUSTER}=demo")
        return next(pod for pod in found if pod["metadata"]["uid"] == member.incarnation.partition(":")[0])

    @in_place
    async def test_a_cluster_of_the_same_name_starts_with_nothing(self, place: Place, desired: Desired) -> None:
        """What the deleted one left behind is neither shown nor used."""
        await self.start(place, desired)
        before = set(incarnations(await place.observe(desired)))
        root = self._root_object()
        await self.client.delete(kind_of(root), root["metadata"]["name"], self.kube.namespace)
        await self.client.create(root)
        again = await self._open()
        assert (await again.observe(desired)).members == ()

        async def is_started() -> bool:
            try:
                await self.start(again, desired, wait=False)
            except PlaceError as error:
                assert error.cause.reason == "LeftBehind"
            await again.collect(desired)
            members = (await again.observe(desired)).members
            is_new = not before & {member.incarnation for member in members}
            return is_new and len(members) == 3 and all(member.probe_ready for member in members)

        await until(is_started)

    @in_place
    async def test_loop_without_state_keeps_the_head_epoch(self, place: Place, desired: Desired) -> None:
        await self.start(place, replace(desired, head_epoch=3))
        assert (await (await self.reopen(place)).observe(desired)).state == LoopState(head_epoch=3)

    @in_place
    async def test_scale_up_keeps_running_workers(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        before = {member.id for member in workers(await place.observe(desired))}
        more = with_workers(desired, 3)
        await self.start(place, more)
        assert before < {member.id for member in workers(await place.observe(more))}
