"""Change the number of workers in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.base.errors import NotFound, SpecError

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


def with_workers(name: str, spec: ClusterSpec, replicas: int, group: str | None) -> ClusterSpec:
    """The spec of cluster `name` with that many workers in a group; None: the first group."""
    chosen = spec.group(group)
    if chosen is None:
        known = ", ".join(g.name for g in spec.workers)
        raise NotFound(f"Cluster {name!r} has no worker group {group!r}.", f"Groups: {known}.")
    try:
        return spec.with_replicas(chosen.name, replicas)
    except ValueError as error:
        raise SpecError(f"{replicas} is not a valid number of workers.", "Use a whole number, 0 or more.") from error
