"""Looking after ComputeClusters: one pass of the loop for one of them, whenever its name comes up."""

from __future__ import annotations

import time
from dataclasses import dataclass

from oars import engines
from oars.base.errors import OarsError, SpecError
from oars.base.log import get_logger, pairs
from oars.base.rate import PollSpread, TokenBucket
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.errors import is_not_found
from oars.kube.kinds import COMPUTE_CLUSTER, Object
from oars.operator.index import Key, Watches
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.render import objects
from oars.places.kube.render.describe import describe, desired
from oars.places.kube.render.pod import Cluster
from oars.places.kube.state import replicas, status_codec
from oars.places.kube.state.root import FORCE, ClusterRoot, now
from oars.places.kube.why.api_errors import cause_of, is_for_good
from oars.places.kube.why.evidence import Ground
from oars.places.kube.wire import Reach
from oars.plan.decide import HEALING_RESTING, HEALING_WAITING
from oars.spec import load

STEPS_TOLD, STEPS_SAVED = 1.0, 5.0  # a second, and at once: how often all clusters together tell how a start goes on
OUR_MISTAKE = "That it is not said better is a mistake of Oars; please report it. Look for values of the wrong kind."

log = get_logger(__name__)


@dataclass
class Kept:
    """What we hold for one cluster between two passes."""

    uid: str
    root: ClusterRoot
    place: KubePlace
    loop: Loop
    generation: int
    cluster: Cluster


class Undescribed(Exception):
    """A resource that we can make no cluster of; its cause says why."""


class Reconciler:
    """All clusters that this operator looks after."""

    def __init__(
        self, client: Client, watches: Watches, waiting: PollSpread, resting: PollSpread, *, inside: bool
    ) -> None:
        self._client = client
        self._watches = watches
        self._inside = inside
        self._ground = Ground(client)
        self._steps = TokenBucket(STEPS_TOLD, STEPS_SAVED, time.monotonic)
        self._kept: dict[Key, Kept] = {}
        self._refused: dict[Key, tuple[str, int]] = {}
        self._waiting, self._resting = waiting, resting

    async def once(self, key: Key) -> float | None:
        """One pass; after how many seconds the next is due at the latest, or None if nothing is left to do."""
        resource = self._watches.clusters.get(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            await self.forget(key)
            return None  # what hangs on it goes by itself
        if self._refused.get(key) == _mark(resource):
            return None  # only another description can change it
        try:
            kept = await self._keep(key, resource)
        except Undescribed as error:
            await self._refuse(key, resource, error)
            return None
        try:
            return self._spread(key, await self._pass(kept, resource))
        except OarsError as error:
            if is_for_good(error):
                await kept.root.refuse(cause_of(error), kept.generation)
            raise

    async def _pass(self, kept: Kept, resource: Object) -> float:
        kept.root.resource = resource
        await kept.place.ensure_helper_token()
        force = (resource["metadata"].get("annotations") or {}).get(FORCE) == str(kept.generation)
        return await kept.loop.once(desired(kept.cluster, force=force, generation=kept.generation))

    def _spread(self, key: Key, pause: float) -> float:
        """Those that only look up now and then take turns: in one crowd while something is missing, in another when
        all is well."""
        self._leave(key)
        if pause < HEALING_WAITING:
            return pause
        return (self._waiting if pause < HEALING_RESTING else self._resting).pause(key, pause)

    def _leave(self, key: Key) -> None:
        self._waiting.end(key)
        self._resting.end(key)

    async def _keep(self, key: Key, resource: Object) -> Kept:
        uid, generation = _mark(resource)
        kept = self._kept.get(key)
        if kept is not None and (kept.uid, kept.generation) == (uid, generation):
            return kept
        try:
            cluster = described(resource)
        except Exception as error:  # whatever a description does to us, it is told, and not tried again and again
            await self._let_go(key)
            raise Undescribed from error
        if kept is not None and kept.uid == uid:
            kept.generation, kept.cluster = generation, cluster
            kept.place.describe(cluster)
            return kept
        await self._let_go(key)
        reach = Reach(self._client, key[0], forward=not self._inside)
        root, seen = ClusterRoot(self._client, resource, may_tell=self._steps.take), self._watches.seen(key)
        setting = Setting(
            self._client, seen, root, reach, "operator", ground=self._ground, is_busy=lambda: self._waiting.turn >= 1.0
        )
        place = KubePlace(setting, cluster)
        kept = Kept(uid, root, place, Loop(place, engines.get(cluster.spec.engine), time.time), generation, cluster)
        self._kept[key] = kept
        return kept

    async def _refuse(self, key: Key, resource: Object, error: Undescribed) -> None:
        """Said in the status once."""
        mark, why = _mark(resource), error.__cause__
        if isinstance(why, SpecError):
            sentence = " ".join([why.message, why.hint]).strip()
            log.info(pairs("refused", cluster=f"{key[0]}/{key[1]}", why=sentence))
        else:
            sentence = f"Oars cannot read this description ({type(why).__name__}: {why}). {OUR_MISTAKE}"
            log.error(pairs("a description broke us", cluster=f"{key[0]}/{key[1]}"), exc_info=why)
        body = {"status": status_codec.invalid_status(sentence, mark[1], resource.get("status") or {}, now())}
        try:
            await self._client.patch(COMPUTE_CLUSTER, key[1], key[0], body, subresource="status")
        except OarsError as trouble:
            if not is_not_found(trouble):
                raise
        self._refused[key] = mark

    async def forget(self, key: Key) -> None:
        """It is gone."""
        self._refused.pop(key, None)
        await self._let_go(key)

    async def _let_go(self, key: Key) -> None:
        self._leave(key)
        kept = self._kept.pop(key, None)
        if kept is not None:
            await kept.loop.close()
            await kept.place.close()

    async def close(self) -> None:
        for key in list(self._kept):
            await self._let_go(key)


def _mark(resource: Object) -> tuple[str, int]:
    """Which description it is."""
    return str(resource["metadata"]["uid"]), int(resource["metadata"]["generation"])


def described(resource: Object) -> Cluster:
    """What the resource asks for. Raises SpecError for what the schema let through and we cannot do."""
    metadata = resource["metadata"]
    manifest = load.build({**replicas.spec(resource), "place": "kubernetes"})
    engine = engines.get(manifest.spec.engine)
    elsewhere = manifest.spec.namespace.name
    if elsewhere and elsewhere != metadata["namespace"]:
        raise SpecError(
            f"spec.namespace.name is {elsewhere!r}, but the resource is in {metadata['namespace']!r}.",
            "A cluster runs where its resource is: leave the field out, or make the resource there.",
        )
    cluster = describe(metadata["name"], metadata["namespace"], manifest.spec, engine)
    objects.manifests(cluster)  # a pod overlay that clashes with ours shows only now
    return cluster
