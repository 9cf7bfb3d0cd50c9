"""The arguments of the newer KubeCluster, completed from Dask's configuration and checked."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from oars import engines
from oars.base.errors import SpecError, UsageError
from oars.base.text import suggest
from oars.compat.dask_kubernetes import checks, config
from oars.compat.dask_kubernetes.classic.arguments import user_name
from oars.compat.dask_kubernetes.cluster_manager import OPTIONS
from oars.compat.dask_kubernetes.operator import manifest
from oars.compat.dask_kubernetes.templates import cluster_name
from oars.spec import load
from oars.spec.cluster import ClusterSpec, check_name

# Arguments that only complete a generated DaskCluster.
IN_CUSTOM_SPEC = ("image", "n_workers", "resources", "env", "worker_command", "scheduler_service_type", "jupyter")


class CreateMode(Enum):
    """What to do about a cluster that exists, or does not."""

    CREATE_ONLY = "CREATE_ONLY"
    CREATE_OR_CONNECT = "CREATE_OR_CONNECT"
    CONNECT_ONLY = "CONNECT_ONLY"


@dataclass(frozen=True)
class Arguments:
    """Complete and checked. shutdown_on_close: None if nobody set it."""

    name: str
    spec: ClusterSpec
    namespace: str | None
    image: str | None
    n_workers: int
    resources: Mapping[str, Any]
    env: Any
    worker_command: Any
    create_mode: CreateMode
    shutdown_on_close: bool | None
    idle_timeout: float
    resource_timeout: float
    scheduler_service_type: str
    scheduler_forward_port: int | None
    port_forward_cluster_ip: Any  # False: the port of a ClusterIP Service is not forwarded
    jupyter: bool
    more: Mapping[str, Any]

    def of_cluster(self, spec: ClusterSpec) -> Arguments:
        """With what another description of the cluster says."""
        return replace(
            self,
            spec=spec,
            idle_timeout=spec.lifetime.idle,
            scheduler_service_type=spec.expose.type,
            jupyter=bool(spec.engine_options.get("jupyter")),
            **manifest.worker_arguments(spec),
        )


def resolve(given: Mapping[str, Any], more: Mapping[str, Any]) -> Arguments:
    """`given`: the arguments of the signature, `more`: other keyword arguments."""
    checks.keywords(more, [*given, *OPTIONS])
    forward = config.get("scheduler-forward-port", given["scheduler_forward_port"])
    shared = {key: given[key] for key in ("loop", "asynchronous", "quiet")}
    custom = _manifest(config.get("custom-cluster-spec", given["custom_cluster_spec"]))
    pattern = given["name"] or config.get("worker-name") or config.get("name")
    if custom is not None:
        pattern = _custom_name(custom, given) or pattern
    name = cluster_name(str(pattern), user_name(), str(uuid.uuid4())[:10], os.environ)
    chosen = {key: config.get(key.replace("_", "-"), given[key]) for key in ("image", "env", "worker_command")}
    checks.text("image", chosen["image"])
    if isinstance(chosen["worker_command"], str):
        chosen["worker_command"] = chosen["worker_command"].split()
    resources = _checked_resources(config.get("resources", given["resources"]))
    count = checks.count("n_workers", config.get("count.start", given["n_workers"]), "a number of workers")
    idle = checks.seconds("idle_timeout", config.get("idle-timeout", given["idle_timeout"]) or 0)
    jupyter = bool(given["jupyter"] or config.get("scheduler-jupyter"))
    body = custom or manifest.make_cluster_spec(
        name,
        n_workers=count,
        resources=resources,
        scheduler_service_type=config.get("scheduler-service-type", given["scheduler_service_type"]),
        idle_timeout=int(idle),
        jupyter=jupyter,
        **chosen,
    )
    keeps = config.get("shutdown-on-close") is False
    found = manifest.cluster_spec(body)
    idle = idle or checks.seconds("idleTimeout", body["spec"].get("idleTimeout") or 0)
    spec = load.build({**found, "lifetime": {"idle": idle}}, option_model=engines.option_model).spec
    arguments = Arguments(
        name=_checked_name(name),
        spec=spec,
        namespace=checks.namespace(config.get("namespace", given["namespace"])),
        n_workers=count,
        resources=resources,
        create_mode=_mode(config.get("create-mode", given["create_mode"])),
        shutdown_on_close=False if given["shutdown_on_close"] is None and keeps else given["shutdown_on_close"],
        idle_timeout=idle,
        resource_timeout=checks.seconds("resource_timeout", config.get("resource-timeout", given["resource_timeout"])),
        scheduler_service_type=spec.expose.type,
        scheduler_forward_port=None if forward is None else checks.port("scheduler_forward_port", forward),
        port_forward_cluster_ip=config.get("port-forward-cluster-ip", given["port_forward_cluster_ip"]),
        jupyter=jupyter,
        more={**more, **shared},
        **chosen,
    )
    return arguments if custom is None else arguments.of_cluster(spec)


def _custom_name(custom: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The name in a custom_cluster_spec. Raises UsageError for arguments that the custom_cluster_spec replaces."""
    name = checks.mapping("custom_cluster_spec.metadata", custom.get("metadata") or {}).get("name")
    replaced = [key for key in IN_CUSTOM_SPEC if given[key] is not None and given[key] is not False]
    if name and given["name"] not in (None, name):
        replaced.insert(0, "name")
    if replaced:
        message = f"{', '.join(replaced)}: no effect together with custom_cluster_spec, which sets this."
        raise UsageError(message, "Change it in the custom_cluster_spec, or leave one of both out.")
    return name


def _manifest(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, str | os.PathLike):
        return dict(checks.mapping("custom_cluster_spec", given)) if given is not None else None
    try:
        found = yaml.safe_load(Path(given).expanduser().read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(
            f"custom_cluster_spec: cannot read {given}: {error}.", "Pass the path of a YAML file."
        ) from error
    if not isinstance(found, dict):
        raise SpecError(f"custom_cluster_spec: {given} is not a DaskCluster.", "Use make_cluster_spec for one.")
    return found


def _checked_resources(resources: Any) -> Mapping[str, Any]:
    if not isinstance(resources, Mapping):
        raise UsageError(f"resources: {resources!r} is not a dict.", "Use {'requests': {…}, 'limits': {…}}.")
    for field, amounts in resources.items():
        if field not in ("limits", "requests") or not isinstance(amounts, Mapping):
            meant = suggest(str(field), ("limits", "requests"))
            raise UsageError(f"resources: {field!r} is wrong.{meant}", "Use {'requests': {…}, 'limits': {…}}.")
    return resources


def _mode(mode: CreateMode | str) -> CreateMode:
    if isinstance(mode, CreateMode):
        return mode
    if not isinstance(mode, str) or mode not in CreateMode.__members__:
        known = list(CreateMode.__members__)
        raise UsageError(f"There is no create_mode={mode!r}.{suggest(str(mode), known)}", f"Use {', '.join(known)}.")
    return CreateMode[mode]


def _checked_name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise SpecError(f"{error}.", "Pass another name.") from error
