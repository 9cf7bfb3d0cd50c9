"""ClusterSpec: the desired state of a cluster, for all engines and places."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
OWN_DOMAIN = "oars.dev"
KIND = "ComputeCluster"
MAX_WORKERS = 10_000
MAX_SPILL_PATHS = 16
DEFAULT_CPU = 1.0
DISK, MEMORY = "disk", "memory"  # media of a spill volume; any other is a storage class
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_STORAGE_CLASS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SPILL_PATH = re.compile(r"/[^:,$\s\0]*[^/:,$\s\0]")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Memory = Annotated[int, BeforeValidator(resources.memory)]
Cache = Annotated[int | str, BeforeValidator(resources.cache)]
Cpu = Annotated[float, BeforeValidator(resources.cpu)]
Duration = Annotated[float, BeforeValidator(resources.duration)]
Limit = Annotated[float, BeforeValidator(resources.limit)]
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


def check_labels(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(text):
            raise ValueError(f"{name}={text} is not a label; use at most 63 letters, digits, '-', '_' and '.'")
    return value


def _check_own(names: Iterable[str]) -> None:
    if found := next((name for name in names if name.partition("/")[0].endswith(OWN_DOMAIN)), None):
        raise ValueError(f"{found} is reserved for Oars; use another prefix than {OWN_DOMAIN}")


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

    cpu: Cpu | None = Field(
        default=None, description="Processors of the head. Default: 1, of which its pod requests 250m on Kubernetes."
    )
    memory: Memory | None = Field(default=None, description="Memory of the head.")
    burst: Burst = False
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the head.")
    eviction: Literal["block", "allow"] = Field(
        default="block",
        description="Kubernetes: whether the head may be evicted, as when its node is drained. Without the head the "
        "cluster loses all data.",
    )
    update: Literal["Recreate", "OnDelete"] = Field(
        default="Recreate",
        description="Kubernetes: when a change that needs another head is made: at once, or when the head ends or is "
        "deleted. Workers wait with it. Another head starts without the data of the one before.",
    )
    pod: PodTemplate = Field(default_factory=dict)

    @property
    def processors(self) -> float:
        """`cpu`, or its default."""
        return DEFAULT_CPU if self.cpu is None else self.cpu


class Spill(Part):
    """Where a worker writes data that does not fit in its memory."""

    paths: tuple[str, ...] = Field(
        default=(),
        description="Directories of the machine, on Kubernetes of the node. Each worker has a directory of its own in "
        "them. Dask and Ray use one of them per worker, in turn; Mars uses all. Default: a temporary directory, on "
        "Kubernetes a volume of the pod.",
    )
    size: Memory | None = Field(
        default=None, description="The most that one worker may write. Kubernetes: the size of the volume."
    )
    medium: str = Field(
        default=DISK,
        description="Kubernetes: the volume if no paths are given: disk (of the node), memory (of the pod), or a "
        "storage class, from which each pod claims a volume of its own.",
    )

    @field_validator("paths", mode="before")
    @classmethod
    def _one_path(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("paths")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_SPILL_PATHS:
            raise ValueError(f"there are {len(value)} paths; the most is {MAX_SPILL_PATHS}")
        for path in value:
            if not _SPILL_PATH.fullmatch(path) or ".." in path.split("/"):
                raise ValueError(f"{path!r} is not an absolute path without blanks, ':', ',', '$' and '..'")
            if value.count(path) > 1:
                raise ValueError(f"{path!r} is there twice; remove one")
        return value

    @field_validator("medium")
    @classmethod
    def _medium(cls, value: str) -> str:
        if not _STORAGE_CLASS.fullmatch(value):
            raise ValueError(f"{value!r} is neither disk nor memory nor the name of a storage class")
        return value

    @model_validator(mode="after")
    def _volume(self) -> Spill:
        if self.paths and self.medium != DISK:
            raise ValueError(f"medium is {self.medium}, which is for a volume, but paths are given; remove one of them")
        if self.medium != DISK and self.size is None:
            raise ValueError(f"a volume of medium {self.medium} needs a size; set size")
        return self


class WorkerGroup(Part):
    """A group of equal workers."""

    name: str = Field(default="default", description="Name of the group, unique in the cluster.")
    replicas: int = Field(default=1, ge=0, le=MAX_WORKERS, strict=True, description="Number of workers.")
    min: int | None = Field(
        default=None, ge=0, le=MAX_WORKERS, strict=True,
        description="Autoscaling: the least number of workers. Default: 0.",
    )  # fmt: skip
    max: int | None = Field(
        default=None, ge=1, le=MAX_WORKERS, strict=True,
        description="Autoscaling: the largest number of workers. The group follows its load; replicas is the number to "
        "start with. Default: no autoscaling.",
    )  # fmt: skip
    adapted: int = Field(
        default=0, ge=0, strict=True,
        description="Autoscaling: `oars adapt` counts its calls here. Another number turns autoscaling on again after "
        "replicas was set by hand.",
    )  # fmt: skip
    priority: int = Field(
        default=0, ge=-1000, le=1000, strict=True, description="Autoscaling prefers groups with a higher priority."
    )
    cpu: Cpu | None = Field(
        default=None, description="Processors of each worker. Default: 1, of which its pod requests 500m on Kubernetes."
    )
    memory: Memory | None = Field(default=None, description="Memory of each worker.")
    cache: Cache | None = Field(
        default=None,
        description="The part of the memory that holds results. What does not fit is written to the spill directory. "
        "Dask: the size at which it starts to spill; Ray: the object store; Mars: shared memory.",
    )
    spill: Spill | None = Field(
        default=None, description="Where results go that do not fit in the cache. Default: a temporary directory."
    )
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

    @property
    def processors(self) -> float:
        """`cpu`, or its default."""
        return DEFAULT_CPU if self.cpu is None else self.cpu

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value == "head":
            raise ValueError("'head' is reserved for the head; rename the group")
        return check_name(value, "group name")

    @model_validator(mode="after")
    def _bounds(self) -> WorkerGroup:
        if self.min is not None and self.max is None:
            raise ValueError("min is only for groups with autoscaling; set max too")
        if self.max is not None and (self.min or 0) > self.max:
            raise ValueError(f"min is {self.min}, but max is {self.max}")
        return self

    @model_validator(mode="after")
    def _parts_of_memory(self) -> WorkerGroup:
        in_memory = self.spill.size if self.spill and self.spill.medium == MEMORY else None
        for name, size in (("cache", self.cache), ("spill.size", in_memory)):
            if self.memory is not None and isinstance(size, int) and size >= self.memory:
                sizes = resources.show_memory(size), resources.show_memory(self.memory)
                raise ValueError(f"{name} is {sizes[0]}, but it is a part of memory, which is {sizes[1]}")
        return self

    @field_validator("resources")
    @classmethod
    def _amounts(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or amount < 0:
                raise ValueError(f"resource {name!r}: {amount} must be a name with a number of at least 0")
        return value


class Autoscaling(Part):
    """Autoscaling of the groups that have a `max`."""

    enabled: bool = Field(default=True, description="False: keep the number of workers that `replicas` says.")
    scale_down_delay: Duration = Field(
        default=60.0, description="A group keeps the most workers that it needed within this time."
    )
    horizon: Duration = Field(
        default=5.0,
        description="Work of known duration is to be done within this time, short work sooner. A longer one needs "
        "fewer workers.",
    )
    patience: Duration = Field(
        default=120.0,
        description="Workers that cannot start for this long block their group: it keeps one of them as a probe, and "
        "other groups serve its work. Five times as long while a node autoscaler is adding nodes.",
    )


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
    """Kubernetes: access to the head."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the head's Service."
    )
    host: str | None = Field(default=None, description="Host name of an Ingress for the dashboard.")
    ingress_class: str | None = Field(default=None, description="Class of the Ingress.")
    tls_secret: str | None = Field(default=None, description="Secret with the certificate of the Ingress.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the Service and the Ingress.")
    clients: dict[str, str] = Field(
        default_factory=dict,
        description="Labels that a pod of the namespace needs to reach the head. Default: none, so all of them reach "
        "it. Drivers of jobs need none. Pods of other namespaces do not reach it, unless the Service is external.",
    )
    metrics: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the namespaces whose pods may read the metrics of all members, such as that of "
        "Prometheus. Default: none. Dask serves metrics on the ports of its pages, the dashboard included.",
    )

    @field_validator("clients", "metrics")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        return check_labels(value)


