"""Names and labels of a cluster's objects. Deterministic: whoever looks finds them by these alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.model import Role

Object = dict[str, Any]

CLUSTER = "oars.dev/cluster"
ROLE = "oars.dev/role"
GROUP = "oars.dev/group"
REVISION = "oars.dev/revision"  # of a worker group's template; another one means another Deployment
HEAD_SEEN = "oars.dev/head"  # annotation of workers: the head's incarnation that they were started for
APPLIED = "oars.dev/applied"  # annotation: hash of what we asked for, so that nothing is written twice
GOING = "oars.dev/going"  # annotation of a drained pod that shall be the next to go
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

HELPER = "oars"  # our container beside the head
HELPER_PORT = 7070


def head(cluster: str) -> str:
    """The head's Deployment, its Service (and so its DNS name) and its PodDisruptionBudget."""
    return f"{cluster}-head"


def workers(cluster: str, group: str) -> str:
    """A worker group's Deployment."""
    return f"{cluster}-{'worker' if group == 'default' else group}"


def root(cluster: str) -> str:
    """The ConfigMap with the files of the members; without an operator all objects hang on it. The Secret and the
    Lease have the same name."""
    return f"{cluster}-oars"


def labels(cluster: str, engine: str) -> dict[str, str]:
    """On every object of a cluster."""
    return {
        "app.kubernetes.io/name": engine,
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": "oars",
        CLUSTER: cluster,
    }


def pod_labels(cluster: str, role: Role, group: str) -> dict[str, str]:
    """By which Deployments, the Service and we find pods."""
    return {CLUSTER: cluster, ROLE: role.value, GROUP: group}


def selector(wanted: Mapping[str, str]) -> str:
    """A label selector in the form of a query."""
    return ",".join(f"{name}={value}" for name, value in wanted.items())
