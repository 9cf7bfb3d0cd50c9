"""The objects that a cluster's root owns: applies them, and notices when one was deleted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import Kind, Object, kind_of
from oars.model import Cause
from oars.places.base import PlaceError
from oars.places.kube.names import KindAndName, kind_and_name
from oars.places.kube.state import ownership
from oars.places.kube.state.cache import CATCH_UP, ClusterCache
from oars.places.kube.why.api_errors import NameConflict

# A resource version that no object has. An apply with it can create an object, but conflicts with an existing one.
CREATE_ONLY = "1"
CREATE_ATTEMPTS = 3


class OwnedObjects:
    """The objects applied for one root."""

    def __init__(self, client: Client, cache: ClusterCache, owner: Object, clock: Callable[[], float]) -> None:
        self._client = client
        self._cache = cache
        self.owner = owner
        self._clock = clock
        self._expected: dict[KindAndName, Kind] = {}
        self._deleted: set[KindAndName] = set()  # as `check` found
        self._left: list[Object] = []  # objects of an earlier cluster of the same name
        self._applied: dict[KindAndName, float] = {}

    async def apply(self, obj: Object) -> Object:
        """Create or update the object, owned by the root. Raises NameConflict, and changes nothing, if another owner
        has an object of that name."""
        obj["metadata"]["ownerReferences"] = [self.owner]
        if kind_and_name(obj) == (self.owner["kind"], self.owner["name"]):
            obj["metadata"]["uid"] = self.owner["uid"]  # a root that was deleted must not come back without its intent
        is_ours = self._cache.has(*kind_and_name(obj)) or (
            kind_and_name(obj) in self._applied and not self.is_missing(kind_and_name(obj))
        )
        applied = await (self._client.apply(obj) if is_ours else self._create(obj))
        self._applied[kind_and_name(obj)] = self._clock()
        self._deleted.discard(kind_and_name(obj))
        return applied

    async def _create(self, obj: Object) -> Object:
        """Apply an object that is not in the cache, and so most likely does not exist. Only after a conflict we read
        the existing object to check its owner. If it was deleted in between, we start again."""
        metadata = obj["metadata"]
        for attempt in range(1, CREATE_ATTEMPTS + 1):
            try:
                return await self._client.apply({**obj, "metadata": {**metadata, "resourceVersion": CREATE_ONLY}})
            except ApiError as error:
                if error.status != 409:
                    raise
            try:
                await self.existing(obj)
            except ApiError as error:
                if not is_not_found(error) or attempt == CREATE_ATTEMPTS:
                    raise
            else:
                break
        return await self._client.apply(obj)

    async def existing(self, obj: Object) -> Object:
        """The object of that kind and name. Raises NameConflict if something else owns it, and PlaceError if an earlier
        cluster of the same name left it behind: it is about to be garbage-collected, so we neither change nor use
        it."""
        metadata = obj["metadata"]
        found = await self._client.get(kind_of(obj), metadata["name"], metadata["namespace"])
        if not ownership.is_of(found, self.owner):
            raise NameConflict(obj["kind"], metadata["name"], metadata["namespace"])
        if ownership.is_left(found, self.owner):
            self._left.append({**found, "apiVersion": obj["apiVersion"], "kind": obj["kind"]})
            message = f"{obj['kind']} {metadata['name']} of an earlier cluster of this name is being deleted."
            raise PlaceError(Cause("LeftBehind", message))
        return found

    async def collect_left(self) -> None:
        """Delete what `existing` found left behind. Kubernetes is about to do so too, so a refusal is ignored."""
        while self._left:
            left = self._left.pop()
            name, namespace, uid = (left["metadata"][key] for key in ("name", "namespace", "uid"))
            try:
                await self._client.delete(kind_of(left), name, namespace, uid=uid)
            except ApiError as error:
                if error.status not in (403, 409):
                    raise

    async def withdraw(self, kind: Kind, name: str, namespace: str) -> None:
        """Delete an object that the spec no longer needs, if the root owns it. Without the right to delete it we cannot
        have created it, so a 403 is ignored."""
        key = (kind.kind, name)
        if self._cache.has(*key) is False and key not in self._applied:
            return
        try:
            found = await self._client.get(kind, name, namespace)
            if ownership.is_of(found, self.owner):
                await self._client.delete(kind, name, namespace, uid=found["metadata"]["uid"])
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        self._applied.pop(key, None)

    def expect(self, objects: Iterable[Object]) -> None:
        """Set the objects that must exist."""
        self._expected = {kind_and_name(obj): kind_of(obj) for obj in objects}
        self._deleted &= self._expected.keys()

    async def check(self, namespace: str) -> None:
        """Look for expected objects of kinds that are not watched. If one cannot be read, assume that it exists."""

        async def look(key: KindAndName, kind: Kind) -> None:
            try:
                found = await self._client.get(kind, key[1], namespace)
            except OarsError as error:
                if is_not_found(error):
                    self._deleted.add(key)
                return
            if ownership.is_of(found, self.owner) and not ownership.is_left(found, self.owner):
                self._deleted.discard(key)
            else:
                self._deleted.add(key)

        unwatched = {key: kind for key, kind in self._expected.items() if self._cache.has(*key) is None}
        await asyncio.gather(*(look(key, kind) for key, kind in unwatched.items()))

    def is_complete(self) -> bool:
        return not any(map(self.is_missing, self._expected))

    def is_missing(self, key: KindAndName) -> bool:
        """True if the object was deleted. The cache may not show an object yet that we have just applied."""
        return key in self._deleted or self._is_gone(key)

    def _is_gone(self, key: KindAndName) -> bool:
        return self._cache.has(*key) is False and self._clock() - self._applied.get(key, -math.inf) > CATCH_UP
