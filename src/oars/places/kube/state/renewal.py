"""The annotation by which the program of a tied cluster says that it runs: "<time>/<limit>".

The limit is the one that the program knows: how often it renews follows from it. So a limit that is lowered meanwhile
counts only when the program knows it. Pure."""

from __future__ import annotations

import math

from oars.places.kube import names
from oars.places.kube.names import Object
from oars.spec.cluster import Lifetime


def renewal(now: float, limit: float) -> str:
    """The value of the annotation. limit: seconds that the cluster outlives its program, as the program knows it."""
    return f"{now:.3f}/{limit}"


def value_of(metadata: Object) -> str | None:
    """The annotation; None: the cluster has no owner."""
    found = (metadata.get("annotations") or {}).get(names.OWNER)
    return None if found is None else str(found)


def known_limit(metadata: Object) -> float:
    """The limit that the owner knows; 0: it does not say."""
    try:
        found = float((value_of(metadata) or "").partition("/")[2])
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def read_lifetime(resource: Object) -> Lifetime | None:
    """The lifetime of the spec; None if it is invalid."""
    try:
        return Lifetime.model_validate(resource["spec"].get("lifetime") or {})
    except ValueError:
        return None
