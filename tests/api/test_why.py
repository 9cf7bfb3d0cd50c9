"""Explanations from a real control plane: Oars still understands the messages of this Kubernetes version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lab.errors import LabError
from lab.wait import until

from oars.model import Cause
from oars.places.kube.why.api_errors import explain_response
from oars.places.kube.why.explain import causes
from oars.places.kube.why.facts import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lab.kube import Kube

LABELS = {"oars.dev/cluster": "demo", "oars.dev/group": "default"}


def workers(replicas: int, cpu: str) -> dict[str, Any]:
    container = {"name": "worker", "image": "example.org/none:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo-worker", "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}},
        },
    }


def current_causes(kube: Kube) -> dict[str, Cause]:
    """All causes by reason."""
    snapshot = Snapshot(
        pods=kube.pods(),
        events=kube.api.get(kube.path("events"))["items"],
        deployments=kube.api.get(kube.path("deployments", "apis/apps/v1"))["items"],
        nodes=kube.api.get("/api/v1/nodes")["items"],
        quotas=kube.api.get(kube.path("resourcequotas"))["items"],
    )
    return {cause.reason: cause for cause in causes(snapshot, kube.namespace)}


def has_reported_both(kube: Kube) -> bool:
    """True once Kubernetes reports two unschedulable pods and a refused third one."""
    conditions = [part for pod in kube.pods() for part in pod["status"].get("conditions", ())]
    waiting = [part for part in conditions if part.get("reason") == "Unschedulable"]
    deployment = kube.api.get(kube.path("deployments/demo-worker", "apis/apps/v1"))
    refused = [part for part in deployment["status"].get("conditions", ()) if part["type"] == "ReplicaFailure"]
    return len(waiting) == 2 and bool(refused)


def both(found: dict[str, Cause]) -> dict[str, Cause] | None:
    """The causes, once both are among them."""
    refused = found.get("QuotaExceeded")
    return found if refused and "(1 of 3)" in refused.message and "Unschedulable" in found else None


def test_exceeded_quota_and_missing_node_are_explained_within_five_seconds(
    kube_api: Kube, quota: Callable[..., AbstractContextManager[None]]
) -> None:
    with quota(kube_api, {"requests.cpu": "2k"}):
        kube_api.apply(workers(replicas=3, cpu="1k"))
        until("Kubernetes reports both", lambda: has_reported_both(kube_api), 60)
        found = until("Oars explains both", lambda: both(current_causes(kube_api)), 5)
    assert found
    assert "requests.cpu: 1k requested, 2k of 2k used" in found["QuotaExceeded"].message
    assert "found no node for 1000 cpu" in found["Unschedulable"].message


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("apis/apps/v1/namespaces/{0}/deployments", 'apiGroups: ["apps"], resources: ["deployments"], verbs: ["list"]'),
        ("api/v1/namespaces/{0}/pods/x/log", 'apiGroups: [""], resources: ["pods/log"], verbs: ["get"]'),
    ],
)
def test_missing_permission_is_explained_with_the_rule_to_add(kube_api: Kube, path: str, rule: str) -> None:
    with pytest.raises(LabError) as error:
        kube_api.kubectl("get", "--raw", f"/{path.format(kube_api.namespace)}", "--as=nobody-at-all")
    cause = explain_response(403, "Forbidden", str(error.value), {})
    assert cause.reason == "RightMissing" and f"`- {{{rule}}}`" in cause.hint
