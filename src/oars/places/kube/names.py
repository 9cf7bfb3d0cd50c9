"""Names and labels of a cluster's objects. Deterministic: whoever looks finds them by these alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.model import HEAD

Object = dict[str, Any]
KindAndName = tuple[str, str]  # kind, name

CLUSTER = "oars.dev/cluster"
GROUP = "oars.dev/group"  # a worker group's name; no such group may be called head
REVISION = "oars.dev/revision"  # of a worker group's template; another one means another Deployment
HEAD_EPOCH = "oars.dev/head"  # annotation of workers: the head's incarnation that they were started for
APPLIED = "oars.dev/applied"  # annotation: what we asked for, in short, so that nothing is written twice
ROLLOUT = "deployment.kubernetes.io/revision"  # annotation of a Deployment: how many descriptions it has had
FILES = "oars.dev/files"  # annotation of pods that mount files of the engine: their content, in short
GOING = "oars.dev/going"  # annotation of a drained pod that shall be the next to go
ORPHANED = (
    "oars.dev/orphaned"  # annotation of the Lease: seconds that the cluster outlives its owner; helper.py reads it
)
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

# On the operator's pods; also what lets them through a cluster's NetworkPolicy.
OPERATOR = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/component": "operator"}
OPERATOR_WATCHES = "oars.dev/operator-watches"  # annotation of that Lease: namespaces with commas between; none: all
OPERATOR_HOME = "oars.dev/operator-namespace"  # annotation of the definition: where the operator's Lease is

HELPER = "oars"  # our container beside the head
HELPER_PORT = 7070


def head(cluster: str) -> str:
    """The head's Deployment, its Service (and so its DNS name) and its PodDisruptionBudget."""
    return f"{cluster}-head"


def workers(cluster: str, group: str) -> str:
    """A worker group's Deployment."""
    return f"{cluster}-{'worker' if group == 'default' else group}"


def root(cluster: str) -> str:
    """The ConfigMap with the files of the members; without an operator all objects hang on it. The Secret, the Lease,
    the pods' account and the policy of who reaches them have the same name: one that an application might have of its
    own, as the cluster's own name is, would be no name for them."""
    return f"{cluster}-oars"


def labels(cluster: str, engine: str) -> dict[str, str]:
    """On every object of a cluster."""
    return {
        "app.kubernetes.io/name": engine,
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/managed-by": "oars",
        CLUSTER: cluster,
    }


def pod_labels(cluster: str, group: str = HEAD) -> dict[str, str]:
    """By which Deployments, the Service and we find pods: the head's, or those of a worker group."""
    return {CLUSTER: cluster, GROUP: group}


def kind_and_name(obj: Mapping[str, Any]) -> KindAndName:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def selector(wanted: Mapping[str, str]) -> str:
    """A label selector in the form of a query."""
    return ",".join(f"{name}={value}" for name, value in wanted.items())
