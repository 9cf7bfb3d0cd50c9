"""A cluster as plain Kubernetes manifests, which need nothing of Oars in Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from oars import engines
from oars.client.cluster import checked_name
from oars.places.kube import names
from oars.places.kube.render import objects as rendering
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.values import secret_files
from oars.places.kube.state.secrets import make_secrets
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec


@dataclass(frozen=True)
class Rendered:
    """Manifests, and the name of the Secret that they need; empty: none."""

    name: str
    objects: Sequence[dict[str, Any]]
    secret: str


def render(
    name: str, spec: ClusterSpec, namespace: str | None, *, create_namespace: bool = False, secrets: str = "reference"
) -> Rendered:
    """secrets: "reference" leaves out the Secret, "inline" adds one with new content, "only" makes just that. Without
    a namespace, in arguments or spec, the objects name none."""
    create = spec.namespace.create or create_namespace
    spec = spec.model_copy(update={"namespace": spec.namespace.model_copy(update={"create": create})})
    chosen = spec.namespace_for(checked_name(name), namespace)
    # Without a controller the helper has no peer.
    cluster = replace(build(name, spec, engines.get(spec.engine), DEFAULTS, namespace=chosen or ""), helper=False)
    files = secret_files(cluster.shape)
    objects: list[dict[str, Any]] = []
    if files and secrets != "reference":
        made = make_secrets(cluster.name, cluster.shape.secrets)
        # Running members use the first content, so applying another one must fail.
        objects.append({**rendering.secret(cluster, {key: made[key] for key in files}), "immutable": True})
    if secrets != "only":
        rest = rendering.manifests(cluster)
        first = 1 if cluster.create_namespace else 0
        objects = [*rest[:first], *objects, *rest[first:]]
    if not chosen:
        for obj in objects:
            del obj["metadata"]["namespace"]
    return Rendered(name, objects, names.root(name) if files else "")
