"""Whether the owner of a tied cluster still runs: it renews an annotation of the resource (see client.owner)."""

from __future__ import annotations

from oars.kube.kinds import Object
from oars.places.kube import names
from oars.places.kube.state.renewal import known_limit, read_lifetime, value_of
from oars.spec.cluster import Lifetime

MIN_SECONDS = 10.0  # as in direct mode
LATE = 1.5  # intervals between two looks that count at most: the owner cannot renew while the API server is away


def orphan_limit(resource: Object) -> float:
    """Seconds that the cluster outlives its owner; 0: it has none, or no limit."""
    if value_of(resource["metadata"]) is None:
        return 0.0
    seconds = (read_lifetime(resource) or Lifetime()).orphaned
    return max(seconds, known_limit(resource["metadata"]), MIN_SECONDS) if seconds else 0.0


class OwnerWatch:
    """How long an owner has been silent. Only the local clock counts, and only time between looks that succeeded."""

    def __init__(self) -> None:
        self._value = ""
        self._looked: float | None = None
        self.silent = 0.0

    def is_due(self, limit: float, now: float) -> bool:
        """True if it is time for another look."""
        return self._looked is None or now - self._looked >= names.owner_interval(limit)

    def look(self, metadata: Object, limit: float, now: float) -> bool:
        """Count a look at the resource. True if the owner has been silent for too long."""
        value = value_of(metadata) or ""
        if self._looked is None or value != self._value:
            self.silent = 0.0
        else:
            self.silent += min(now - self._looked, LATE * names.owner_interval(limit))
        self._value, self._looked = value, now
        return self.silent >= limit
