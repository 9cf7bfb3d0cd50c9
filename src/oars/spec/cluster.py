"""ClusterSpec: the one description of a cluster, whatever the engine and the place."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from oars.spec import resources

API_VERSION = "oars.dev/v1alpha1"
KIND = "ComputeCluster"
MAX_WORKERS = 10_000
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Memory = Annotated[int, BeforeValidator(resources.memory)]
Cpu = Annotated[float, BeforeValidator(resources.cpu)]
Duration = Annotated[float, BeforeValidator(resources.duration)]


def check_name(value: str, what: str = "name") -> str:
    """A name must serve as part of DNS names, file names and labels everywhere."""
    if not _DNS_LABEL.fullmatch(value):
        raise ValueError(
            f"{value!r} is no valid {what}; use at most 53 lower-case letters, digits and '-', starting with a letter"
        )
    return value


def check_namespace(value: str) -> str:
    """Whatever Kubernetes takes: the namespace may be somebody else's."""
    if not _NAMESPACE.fullmatch(value):
        raise ValueError(
            f"{value!r} is no valid namespace; use at most 63 lower-case letters, digits and '-', no '-' at the ends"
        )
    return value


class Part(BaseModel):
    """Base of all: unknown fields are errors, names are camelCase in files and snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class Environment(Part):
    """What the engine's Python holds besides the engine. Local and hosts: a cached environment, built once."""

    packages: tuple[str, ...] = Field(default=(), description="Requirements as pip writes them.")

    @field_validator("packages")
    @classmethod
    def _no_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for package in value:
            if not package.strip() or package.lstrip().startswith("-"):
                raise ValueError(f"{package!r} is not a package requirement; write it like pandas or numpy>=2")
        return value


