"""The only builder of the desired state: from a spec, seen through its engine, with a place's defaults; or from a shape
that another project's interface made of its own templates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oars.base.errors import SpecError
from oars.engines.base import Engine
from oars.exposure import Exposure
from oars.model import Autoscale, Desired, Lifetime, Shape, Spill

if TYPE_CHECKING:  # reading the status of clusters needs no pydantic
    from oars.spec.cluster import ClusterSpec, Head, WorkerGroup

NODE_PATIENCE = 5.0  # times as long as without a node autoscaler
# Fields that no member depends on, or not every member.
_NOT_SHARED = {"workers", "head", "replicas", "min_ready", "autoscale", "drain", "lifetime", "expose", "place"}

NUMBERS = {"replicas", "min", "max", "adapted", "priority"}  # of a group: no member depends on them


@dataclass(frozen=True)
class Defaults:
    """What a place assumes where the spec is silent. An engine without a memory limit believes that it has the whole
    machine."""

    head_memory: int
    worker_memory: int
    head_cpu_request: float | None = None  # of a head or worker without `cpu`; None: as much as it may use
    worker_cpu_request: float | None = None
    dedicated_head: bool = False  # the head never runs tasks, so the first worker that joins does not replace it


def build(
    name: str, spec: ClusterSpec, engine: Engine, defaults: Defaults, *, namespace: str = "", tied: bool = False
) -> Desired:
    """Raises SpecError for what the engine cannot do. `tied`: the cluster ends when its owner is gone."""
    engine.check(spec)
    spec = with_memory(spec, defaults)
    shape = engine.shape(_with_workers(spec) if defaults.dedicated_head else spec)
    helper = tied or shape.needs_helper
    shared = {**spec.model_dump(mode="json", exclude=_NOT_SHARED), "helped": helper}
    head = replace(
        shape.head,
        pod=spec.head.pod,
        burst=spec.head.burst,
        cpu_request=defaults.head_cpu_request if spec.head.cpu is None else None,
        fingerprint=digest({**shared, "head": _words(spec.head, {"eviction", "update"}), "alone": not spec.workers}),
    )
    workers = []
    for group, written in zip(shape.workers, spec.workers, strict=True):
        fingerprint = digest({**shared, "group": _words(written, NUMBERS)})
        changes: dict[str, Any] = {"pod": written.pod, "burst": written.burst, "fingerprint": fingerprint}
        if written.cpu is None:
            changes["cpu_request"] = defaults.worker_cpu_request
        if (spill := written.spill) is not None:
            changes["spill"] = Spill(spill.paths, spill.size, spill.medium)
        if written.name in spec.autoscaled:
            changes |= written.model_dump(include={"max", "adapted", "priority"}) | {"min": written.min or 0}
        workers.append(replace(group, replicas=written.replicas, labels=written.labels, **changes))
    scaling = spec.autoscale
    return Desired(
        name=name,
        engine=spec.engine,
        place=spec.place,
        shape=replace(shape, head=head, workers=tuple(workers)),
        namespace=namespace,
        create_namespace=spec.namespace.create,
        image=spec.image or shape.image,
        labels=spec.labels,
        annotations=spec.annotations,
        expose=_exposure(spec, shape),
        is_head_evictable=spec.head.eviction == "allow",
        keeps_head=spec.head.update == "OnDelete",
        helper=helper,
        tied=tied,
        drain_timeout=spec.drain.timeout,
        autoscale=Autoscale(
            scaling.enabled,
            scaling.scale_down_delay,
            scaling.horizon,
            patience=scaling.patience,
            patience_node_autoscaler=NODE_PATIENCE * scaling.patience,
        ),
        lifetime=make_lifetime(spec),
    )


def _exposure(spec: ClusterSpec, shape: Shape) -> Exposure:
    expose, groups = spec.expose, (shape.head, *shape.workers)
    metrics = {port.default for group in groups for port in group.process.ports if port.metrics}
    if expose.metrics and not metrics:
        raise SpecError(f"expose.metrics: {spec.engine} has no metrics for Prometheus.", "Remove it.")
    return Exposure(
        type=expose.type,
        host=expose.host or "",
        ingress_class=expose.ingress_class or "",
        tls_secret=expose.tls_secret or "",
        annotations=expose.annotations,
        clients=expose.clients,
        metrics=expose.metrics,
        metrics_ports=tuple(sorted(metrics)) if expose.metrics else (),
    )


def build_from_shape(name: str, engine: str, place: str, shape: Shape, *, namespace: str = "") -> Desired:
    """The desired state of a cluster without a spec. It never changes, so that its generation is the first."""
    return Desired(name, engine, place, shape, namespace=namespace, generation=1)


def make_lifetime(spec: ClusterSpec) -> Lifetime:
    return Lifetime(spec.lifetime.idle, spec.lifetime.no_client, spec.lifetime.max)


def _words(part: Head | WorkerGroup, others: set[str]) -> dict[str, Any]:
    """What the user wrote of a group, without the fields that its members do not depend on."""
    return {**part.model_dump(mode="json", exclude=others), "cpu": part.processors}


def with_memory(spec: ClusterSpec, defaults: Defaults) -> ClusterSpec:
    data = spec.model_dump()
    data["head"]["memory"] = data["head"]["memory"] or defaults.head_memory
    for group in data["workers"]:
        group["memory"] = group["memory"] or defaults.worker_memory
    return type(spec).model_validate(data)


def _with_workers(spec: ClusterSpec) -> ClusterSpec:
    """At least one worker in every group: an engine may let a head without workers run tasks itself."""
    data = spec.model_dump() | {"replicas": None}
    for group in data["workers"]:
        group["replicas"] = max(1, group["replicas"])
    return type(spec).model_validate(data)


def digest(content: Mapping[str, Any]) -> str:
    """A short hash of plain data; equal data has the same hash in every process."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
