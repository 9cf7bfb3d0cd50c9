"""The operator: the CRD, its rights, its installation, and the loop in the cluster."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "oars-system"  # where it lives unless the installer says otherwise
NAME = "oars-operator"  # of its Deployment, ServiceAccount, Lease and roles
METRICS_PORT = 8080
HEALTH_PORT = 8081


@dataclass(frozen=True)
class RunOptions:
    """What `oars operator run` was told. No namespaces: all; no identity: the host's name."""

    namespaces: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    lease_namespace: str | None = None  # default: the pod's own; outside a cluster, where it was installed
    lease_seconds: float = 15.0  # after which a leader that fell silent is replaced
    metrics_port: int = METRICS_PORT
    health_port: int = HEALTH_PORT
    identity: str = ""
    log_format: str = "text"
