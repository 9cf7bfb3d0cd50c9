"""The kinds of resources that the operator reconciles. Each defines how its spec becomes a desired state, and how a
report becomes its status."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from oars import engines
from oars.base.errors import SpecError
from oars.kube.client import Client
from oars.kube.kinds import Kind, Object
from oars.model import Cause, Desired, DrainRequest, MemberId
from oars.operator.crd import NAME as CRD_NAME
from oars.operator.safe_fields import Right, restricted_fields
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.state import status_codec
from oars.places.kube.state.observe import seconds
from oars.places.kube.state.root import ResourceRoot
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
class Course:
    """What becomes of a resource beside its cluster: changes of its status, what to announce with them, whether it is
    deleted now, and the seconds until it must be looked at again."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Cause, ...] = ()
    is_over: bool = False
    pause: float = math.inf


class Follow(Protocol):
    """The course of a resource after a pass: from its status as last written and the pods of its cluster."""

    def __call__(
        self,
        resource: Object,
        status: Mapping[str, Any],
        pods: Sequence[Object],
        causes: Sequence[Cause],
        now: float,
    ) -> Course: ...


class Prepare(Protocol):
    """What a resource needs besides its cluster, before each pass. Returns the seconds until it must be looked at
    again. pods: of the cluster; resources: all that the operator watches."""

    async def __call__(
        self,
        client: Client,
        root: ResourceRoot,
        cluster: Desired,
        pods: Sequence[Object],
        resources: Mapping[Key, Object],
    ) -> float: ...


@dataclass(frozen=True)
class ResourceKind:
    """`desired` raises SpecError for a spec that the schema accepts but Oars does not support. `restricted` returns the
    fields whose author needs more rights than to create the resource, by right; the admission policy `policy` checks
    that. `settle` changes the desired state as the status requires, such as after the end. `is_left_alone`: by its
    status the members stay as they are, and the loop does nothing."""

    kind: Kind
    desired: Callable[[Object], Desired]
    status: StatusCodec
    restricted: Callable[[Object], Mapping[Right, Sequence[str]]] = lambda resource: {}
    follow: Follow | None = None
    settle: Callable[[Desired, Mapping[str, Any]], Desired] = lambda desired, status: desired
    is_left_alone: Callable[[Object, Mapping[str, Any]], bool] = lambda resource, status: False
    prepare: Prepare | None = None
    policy: str = CRD_NAME
    title: str = ""  # if another kind has the same name

    @property
    def name(self) -> str:
        """Key.kind of its resources."""
        return self.title or self.kind.kind


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
    created = seconds(metadata.get("creationTimestamp"))
    desired = replace(desired, mode="operator", generation=metadata["generation"], created_at=created)
    return with_requests(desired, resource)


def with_requests(desired: Desired, resource: Object) -> Desired:
    """The desired state with what annotations of the resource request: they change without a new generation."""
    annotations = resource["metadata"].get("annotations") or {}
    named, forced = (names.listed(annotations.get(key, "")) for key in (names.DRAIN, names.DRAIN_FORCE))
    workers = [each for each in (*named, *forced) if each != names.EVERYONE]
    return replace(
        desired,
        force=is_forced(resource),
        drain={MemberId(each): DrainRequest(force=each in forced) for each in workers},
        drain_all=names.EVERYONE in named,
    )


def is_forced(resource: Object) -> bool:
    """True if the user allows this generation to discard the data of removed workers."""
    annotations = resource["metadata"].get("annotations") or {}
    return bool(annotations.get(names.FORCE) == str(resource["metadata"]["generation"]))


COMPUTE_CLUSTERS = ResourceKind(
    COMPUTE_CLUSTER,
    compute_cluster,
    status_codec.COMPUTE_CLUSTER_STATUS,
    restricted=lambda resource: restricted_fields(resource["spec"]),
)
RESOURCE_KINDS: tuple[ResourceKind, ...] = (COMPUTE_CLUSTERS,)
