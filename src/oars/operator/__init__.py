"""The operator: the CRD, its RBAC roles, its installation, and the process that reconciles ComputeClusters."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "oars-system"  # default namespace of the operator
NAME = "oars-operator"  # of its Deployment, ServiceAccount, Lease and roles
METRICS_PORT = 8080
HEALTH_PORT = 8081


@dataclass(frozen=True)
class RunOptions:
    """Options of `oars operator run`."""

    namespaces: tuple[str, ...] = ()  # to watch; empty: all
    kubeconfig: str | None = None
    context: str | None = None
    lease_namespace: str | None = None  # default: the pod's own; outside a cluster, that of the installation
    lease_seconds: float = 15.0  # duration of the leader's Lease
    metrics_port: int = METRICS_PORT
    health_port: int = HEALTH_PORT
    identity: str = ""  # default: the host name
    log_format: str = "text"