class Lifetime(Part):
    """When the cluster ends by itself. `oars ls` announces it."""

    idle: Limit = Field(
        default=0.0,
        description="How long the cluster may have no work, as the engine reports it. At least 1 s; 0: no limit.",
    )
    no_client: Limit = Field(
        default=0.0,
        description="How long the cluster may have no client: since the last one left or, if none has come, since the "
        "head started. At least 1 s; 0: no limit.",
    )
    max: Limit = Field(
        default=0.0, description="How long the cluster may exist, whatever it does. At least 1 s; 0: no limit."
    )
    orphaned: Duration = Field(
        default=120.0,
        description="Kubernetes: how long the cluster outlives the program that it is tied to. At least 10 s; 0: until "
        "it is deleted.",
    )


class ClusterSpec(Part):
    """The desired state of a cluster."""

    engine: str = Field(description="Name of a built-in or an installed engine, such as dask.")
    place: str = Field(default="local", description="Where the cluster runs: local or kubernetes.")
    image: str | None = Field(default=None, description="Kubernetes: the image of all pods.")
    environment: Environment = Field(default_factory=Environment)
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of every member.")
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Kubernetes: labels of all objects of the cluster, pods included, besides those of Oars.",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict,
        description="Kubernetes: annotations of all objects of the cluster, pods included. Those of `expose` and `pod` "
        "override them.",
    )
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
    autoscale: Autoscaling = Field(default_factory=Autoscaling)
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

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        _check_own(value)
        return check_labels(value)

    @field_validator("annotations")
    @classmethod
    def _annotations(cls, value: dict[str, str]) -> dict[str, str]:
        _check_own(value)
        for name in value:
            if not _LABEL_NAME.fullmatch(name):
                raise ValueError(f"{name} is not the name of an annotation")
        return value

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

    def with_group(self, group: str, **changes: int | None) -> ClusterSpec:
        """A copy with other numbers (replicas, min, max, adapted) in one group."""
        data = self.model_dump()
        for entry in data["workers"]:
            if entry["name"] == group:
                entry |= changes
        return ClusterSpec.model_validate(data)

    def with_autoscaling(self, **changes: Any) -> ClusterSpec:
        data = self.model_dump()
        data["autoscale"] |= changes
        return ClusterSpec.model_validate(data)

    @property
    def autoscaled(self) -> tuple[str, ...]:
        """Names of the groups whose number of workers follows the load."""
        return tuple(group.name for group in self.workers if group.max is not None) if self.autoscale.enabled else ()
