"""From a spec to a cluster as Kubernetes shall have it. Pure."""

from __future__ import annotations

from dataclasses import replace

from oars.engines.base import Engine
from oars.model import Desired
from oars.places.kube.render.pod import Cluster
from oars.spec.cluster import ClusterSpec

# Engines left without a limit each believe that they have the whole node.
HEAD_MEMORY, WORKER_MEMORY = 2**30, 2 * 2**30


def describe(name: str, namespace: str, spec: ClusterSpec, engine: Engine, *, watched: bool = False) -> Cluster:
    """Raises SpecError for what the engine cannot do. `watched`: our helper shall end the cluster when its owner is
    gone, so it must be there in any case."""
    engine.check(spec)
    filled = with_memory(spec)
    shape = engine.shape(_with_workers(filled))
    groups = zip(shape.workers, filled.workers, strict=True)
    shape = replace(shape, workers=tuple(replace(group, replicas=said.replicas) for group, said in groups))
    return Cluster(name, namespace, filled, shape, helped=watched or shape.needs_helper)


def with_memory(spec: ClusterSpec) -> ClusterSpec:
    data = spec.model_dump()
    data["head"]["memory"] = data["head"]["memory"] or HEAD_MEMORY
    for group in data["workers"]:
        group["memory"] = group["memory"] or WORKER_MEMORY
    return type(spec).model_validate(data)


def _with_workers(spec: ClusterSpec) -> ClusterSpec:
    """A head that works while it is alone would have to be replaced when the first worker comes; so it never does,
    unless the cluster has no group of workers at all."""
    data = spec.model_dump() | {"replicas": None}
    for group in data["workers"]:
        group["replicas"] = max(1, group["replicas"])
    return type(spec).model_validate(data)


def desired(cluster: Cluster, *, force: bool, generation: int) -> Desired:
    return Desired(
        name=cluster.name,
        engine=cluster.spec.engine,
        place="kubernetes",
        shape=cluster.shape,
        force=force,
        drain_seconds=cluster.spec.drain.timeout,
        generation=generation,
    )
