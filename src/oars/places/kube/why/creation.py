"""Pods that could not be created: the ReplicaSet was refused a pod, or the Deployment a ReplicaSet. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oars.model import HEAD
from oars.places.kube.names import Object
from oars.places.kube.state.observe import condition
from oars.places.kube.why import admission
from oars.places.kube.why.facts import (
    Finding,
    Severity,
    Snapshot,
    events_of,
    group,
    is_terminating,
    replicas,
    role,
    strip_period,
)

_PREFIX = re.compile(
    r'^(?:\(combined from similar events\): )?(?:Error creating: |Failed to create new replica set "[^"]*": )?'
    r'(?:(?:pods|replicasets\.apps) "[^"]*" is forbidden: )?'
)


def findings(snapshot: Snapshot, namespace: str) -> Iterable[Finding]:
    """One per group. The condition is removed when creation succeeds; events remain for an hour, so they count only
    where there is no condition."""
    groups: set[str] = set()
    for deployment in snapshot.deployments:
        failure = condition(deployment, "ReplicaFailure")
        if failure.get("status") == "True" and group(deployment) not in groups and replicas(deployment):
            groups.add(group(deployment))
            yield _finding(deployment, str(failure.get("message", "")), namespace, snapshot)
    for deployment in snapshot.stalled:
        for event in events_of(snapshot, deployment, "ReplicaSetCreateError")[-1:]:
            yield _finding(deployment, str(event.get("message", "")), namespace, snapshot)


def _finding(deployment: Object, message: str, namespace: str, snapshot: Snapshot) -> Finding:
    found = admission.explain(message, namespace, snapshot) or admission.Explanation(
        "CreationRefused",
        strip_period(_PREFIX.sub("", message)),
        "Change the rejected fields, or contact the administrator of the Kubernetes cluster.",
    )
    subject = "The head"
    if role(deployment) != HEAD:
        # Count the pods: the Deployment's own status is updated later.
        existing = sum(group(pod) == group(deployment) and not is_terminating(pod) for pod in snapshot.pods)
        total = replicas(deployment)
        subject = f"Worker pods of group {group(deployment)} ({total - existing} of {total})"
    return Finding(
        Severity.REFUSED,
        found.reason,
        f"cannot be created: {found.text}",
        found.hint,
        role=role(deployment),
        group=group(deployment),
        subject=subject,
    )
