"""Looking after ComputeClusters: one pass of the loop for one of them, whenever its name comes up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from oars import engines
from oars.base.errors import OarsError, SpecError
from oars.base.log import get_logger, pairs
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.errors import is_not_found
from oars.kube.kinds import COMPUTE_CLUSTER, Object
from oars.operator.index import Key, Watches
from oars.places.kube import record, render
from oars.places.kube.describe import describe, desired
from oars.places.kube.evidence import Ground
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.pod import Cluster
from oars.places.kube.root import FORCE, ClusterRoot
from oars.places.kube.wire import Reach
from oars.spec import load

log = get_logger(__name__)


@dataclass
class Kept:
    """What we hold for one cluster between two passes."""

    uid: str
    place: KubePlace
    loop: Loop
    generation: int
    cluster: Cluster


class Keeping:
    """All clusters that this operator looks after."""

    def __init__(self, client: Client, watches: Watches, *, inside: bool) -> None:
        self._client = client
        self._watches = watches
        self._inside = inside
        self._ground = Ground(client)
        self._kept: dict[Key, Kept] = {}
        self._refused: dict[Key, tuple[str, int]] = {}

    async def once(self, key: Key) -> float | None:
        """One pass; after how many seconds the next is due at the latest, or None if nothing is left to do."""
        resource = self._watches.clusters.get(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            await self.forget(key)
            return None  # what hangs on it goes by itself
        try:
            kept = self._keep(key, resource)
        except SpecError as error:
            await self.forget(key)
            await self._refuse(key, resource, error)
            return None
        await kept.place.know_token()
        force = (resource["metadata"].get("annotations") or {}).get(FORCE) == str(kept.generation)
        return await kept.loop.once(desired(kept.cluster, force=force, generation=kept.generation))

    def _keep(self, key: Key, resource: Object) -> Kept:
        uid, generation = resource["metadata"]["uid"], int(resource["metadata"]["generation"])
        kept = self._kept.get(key)
        if kept is not None and kept.uid == uid and kept.generation == generation:
            return kept
        cluster = described(resource)
        if kept is not None and kept.uid == uid:
            kept.generation, kept.cluster = generation, cluster
            kept.place.describe(cluster)
            return kept
        reach = Reach(self._client, key[0], forward=not self._inside)
        root, seen = ClusterRoot(self._client, resource), self._watches.seen(key)
        setting = Setting(self._client, seen, root, reach, "operator", ground=self._ground)
        place = KubePlace(setting, cluster)
        kept = Kept(uid, place, Loop(place, engines.get(cluster.spec.engine), time.time), generation, cluster)
        self._kept[key] = kept
        return kept

    async def _refuse(self, key: Key, resource: Object, error: SpecError) -> None:
        """Said in the status once; only another description can change it."""
        metadata = resource["metadata"]
        mark = (str(metadata["uid"]), int(metadata["generation"]))
        if self._refused.get(key) == mark:
            return
        sentence = " ".join([error.message, error.hint]).strip()
        log.info(pairs("refused", cluster=f"{key[0]}/{key[1]}", why=sentence))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"status": record.invalid_status(sentence, mark[1], resource.get("status") or {}, now)}
        try:
            await self._client.patch(COMPUTE_CLUSTER, key[1], key[0], body, subresource="status")
        except OarsError as trouble:
            if not is_not_found(trouble):
                raise
        self._refused[key] = mark

    async def forget(self, key: Key) -> None:
        self._refused.pop(key, None)
        kept = self._kept.pop(key, None)
        if kept is not None:
            await kept.loop.close()
            await kept.place.close()

    async def close(self) -> None:
        for key in list(self._kept):
            await self.forget(key)


def described(resource: Object) -> Cluster:
    """What the resource asks for. Raises SpecError for what the schema let through and we cannot do."""
    metadata = resource["metadata"]
    manifest = load.build({**resource["spec"], "place": "kubernetes"})
    engine = engines.get(manifest.spec.engine)
    engine.check(manifest.spec)
    cluster = describe(metadata["name"], metadata["namespace"], manifest.spec, engine)
    render.manifests(cluster)  # a pod overlay that clashes with ours shows only now
    return cluster
