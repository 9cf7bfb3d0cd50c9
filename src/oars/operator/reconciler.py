"""The operator's reconciler: one pass of the loop for one resource (see control.runner.Reconciler)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from oars import engines
from oars.base.errors import SpecError
from oars.base.log import get_logger, pairs
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.model import Cause, Desired, Pause
from oars.operator.index import Watches
from oars.operator.resources import Key, ResourceKind, is_forced
from oars.places.kube.evidence import SharedLists
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.state.root import ResourceRoot
from oars.places.kube.why.api_errors import cause_of
from oars.places.kube.wire import Reach
from oars.spec.status import Phase

STANDBY_SECONDS = 1.0  # until a replica whose Lease expired looks again; its elector stops it meanwhile
REPORT_A_BUG = "This is a bug in Oars; please report it. Check the spec for values of the wrong type."

log = get_logger(__name__)


@dataclass
class Tracked:
    """The operator's state of one cluster between passes."""

    uid: str
    root: ResourceRoot
    place: KubePlace
    loop: Loop
    desired: Desired


class InvalidSpec(Exception):
    """The spec has no desired state; the exception's cause says why."""


class ClusterReconciler:
    """Reconciles all resources of the operator."""

    def __init__(
        self,
        client: Client,
        watches: Watches,
        kinds: Sequence[ResourceKind],
        *,
        in_cluster: bool,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._watches = watches
        self._kinds = {each.kind.kind: each for each in kinds}
        self._in_cluster = in_cluster
        self._is_leader = is_leader
        self._lists = SharedLists(client)
        self._tracked: dict[Key, Tracked] = {}
        self._invalid: dict[Key, tuple[str, int]] = {}  # uid and generation of rejected specs

    async def reconcile(self, key: Key) -> Pause | None:
        if not self._is_leader():
            return Pause(STANDBY_SECONDS)
        resource = self._watches.resources.get(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._invalid.pop(key, None)
            await self._untrack(key)
            return None  # Kubernetes deletes the owned objects
        if self._invalid.get(key) == _version(resource):
            return None  # until the spec changes
        try:
            tracked = await self._track(key, resource)
        except InvalidSpec as error:
            await self._reject(key, resource, error)
            return None
        pause = await tracked.loop.once(tracked.desired)
        await tracked.root.publish()
        return pause

    async def report_failure(self, key: Key, error: Exception) -> None:
        """Show the error in the status, also of a resource whose first pass failed. While the API server is away this
        fails too; if the error persists, a later pass reports it."""
        resource, tracked = self._watches.resources.get(key), self._tracked.get(key)
        if resource is None or not self._is_leader():
            return
        root = tracked.root if tracked is not None else self._root(key, resource)
        generation = tracked.desired.generation if tracked is not None else _version(resource)[1]
        await root.refuse(cause_of(error), generation)
        await root.publish()

    async def _track(self, key: Key, resource: Object) -> Tracked:
        uid, generation = _version(resource)
        tracked = self._tracked.get(key)
        if tracked is not None and tracked.uid == uid:
            tracked.root.resource = resource
            if tracked.desired.generation != generation:
                tracked.desired = await self._desired(key, resource)
            else:
                tracked.desired = replace(tracked.desired, force=is_forced(resource))
            return tracked
        desired = await self._desired(key, resource)
        await self._untrack(key)
        reach = Reach(self._client, key.namespace, forward=not self._in_cluster)
        root = self._root(key, resource)
        setting = Setting(self._client, self._watches.cluster(key, uid), root, reach, self._lists)
        place = KubePlace(setting, key.namespace)
        loop = Loop(place, engines.get(desired.engine), time.time)
        self._tracked[key] = tracked = Tracked(uid, root, place, loop, desired)
        return tracked

    def _root(self, key: Key, resource: Object) -> ResourceRoot:
        source = self._kinds[key.kind]
        return ResourceRoot(self._client, source.kind, resource, source.status)

    async def _desired(self, key: Key, resource: Object) -> Desired:
        try:
            return self._kinds[key.kind].desired(resource)
        except Exception as error:  # any error caused by a spec is reported, not retried
            await self._untrack(key)
            raise InvalidSpec from error

    async def _reject(self, key: Key, resource: Object, error: InvalidSpec) -> None:
        """Report the error in the status, once per version of the spec."""
        version, cause = _version(resource), error.__cause__
        if isinstance(cause, SpecError):
            message, hint = cause.message, cause.hint
            log.info(pairs("invalid spec", key=key, error=message))
        else:
            message, hint = f"The spec cannot be read ({type(cause).__name__}: {cause}).", REPORT_A_BUG
            log.error(pairs("unexpected error while reading spec", key=key), exc_info=cause)
        root = self._root(key, resource)
        await root.refuse(Cause("InvalidSpec", message, hint), version[1], Phase.FAILED)
        await root.publish()
        self._invalid[key] = version

    async def _untrack(self, key: Key) -> None:
        tracked = self._tracked.pop(key, None)
        if tracked is not None:
            await tracked.loop.close()
            await tracked.place.close()

    async def close(self) -> None:
        for key in list(self._tracked):
            await self._untrack(key)


def _version(resource: Object) -> tuple[str, int]:
    return str(resource["metadata"]["uid"]), int(resource["metadata"]["generation"])
