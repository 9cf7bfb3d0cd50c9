"""The objects of a cluster: how they are asked for, and whether those beside the members are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object, of
from oars.places.kube.names import KindAndName, kind_and_name
from oars.places.kube.state import ownership
from oars.places.kube.state.cache import CATCH_UP, Seen
from oars.places.kube.why.api_errors import Taken

OF_NOTHING = "1"  # a version that no object has: the API server's own first objects are younger


class OwnedObjects:
    """What has been asked for on behalf of one root."""

    def __init__(self, client: Client, seen: Seen, owner: Object, clock: Callable[[], float]) -> None:
        self._client = client
        self._seen = seen
        self._owner = owner
        self._clock = clock
        self._expected: frozenset[KindAndName] = frozenset()
        self._applied: dict[KindAndName, float] = {}

    async def apply(self, obj: Object) -> Object:
        """Make it, or make it so; it goes with the root. Raises Taken rather than touch what is another's."""
        obj["metadata"]["ownerReferences"] = [self._owner]
        is_ours = self._seen.has(*kind_and_name(obj)) or (
            kind_and_name(obj) in self._applied and not self.is_lost(kind_and_name(obj))
        )
        answer = await (self._client.apply(obj) if is_ours else self._make(obj))
        self._applied[kind_and_name(obj)] = self._clock()
        return answer

    async def _make(self, obj: Object) -> Object:
        """What we have not seen is most likely not there. So it is asked for in a way that makes it, and says no where
        anything has that name; only then it is worth a request to see whose that is."""
        metadata = obj["metadata"]
        try:
            return await self._client.apply({**obj, "metadata": {**metadata, "resourceVersion": OF_NOTHING}})
        except ApiError as error:
            if error.status != 409:
                raise
        found = await self._client.get(of(obj), metadata["name"], metadata["namespace"])
        if not ownership.is_of(found, self._owner):
            raise Taken(obj["kind"], metadata["name"], metadata["namespace"])
        return await self._client.apply(obj)

    async def withdraw(self, kind: Kind, name: str, namespace: str) -> None:
        """What a description has stopped asking for. Whoever may not delete it has not made it."""
        one = (kind.kind, name)
        if self._seen.has(*one) is False and one not in self._applied:
            return
        try:
            found = await self._client.get(kind, name, namespace)
            if ownership.is_of(found, self._owner):
                await self._client.delete(kind, name, namespace, uid=found["metadata"]["uid"])
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        self._applied.pop(one, None)

    def expect(self, objects: Iterable[Object]) -> None:
        """These shall be there from now on."""
        self._expected = frozenset(map(kind_and_name, objects))

    def is_whole(self) -> bool:
        return not any(map(self.is_lost, self._expected))

    def is_lost(self, one: KindAndName) -> bool:
        """Somebody deleted it; what we have just asked for may not have been seen yet."""
        return self._seen.has(*one) is False and self._clock() - self._applied.get(one, 0.0) > CATCH_UP
