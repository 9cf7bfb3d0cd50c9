"""Desired states as Kubernetes gets them."""

from __future__ import annotations

from typing import Any

from oars import engines
from oars.model import Desired
from oars.places.kube.render.defaults import DEFAULTS
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec


def spec_of(engine: str = "dask", **spec: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"engine": engine, "place": "kubernetes", "image": "team/it:1", **spec})


def cluster(engine: str = "dask", *, name: str = "demo", tied: bool = False, **spec: Any) -> Desired:
    return build(name, spec_of(engine, **spec), engines.get(engine), DEFAULTS, namespace="lab", tied=tied)
