"""The only builder of the desired state: a spec, seen through its engine, with a place's defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oars.engines.base import Engine
from oars.model import Desired, Exposure

if TYPE_CHECKING:  # reading the status of clusters needs no pydantic
    from oars.spec.cluster import ClusterSpec

# Fields that no member depends on, or not every member.
_NOT_SHARED = {"workers", "head", "replicas", "min_ready", "drain", "lifetime", "expose", "place"}


@dataclass(frozen=True)
class Defaults:
    """What a place assumes where the spec is silent. An engine without a memory limit believes that it has the whole
    machine."""

    head_memory: int
    worker_memory: int
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
        fingerprint=digest({**shared, "head": spec.head.model_dump(mode="json"), "alone": not spec.workers}),
    )
    workers = []
    for group, written in zip(shape.workers, spec.workers, strict=True):
        words = written.model_dump(mode="json", exclude={"replicas"})
        fingerprint = digest({**shared, "group": words})
        changes: dict[str, Any] = {"pod": written.pod, "burst": written.burst, "fingerprint": fingerprint}
        workers.append(replace(group, replicas=written.replicas, **changes))
    expose = spec.expose
    return Desired(
        name=name,
        engine=spec.engine,
        place=spec.place,
        shape=replace(shape, head=head, workers=tuple(workers)),
        namespace=namespace,
        create_namespace=spec.namespace.create,
        image=spec.image or shape.image,
        expose=Exposure(
            expose.type, expose.host or "", expose.ingress_class or "", expose.tls_secret or "", expose.annotations
        ),
        helper=helper,
        tied=tied,
        drain_timeout=spec.drain.timeout,
    )


def with_memory(spec: ClusterSpec, defaults: Defaults) -> ClusterSpec:
    data = spec.model_dump()
    data["head"]["memory"] = data["head"]["memory"] or defaults.head_memory
    for group in data["workers"]:
        group["memory"] = group["memory"] or defaults.worker_memory
    return type(spec).model_validate(data)


def _with_workers(spec: ClusterSpec) -> ClusterSpec:
    """At least one worker in every group: an engine may let a head that is alone run tasks itself."""
    data = spec.model_dump() | {"replicas": None}
    for group in data["workers"]:
        group["replicas"] = max(1, group["replicas"])
    return type(spec).model_validate(data)


def digest(content: Mapping[str, Any]) -> str:
    """A short hash of plain data; equal data has the same hash in every process."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
