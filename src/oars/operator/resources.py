"""The kinds of resources that the operator reconciles. Each defines how its spec becomes a desired state, and how a
report becomes its status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oars import engines
from oars.base.errors import SpecError
from oars.kube.kinds import Kind, Object
from oars.model import Desired
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.state import status_codec
from oars.places.kube.state.status_codec import StatusCodec
from oars.plan.desired import build
from oars.spec import load


@dataclass(frozen=True)
class Key:
    """Identifies one resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ResourceKind:
    """`desired` raises SpecError for a spec that the schema accepts but Oars does not support."""

    kind: Kind
    desired: Callable[[Object], Desired]
    status: StatusCodec


def compute_cluster(resource: Object) -> Desired:
    metadata = resource["metadata"]
    spec = load.build({**resource["spec"], "place": "kubernetes"}, option_model=engines.option_model).spec
    namespace = spec.namespace.name
    if namespace and namespace != metadata["namespace"]:
        raise SpecError(
            f"spec.namespace.name is {namespace!r}, but the resource is in {metadata['namespace']!r}.",
            f"Remove the field, or create the resource in namespace {namespace!r}.",
        )
    desired = build(metadata["name"], spec, engines.get(spec.engine), DEFAULTS, namespace=metadata["namespace"])
    objects.manifests(desired)  # raises SpecError if the overlay conflicts with the rendered pod
    return replace(desired, mode="operator", force=is_forced(resource), generation=metadata["generation"])


def is_forced(resource: Object) -> bool:
    """True if the user allows this generation to discard the data of removed workers."""
    annotations = resource["metadata"].get("annotations") or {}
    return bool(annotations.get(names.FORCE) == str(resource["metadata"]["generation"]))


COMPUTE_CLUSTERS = ResourceKind(COMPUTE_CLUSTER, compute_cluster, status_codec.COMPUTE_CLUSTER_STATUS)
RESOURCE_KINDS: tuple[ResourceKind, ...] = (COMPUTE_CLUSTERS,)
