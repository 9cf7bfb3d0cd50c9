"""JobSpec: a program that runs once on a cluster, for all engines and places."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from oars.spec.cluster import ClusterSpec, Cpu, Duration, Memory, Part, PodTemplate, check_name
from oars.spec.cron import find_zone, parse_cron

JOB_KIND = "ComputeJob"
MAX_SCHEDULE_NAME = 38  # "-<minutes since 1970>" is appended for each run
MAX_NAME = 48  # "-<attempt>" is appended for the attempt's cluster
MAX_RETRIES = 1000
MAX_ARCHIVE = 8 * 2**20  # bytes of packed files on Kubernetes, where ConfigMaps hold them
MAX_LOG = 2**30  # bytes of an attempt's kept output
_CODES = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_job_name(value: str) -> str:
    check_name(value, "job name")
    if len(value) > MAX_NAME:
        raise ValueError(f"{value!r} is not a valid job name; use at most {MAX_NAME} characters")
    return value


def parse_codes(text: str) -> tuple[int, int]:
    """'1' → (1, 1), '128-255' → (128, 255)."""
    match = _CODES.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= 255:
        raise ValueError(f"{text!r} is not an exit code; write it like 1 or 128-255")
    return first, last


def _codes(value: object) -> object:
    """Exit codes as text: files have numbers and ranges such as 128-255."""
    if not isinstance(value, list | tuple):
        return value
    texts = [str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in value]
    for text in texts:
        if isinstance(text, str):
            parse_codes(text)
    return texts


Codes = Annotated[tuple[str, ...], BeforeValidator(_codes)]


def check_variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of an environment variable")
    return value


class WorkingDir(Part):
    """The files that the driver finds in its working directory. `oars submit` fills it in."""

    archive: str = Field(default="", description="Hash of the uploaded archive: sha256:…; empty: no files.")
    size: int = Field(default=0, ge=0, description="Size of the archive in bytes. Kubernetes: at most 8 MiB.")

    @field_validator("archive")
    @classmethod
    def _hash(cls, value: str) -> str:
        if value and not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
            raise ValueError(f"{value!r} is not the hash of an archive, such as sha256:… with 64 digits")
        return value


class SecretRef(Part):
    """An environment variable with a value that is stored apart from the job."""

    name: str = Field(
        description="Kubernetes: name of the Secret. On this machine: a directory in `secrets` of the state directory."
    )
    key: str = Field(description="Kubernetes: key of the Secret. On this machine: a file of the directory.")
    variable: str = Field(alias="as", description="The environment variable.")

    @field_validator("name", "key")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][-.\w]{0,252}", value, re.ASCII):
            raise ValueError(f"{value!r} is not a name; use letters, digits, '-', '_' and '.'")
        return value

    @field_validator("variable")
    @classmethod
    def _variable(cls, value: str) -> str:
        check_variables({value: ""})
        return value


class DriverSpec(Part):
    """The process of the job's program."""

    cpu: Cpu = Field(default=1.0, description="Kubernetes: processors of the driver.")
    memory: Memory | None = Field(default=None, description="Kubernetes: memory of the driver.")
    pod: PodTemplate = Field(default_factory=dict)


class RetryOn(Part):
    """Which exit codes are worth another attempt."""

    exit_codes: Codes = Field(
        default=(), description="Exit codes that are retried, such as [1, 128-255]. Default: all but 0."
    )
    never: Codes = Field(default=(), description="Exit codes that are never retried.")


class Backoff(Part):
    """The pause before the next attempt. It doubles each time."""

    first: Duration = Field(default=10.0, description="The first pause.")
    most: Duration = Field(default=300.0, description="The longest pause.")


class CleanupAfter(Part):
    """How long what is to be removed stays after the end."""

    succeeded: Duration = Field(default=0.0, description="After success.")
    failed: Duration = Field(default=0.0, description="After a failure or a cancellation.")


class Cleanup(Part):
    """What is removed after the end of the job. An existing cluster (`cluster.name`) is never removed."""

    policy: Literal["all", "running", "none"] = Field(
        default="running",
        description="running: the cluster; all: the cluster and the ended driver's pod or files; none: nothing, the "
        "cluster keeps running. The log stays in every case.",
    )
    after: CleanupAfter = Field(default_factory=CleanupAfter)


class Logs(Part):
    """The kept output of the driver."""

    keep: Memory = Field(
        default=8 * 2**20, le=MAX_LOG,
        description="How much of the end of each attempt's output is kept. Kubernetes: at most 8Mi, or 900 KiB packed.",
    )  # fmt: skip


