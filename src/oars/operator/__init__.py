"""The operator: the CRD, its RBAC roles, its installation, and the process that reconciles ComputeClusters."""

from __future__ import annotations

from dataclasses import dataclass

from oars.places.kube import names

NAMESPACE = names.DEFAULT_OPERATOR_NAMESPACE
NAME = names.OPERATOR_NAME
METRICS_PORT = 8080
HEALTH_PORT = 8081
MARS_JOB = "marsjob"  # in `--adopt marsjob`
ADOPTABLE = (MARS_JOB,)


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
    adopt: tuple[str, ...] = ()  # kinds of other projects to serve, too
    trust_authors: bool = False  # accept restricted fields also if no admission policy checks their authors
