"""Another number of workers, wherever the cluster lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.base.errors import NotFound, SpecError

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


def rescaled(name: str, spec: ClusterSpec, replicas: int, group: str | None) -> ClusterSpec:
    """The description of cluster `name` with that many workers in a group; None means the first."""
    chosen = spec.group(group)
    if chosen is None:
        known = ", ".join(g.name for g in spec.workers)
        raise NotFound(f"The cluster {name!r} has no worker group {group!r}.", f"It has: {known}.")
    try:
        return spec.with_replicas(chosen.name, replicas)
    except ValueError as error:
        raise SpecError(f"{replicas} is not a number of workers.", "Give a whole number, 0 or more.") from error
