"""The arguments of KubeCluster, completed from Dask's configuration and checked before anything is created."""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributed.security import Security

from oars.base.errors import SpecError, UsageError
from oars.base.text import suggest
from oars.client.pod_route import Patience
from oars.compat.dask_kubernetes import checks, config, templates
from oars.compat.dask_kubernetes.classic.deployment import Plan
from oars.compat.dask_kubernetes.classic.source import configured_template, read_template
from oars.compat.dask_kubernetes.cluster_manager import OPTIONS
from oars.compat.dask_kubernetes.common.auth import ClusterAuth
from oars.compat.dask_kubernetes.common.model import Model
from oars.compat.dask_kubernetes.templates import Settings

MODES = ("remote", "local")
FURTHER = {**OPTIONS, "shutdown_scheduler": True}  # keyword arguments that are not in the signature


@dataclass(frozen=True)
class Arguments:
    """Complete and checked. `more`: see FURTHER."""

    pod_template: Model
    scheduler_pod_template: Model | None
    name: str
    namespace: str | None
    n_workers: int
    host: str | None  # None: that of the interface
    port: int
    env: Mapping[str, Any]
    auth: Any
    idle_timeout: str | None
    deploy_mode: str
    interface: str | None
    protocol: str
    dashboard_address: str | None
    security: Security
    patience: Patience
    apply_default_affinity: str
    more: Mapping[str, Any]

    def plan(self, namespace: str) -> Plan:
        """The pods and what belongs to them. Raises SpecError for what cannot be."""
        settings = Settings(
            name=self.name,
            namespace=namespace,
            user=templates.escape(user_name()),
            env=self.env,
            protocol=self.protocol,
            idle_timeout=self.idle_timeout,
            affinity=self.apply_default_affinity,
            orphaned=checks.seconds("kubernetes.orphan-timeout", config.get("orphan-timeout") or 0)
            if self.more["shutdown_on_close"]
            else 0.0,
        )
        is_remote = self.deploy_mode == "remote"
        scheduler = templates.scheduler_pod(self.scheduler_pod_template, self.pod_template, settings)
        return Plan(
            settings=settings,
            template=self.pod_template,
            scheduler=scheduler if is_remote else None,
            workers=self.n_workers,
            patience=self.patience,
            service=config.get("scheduler-service-template"),
            budget=config.get("scheduler-pdb-template"),
            service_type=config.get("scheduler-service-type"),
        )


def resolve(given: Mapping[str, Any], more: Mapping[str, Any]) -> Arguments:
    """`given`: the arguments of the signature, `more`: other keyword arguments."""
    checks.keywords(more, [*given, *FURTHER])
    if not more.get("shutdown_scheduler", True):
        message = "shutdown_scheduler=False: the scheduler ends with its cluster."
        raise UsageError(message, "For a cluster that stays use oars.compat.dask_kubernetes.operator.")
    template = read_template(given["pod_template"], "pod_template") or configured_template("worker")
    if template is None:
        raise SpecError(
            "There is no template for the worker pods.",
            "Pass pod_template, or set kubernetes.worker-template-path in Dask's configuration.",
        )
    security = _checked_security(given["security"])
    pattern = given["name"] or config.get("worker-name") or config.get("name")
    wait = config.get("scheduler-service-wait-timeout", given["scheduler_service_wait_timeout"])
    attempts = config.get(
        "scheduler-service-name-resolution-retries", given["scheduler_service_name_resolution_retries"]
    )
    interface = _text_or_none("interface", config.get("interface", given["interface"]))
    arguments = Arguments(
        pod_template=template,
        scheduler_pod_template=read_template(given["scheduler_pod_template"], "scheduler_pod_template")
        or configured_template("scheduler"),
        name=templates.cluster_name(str(pattern), user_name(), str(uuid.uuid4())[:10], os.environ),
        namespace=checks.namespace(config.get("namespace", given["namespace"])),
        n_workers=capped(checked_count(config.get("count.start", given["n_workers"]))),
        host=_host(given["host"], interface),
        port=checks.port("port", config.get("port", given["port"])),
        env=checks.mapping("env", config.get("env", given["env"])),
        auth=ClusterAuth.methods(given["auth"]),
        idle_timeout=_idle_timeout(config.get("idle-timeout", given["idle_timeout"])),
        deploy_mode=_checked_mode(config.get("deploy-mode", given["deploy_mode"])),
        interface=interface,
        protocol=_protocol(config.get("protocol", given["protocol"]), security),
        dashboard_address=_text_or_none(
            "dashboard_address", config.get("dashboard_address", given["dashboard_address"])
        ),
        security=security,
        patience=Patience(
            checks.seconds("scheduler_service_wait_timeout", wait),
            checks.count("scheduler_service_name_resolution_retries", attempts),
        ),
        apply_default_affinity=given["apply_default_affinity"],
        more={**FURTHER, **more},
    )
    arguments.plan(arguments.namespace or "default").worker()  # for its errors
    return arguments


def checked_count(count: Any) -> int:
    return checks.count("n_workers", count, "a number of workers")


def capped(count: int) -> int:
    maximum = config.get("count.max")
    return count if maximum is None else min(count, checks.count("kubernetes.count.max", maximum))


def _idle_timeout(value: Any) -> str | None:
    if value is None:
        return None
    checks.seconds("idle_timeout", value)
    return str(value)


def _text_or_none(name: str, value: Any) -> str | None:
    return None if value is None else checks.text(name, value)


def _host(given: Any, interface: str | None) -> str | None:
    if interface is None:
        return checks.text("host", config.get("host", given))
    if given:
        message = f"host={given!r} and interface={interface!r} both say where the scheduler listens."
        raise UsageError(message, "Pass one of them.")
    return None


def _checked_security(security: Any) -> Security:
    if security is not None and not isinstance(security, Security):
        raise UsageError(f"security: {security!r} is not a distributed.security.Security.", "Pass such an object.")
    return security or Security()


def _checked_mode(mode: str) -> str:
    if mode not in MODES:
        raise UsageError(f"There is no deploy_mode={mode!r}.{suggest(str(mode), MODES)}", "Use 'remote' or 'local'.")
    return mode


def _protocol(protocol: Any, security: Security) -> str:
    name = checks.protocol(protocol)
    return "tls" if name == "tcp" and security.require_encryption else name


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "user"
