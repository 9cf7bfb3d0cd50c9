"""Names and labels of a cluster's objects. Deterministic: objects can be found by them alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.model import HEAD

Object = dict[str, Any]
KindAndName = tuple[str, str]  # kind, name

CLUSTER = "oars.dev/cluster"
GROUP = "oars.dev/group"  # the worker group's name, or head; no worker group may be called head
REVISION = "oars.dev/revision"  # of a worker group's template; another one means another Deployment
HEAD_EPOCH = "oars.dev/head-epoch"  # annotation of workers: the head they were started for; none: the first
APPLIED = "oars.dev/applied"  # annotation: fingerprint of what was applied, so that nothing is applied twice
ROLLOUT = "deployment.kubernetes.io/revision"  # annotation of a Deployment: number of its rollouts
FILES = "oars.dev/files"  # annotation of pods that mount files of the engine: hash of their content
LEAVING = "oars.dev/leaving"  # annotation of a drained pod whose Deployment has been scaled down
# Annotation of the Lease: seconds that the cluster outlives its owner; helper.py reads it.
ORPHANED = "oars.dev/orphaned"
# Annotation of a resource: workers of this generation may be removed with their data.
FORCE = "oars.dev/force-generation"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

# Labels of the operator's pods. A cluster's NetworkPolicy admits pods that have them.
OPERATOR = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/component": "operator"}
OPERATOR_WATCHES = "oars.dev/operator-watches"  # annotation of its Lease: comma-separated namespaces; none: all
OPERATOR_HOME = "oars.dev/operator-namespace"  # annotation of the CRD: namespace of the operator's Lease

HELPER = "oars"  # the sidecar of the head
HELPER_PORT = 7070


def head(cluster: str) -> str:
    """Name of the head's Deployment, its Service (and so its DNS name) and its PodDisruptionBudget."""
    return f"{cluster}-head"


def workers(cluster: str, group: str) -> str:
    """Name of a worker group's Deployment."""
    return f"{cluster}-{'worker' if group == 'default' else group}"


def root(cluster: str) -> str:
    """Name of the ConfigMap with the members' files, which in direct mode is the root object. The Secret, the Lease,
    the ServiceAccount and the NetworkPolicy have the same name. The suffix avoids conflicts with objects of an
    application that is called like the cluster."""
    return f"{cluster}-oars"


def labels(cluster: str, engine: str) -> dict[str, str]:
    """Labels of every object of a cluster."""
    return {
        "app.kubernetes.io/name": engine,
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": "oars",
        CLUSTER: cluster,
    }


def pod_labels(cluster: str, group: str = HEAD) -> dict[str, str]:
    """Labels by which Deployments, the Service and Oars select pods: the head's, or those of a worker group."""
    return {CLUSTER: cluster, GROUP: group}


def kind_and_name(obj: Mapping[str, Any]) -> KindAndName:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def selector(wanted: Mapping[str, str]) -> str:
    """A label selector as a query parameter."""
    return ",".join(f"{name}={value}" for name, value in wanted.items())