class Head(Part):
    """The scheduler, GCS or supervisor."""

    cpu: Cpu = Field(default=1.0, description="Processors of the head.")
    memory: Memory | None = Field(default=None, description="Memory of the head.")
    burst: bool = Field(
        default=False, description="Kubernetes: cpu is promised but no limit; idle processors of the node are used too."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the head.")
    pod: dict[str, Any] = Field(default_factory=dict, description="Kubernetes: a PodTemplateSpec, merged over ours.")


class WorkerGroup(Part):
    """Workers that are alike."""

    name: str = Field(default="default", description="Name of the group, unique in the cluster.")
    replicas: int = Field(default=1, ge=0, le=MAX_WORKERS, strict=True, description="How many workers.")
    cpu: Cpu = Field(default=1.0, description="Processors of each worker.")
    memory: Memory | None = Field(default=None, description="Memory of each worker.")
    burst: bool = Field(
        default=False, description="Kubernetes: cpu is promised but no limit; idle processors of the node are used too."
    )
    gpu: int = Field(default=0, ge=0, le=1024, description="Graphics processors of each worker.")
    resources: dict[str, float] = Field(
        default_factory=dict, description="Names and amounts the engine can schedule on (Dask and Ray resources)."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels the engine can schedule on (Ray).")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of each worker.")
    pod: dict[str, Any] = Field(default_factory=dict, description="Kubernetes: a PodTemplateSpec, merged over ours.")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value == "head":
            raise ValueError("'head' is the head's own name; call the group something else")
        return check_name(value, "group name")

    @field_validator("resources")
    @classmethod
    def _amounts(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or amount < 0:
                raise ValueError(f"resource {name!r}: {amount} is not a name with an amount of 0 or more")
        return value


class DrainPolicy(Part):
    """Scale-down."""

    timeout: Duration = Field(default=60.0, description="How long a worker may take to hand over what it holds.")


class NamespaceBlock(Part):
    """Kubernetes: which namespace the cluster lives in."""

    name: str | None = Field(
        default=None, description="Default: --namespace or that of the context; with create, the cluster's own name."
    )
    create: bool = Field(default=False, description="Make a namespace for this cluster and delete it with the cluster.")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        return value if value is None else check_namespace(value)


class Expose(Part):
    """Kubernetes: how the head is reached from outside."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the head's Service."
    )
    host: str | None = Field(default=None, description="Makes an Ingress with this host name for the dashboard.")
    ingress_class: str | None = Field(default=None, description="Class of the Ingress.")
    tls_secret: str | None = Field(default=None, description="Secret with the certificate for the Ingress.")
    annotations: dict[str, str] = Field(default_factory=dict, description="For the Service and the Ingress.")


class Lifetime(Part):
    """When it ends by itself."""

    orphaned: Duration = Field(
        default=120.0,
        description="Kubernetes without the operator: how long it stays after the program that made it has gone; at "
        "least 10 s, and 0 for ever.",
    )


class DaskBlock(Part):
    """What only Dask has."""

    protocol: Literal["tls", "tcp"] = Field(default="tls", description="tls: encrypted, certificate per cluster.")
    config: dict[str, Any] = Field(default_factory=dict, description="Dask configuration, as in dask.yaml.")


class RayBlock(Part):
    """What only Ray has."""

    auth: Literal["token", "none"] = Field(default="token", description="token: a secret per cluster.")
    object_store_memory: Memory | None = Field(default=None, description="Of each raylet's memory; default 30 %.")
    dashboard: bool = Field(default=True, description="Run Ray's dashboard.")


class MarsBlock(Part):
    """What only Mars has."""

    distribution: Literal["xorbits", "pymars"] = Field(default="xorbits", description="Which Mars: xorbits or pymars.")
    config: dict[str, Any] = Field(default_factory=dict, description="Mars configuration, merged over the default.")


class ClusterSpec(Part):
    """A cluster, on any place."""

    engine: str = Field(description="dask, ray, mars, or the name of an installed plug-in.")
    place: str = Field(default="local", description="Where it runs.")
    image: str | None = Field(default=None, description="Kubernetes: the image of all pods.")
    environment: Environment = Field(default_factory=Environment)
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every member.")
    head: Head = Field(default_factory=Head)
    workers: tuple[WorkerGroup, ...] = Field(default=(WorkerGroup(),), description="Worker groups, or a number.")
    replicas: int | None = Field(
        default=None, ge=0, le=MAX_WORKERS, strict=True,
        description="Workers of the first group, instead of its own number; what `kubectl scale` and autoscalers set.",
    )  # fmt: skip
    min_ready: int | None = Field(
        default=None, ge=0, le=MAX_WORKERS, strict=True,
        description="Whoever starts the cluster goes on when the head and that many workers are ready. Default: all.",
    )  # fmt: skip
    drain: DrainPolicy = Field(default_factory=DrainPolicy)
    namespace: NamespaceBlock = Field(default_factory=NamespaceBlock)
    expose: Expose = Field(default_factory=Expose)
    lifetime: Lifetime = Field(default_factory=Lifetime)
    dask: DaskBlock = Field(default_factory=DaskBlock)
    ray: RayBlock = Field(default_factory=RayBlock)
    mars: MarsBlock = Field(default_factory=MarsBlock)
    options: dict[str, Any] = Field(default_factory=dict, description="For engines that are plug-ins.")

    @field_validator("workers", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """`workers: 3` is short for one group of three."""
        return ({"replicas": value},) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="before")
    @classmethod
    def _first_group(cls, data: object) -> object:
        """`replicas` is a number of the first group: written there, it is the same for everyone who reads the spec."""
        if not isinstance(data, dict) or not isinstance(data.get("replicas"), int):
            return data
        groups = data.get("workers", ({},))
        if not isinstance(groups, list | tuple) or not groups or not isinstance(groups[0], dict):
            return data
        return {**data, "workers": [{**groups[0], "replicas": data["replicas"]}, *groups[1:]]}

    @model_validator(mode="after")
    def _groups_differ(self) -> ClusterSpec:
        names = [group.name for group in self.workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two worker groups are called {name!r}; give each its own name")
        if {"default", "worker"} <= set(names):
            raise ValueError("groups 'default' and 'worker' would both have members called worker-0; rename one")
        return self

    def namespace_for(self, name: str, given: str | None) -> str | None:
        """Kubernetes: where a cluster of that name lives: as described, else as given beside it, else, if it has one of
        its own, called like it. None: nobody said."""
        return self.namespace.name or given or (name if self.namespace.create else None)

    def group(self, name: str | None) -> WorkerGroup | None:
        """The group of that name; None means the first."""
        groups = {group.name: group for group in self.workers}
        return self.workers[0] if name is None and self.workers else groups.get(name or "")

    def with_replicas(self, group: str, replicas: int) -> ClusterSpec:
        """The same cluster with another number of workers in one group."""
        data = self.model_dump() | {"replicas": None}
        for entry in data["workers"]:
            if entry["name"] == group:
                entry["replicas"] = replicas
        return ClusterSpec.model_validate(data)
