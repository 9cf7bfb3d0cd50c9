"""What shall be: a spec seen through its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.engines.base import Engine
from oars.model import Desired

if TYPE_CHECKING:  # looking at clusters needs no pydantic
    from oars.spec.cluster import ClusterSpec


def desired(name: str, spec: ClusterSpec, engine: Engine) -> Desired:
    return Desired(
        name=name,
        engine=spec.engine,
        place=spec.place,
        shape=engine.shape(spec),
        drain_seconds=spec.drain.timeout,
    )


def default_memory(spec: ClusterSpec, machine_memory: int) -> ClusterSpec:
    """Give every member that has no memory of its own an equal share of four fifths of the machine, 4 GiB at most.

    Engines left to themselves each assume that they have the whole machine.
    """
    members = 1 + sum(group.replicas for group in spec.workers)
    share = max(256 * 2**20, min(4 * 2**30, machine_memory * 4 // 5 // members))
    data = spec.model_dump()
    for part in (data["head"], *data["workers"]):
        part["memory"] = part["memory"] or share
    return type(spec).model_validate(data)
