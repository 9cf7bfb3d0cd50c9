"""Defaults for what a spec does not set, on this computer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.plan.desired import Defaults

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


def defaults(spec: ClusterSpec, machine_memory: int) -> Defaults:
    """An equal share of four fifths of the memory for every member, 4 GiB at most."""
    members = 1 + sum(group.replicas for group in spec.workers)
    share = max(256 * 2**20, min(4 * 2**30, machine_memory * 4 // 5 // members))
    return Defaults(head_memory=share, worker_memory=share)
