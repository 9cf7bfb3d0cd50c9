"""ClusterSpec: the desired state of a cluster, for all engines and places."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
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
Burst = Annotated[
    bool, Field(description="Kubernetes: request cpu without a limit, so that idle processors are used too.")
]
PodTemplate = Annotated[
    dict[str, Any], Field(description="Kubernetes: a PodTemplateSpec that is merged over the generated one.")
]


def check_name(value: str, what: str = "name") -> str:
    """Names become parts of DNS names, file names and labels."""
    if not _DNS_LABEL.fullmatch(value):
        rule = "use at most 53 lowercase letters, digits and '-', starting with a letter"
        raise ValueError(f"{value!r} is not a valid {what}; {rule}")
    return value


def check_namespace(value: str) -> str:
    """The rules of Kubernetes: Oars may not have created the namespace."""
    if not _NAMESPACE.fullmatch(value):
        rule = "use at most 63 lowercase letters, digits and '-', no '-' at the ends"
        raise ValueError(f"{value!r} is not a valid namespace; {rule}")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WORKERS


class Part(BaseModel):
    """Base class: unknown fields are errors; names are camelCase in files and snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class Environment(Part):
    """Packages to install besides the engine, in a cached environment."""

    packages: tuple[str, ...] = Field(default=(), description="Requirements, as for pip.")

    @field_validator("packages")
    @classmethod
    def _no_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for package in value:
            if not package.strip() or package.lstrip().startswith("-"):
                raise ValueError(f"{package!r} is not a package requirement, such as pandas or numpy>=2")
        return value


class Head(Part):
    """The process that coordinates the workers."""

    cpu: Cpu = Field(default=1.0, description="Processors of the head.")
    memory: Memory | None = Field(default=None, description="Memory of the head.")
    burst: Burst = False
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the head.")
    pod: PodTemplate = Field(default_factory=dict)