class Schedule(Part):
    """When the job runs. Each run is a job of its own, named after the schedule and its minute."""

    cron: str = Field(description="Minute, hour, day, month and weekday, such as '0 3 * * *'; or @daily and the like.")
    time_zone: str = Field(default="UTC", description="Time zone of `cron`, such as Europe/Berlin.")
    concurrency: Literal["Allow", "Forbid", "Replace"] = Field(
        default="Forbid",
        description="What happens if a run is due while another one has not ended. Forbid: the new one is missed; "
        "Replace: the other one is cancelled first; Allow: both run.",
    )
    suspend: bool = Field(default=False, description="Start no run. What is due meanwhile does not count as missed.")
    history: int = Field(
        default=3, ge=0, le=100, strict=True,
        description="How many runs that have ended are kept. The newest one stays at least until the next one is due.",
    )  # fmt: skip

    @field_validator("cron")
    @classmethod
    def _cron(cls, value: str) -> str:
        parse_cron(value)
        return value

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        find_zone(value)
        return value


class JobSpec(Part):
    """A program that runs once on a cluster."""

    cluster: ClusterSpec | None = Field(
        default=None,
        description="The cluster that is created for each attempt and removed after it; or `{name: demo}`: an existing "
        "one.",
    )
    cluster_name: str | None = Field(default=None, description="Written as `cluster: {name: demo}`.")
    entrypoint: tuple[str, ...] = Field(description="The command and its arguments; a text is a line for the shell.")
    working_dir: WorkingDir = Field(default_factory=WorkingDir)
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the driver.")
    secrets: tuple[SecretRef, ...] = Field(default=(), description="Secret environment variables of the driver.")
    driver: DriverSpec = Field(default_factory=DriverSpec)
    retries: int = Field(
        default=0, ge=0, le=MAX_RETRIES, strict=True, description="Further attempts after a bad exit of the driver."
    )
    recoveries: int = Field(
        default=3, ge=0, le=MAX_RETRIES, strict=True,
        description="Further attempts after a lost head, a lost driver, an eviction or a lost node.",
    )  # fmt: skip
    retry_on: RetryOn = Field(default_factory=RetryOn)
    backoff: Backoff = Field(default_factory=Backoff)
    deadline: Duration | None = Field(
        default=None,
        description="The job fails after this time over all attempts. Time in Queued and Suspended does not count.",
    )
    attempt_deadline: Duration | None = Field(
        default=None, description="An attempt whose driver runs longer is stopped; it counts as a bad exit."
    )
    start_deadline: Duration | None = Field(
        default=3600.0, description="The job fails if an attempt's driver does not start within this time."
    )
    suspend: bool = Field(default=False, description="Stop the attempt and start none until it is false again.")
    cleanup: Cleanup = Field(default_factory=Cleanup)
    ttl_after_finished: Duration | None = Field(
        default=None, description="The job and its logs are deleted this long after its end. Default: never."
    )
    priority_class: str | None = Field(
        default=None, description="Kubernetes: priority class of the pods of the driver and of the job's own cluster."
    )
    logs: Logs = Field(default_factory=Logs)
    schedule: Schedule | None = Field(
        default=None, description="Run the job again and again. The job itself is then the template of its runs."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_reference(cls, data: object) -> object:
        """Store `cluster: {name: demo}` as cluster_name."""
        cluster = data.get("cluster") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(cluster, dict) or "name" not in cluster:
            return data
        if len(cluster) > 1:
            raise ValueError("cluster.name is for an existing cluster, which has its own spec; remove the other fields")
        return {**{key: value for key, value in data.items() if key != "cluster"}, "cluster_name": cluster["name"]}

    @model_serializer(mode="wrap")
    def _write_reference(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        name = data.pop("clusterName", None) or data.pop("cluster_name", None)
        if name is not None:
            data["cluster"] = {"name": name}
        return data

    @field_validator("entrypoint", mode="before")
    @classmethod
    def _shell_line(cls, value: object) -> object:
        return ("sh", "-c", value) if isinstance(value, str) else value

    @field_validator("entrypoint")
    @classmethod
    def _command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not value[0].strip():
            raise ValueError("the command is missing; write it like [python, train.py]")
        if any("\0" in word for word in value):
            raise ValueError("a command cannot contain NUL characters")
        return value

    @field_validator("cluster_name")
    @classmethod
    def _cluster_name(cls, value: str | None) -> str | None:
        return value if value is None else check_name(value)

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        return check_variables(value)

    @model_validator(mode="after")
    def _one_cluster(self) -> JobSpec:
        if (self.cluster is None) == (self.cluster_name is None):
            raise ValueError(
                "cluster is missing; write `cluster: {engine: dask, workers: 2}` or `cluster: {name: demo}`"
            )
        return self

    @property
    def place(self) -> str | None:
        """Where the cluster runs, as far as the spec says."""
        return self.cluster.place if self.cluster is not None else None