class WorkerGroup(Part):
    """A group of equal workers."""

    name: str = Field(default="default", description="Name of the group, unique in the cluster.")
    replicas: int = Field(default=1, ge=0, le=MAX_WORKERS, strict=True, description="Number of workers.")
    cpu: Cpu = Field(default=1.0, description="Processors of each worker.")
    memory: Memory | None = Field(default=None, description="Memory of each worker.")
    burst: Burst = False
    gpu: int = Field(default=0, ge=0, le=1024, description="GPUs of each worker.")
    resources: dict[str, float] = Field(
        default_factory=dict, description="Amounts of named resources of each worker, if the engine schedules by them."
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels of each worker, if the engine schedules by them."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of each worker.")
    pod: PodTemplate = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value == "head":
            raise ValueError("'head' is reserved for the head; rename the group")
        return check_name(value, "group name")

    @field_validator("resources")
    @classmethod
    def _amounts(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or amount < 0:
                raise ValueError(f"resource {name!r}: {amount} must be a name with a number of at least 0")
        return value


class DrainPolicy(Part):
    """Scale-down."""

    timeout: Duration = Field(default=60.0, description="How long a worker may take to hand over its data.")


class NamespaceBlock(Part):
    """Kubernetes: the namespace of the cluster."""

    name: str | None = Field(
        default=None, description="Default: --namespace, or that of the context; with create, the name of the cluster."
    )
    create: bool = Field(
        default=False, description="Create a namespace for this cluster, and delete it with the cluster."
    )

    @field_validator("name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        return value if value is None else check_namespace(value)


class Expose(Part):
    """Kubernetes: access to the head from outside."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the head's Service."
    )
    host: str | None = Field(default=None, description="Host name of an Ingress for the dashboard.")
    ingress_class: str | None = Field(default=None, description="Class of the Ingress.")
    tls_secret: str | None = Field(default=None, description="Secret with the certificate of the Ingress.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the Service and the Ingress.")


class Lifetime(Part):
    """When the cluster deletes itself."""

    orphaned: Duration = Field(
        default=120.0,
        description="Kubernetes without the operator: how long the cluster outlives the program that created it. At "
        "least 10 s; 0: until it is deleted.",
    )


class ClusterSpec(Part):
    """The desired state of a cluster."""

    engine: str = Field(description="Name of a built-in or an installed engine, such as dask.")
    place: str = Field(default="local", description="Where the cluster runs: local or kubernetes.")
    image: str | None = Field(default=None, description="Kubernetes: the image of all pods.")
    environment: Environment = Field(default_factory=Environment)
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every member.")
    head: Head = Field(default_factory=Head)
    workers: tuple[WorkerGroup, ...] = Field(default=(WorkerGroup(),), description="Worker groups, or a number.")
    replicas: int | None = Field(
        default=None, ge=0, le=MAX_WORKERS, strict=True,
        description="Number of workers of the first group. Files for kubectl set it here, not in the group: "
        "`kubectl scale` and autoscalers use it. Default: replicas of the group.",
    )  # fmt: skip
    min_ready: int | None = Field(
        default=None, ge=0, le=MAX_WORKERS, strict=True,
        description="Starting the cluster returns when the head and this many workers are ready. Default: all.",
    )  # fmt: skip
    drain: DrainPolicy = Field(default_factory=DrainPolicy)
    namespace: NamespaceBlock = Field(default_factory=NamespaceBlock)
    expose: Expose = Field(default_factory=Expose)
    lifetime: Lifetime = Field(default_factory=Lifetime)
    engine_options: dict[str, Any] = Field(
        default_factory=dict, description="The engine's own options. Files write them under the engine's name."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of a plug-in engine that has no block of its own."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_engine_block(cls, data: object) -> object:
        """Store the block with the engine's name, such as `dask: {…}`, as engine_options."""
        engine = data.get("engine") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(engine, str) or engine in cls.model_fields:
            return data
        rest = {key: value for key, value in data.items() if key != engine}
        return {**rest, "engine_options": data[engine]} if engine in data else data

    @model_serializer(mode="wrap")
    def _write_engine_block(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        if self.engine in type(self).model_fields:
            return data
        options = data.pop("engineOptions", None) or data.pop("engine_options", None)
        return {**data, self.engine: options} if options else data

    @field_validator("workers", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """Convert `workers: 3` to one group of three."""
        return ({"replicas": value},) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="before")
    @classmethod
    def _first_group(cls, data: object) -> object:
        """Move `replicas` into the first group, so that a validated spec has the number in one place."""
        if not isinstance(data, dict) or not _is_count(data.get("replicas")):
            return data
        number, groups = data["replicas"], cls._short_form(data.get("workers", ({},)))
        if not isinstance(groups, list | tuple):
            return data
        rest = {key: value for key, value in data.items() if key != "replicas"}
        if not groups:  # nothing to scale
            return rest
        first = groups[0].model_dump(exclude_unset=True) if isinstance(groups[0], WorkerGroup) else groups[0]
        if not isinstance(first, dict):
            return data
        if first.get("replicas", number) != number:
            field = "workers" if isinstance(data["workers"], int) else "workers[0].replicas"
            raise ValueError(
                f"replicas is {number}, but {field} is {first['replicas']!r}; both set the number of workers of "
                "the first group: remove one"
            )
        return {**rest, "workers": [{**first, "replicas": number}, *groups[1:]]}

    @model_validator(mode="after")
    def _groups_differ(self) -> ClusterSpec:
        names = [group.name for group in self.workers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two worker groups have the name {name!r}; rename one")
        if {"default", "worker"} <= set(names):
            raise ValueError("the members of groups 'default' and 'worker' would have the same names; rename one group")
        return self

    def namespace_for(self, name: str, given: str | None) -> str | None:
        """Kubernetes: the namespace of a cluster of that name: from the spec, else `given`, else the cluster's name if
        the namespace is to be created, else None."""
        return self.namespace.name or given or (name if self.namespace.create else None)

    def group(self, name: str | None) -> WorkerGroup | None:
        """The group of that name, or the first one for None."""
        groups = {group.name: group for group in self.workers}
        return self.workers[0] if name is None and self.workers else groups.get(name or "")

    def with_replicas(self, group: str, replicas: int) -> ClusterSpec:
        """A copy with another number of workers in one group."""
        data = self.model_dump()
        for entry in data["workers"]:
            if entry["name"] == group:
                entry["replicas"] = replicas
        return ClusterSpec.model_validate(data)
