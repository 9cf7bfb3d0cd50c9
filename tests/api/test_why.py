"""why, asked of a real control plane: the words that Kubernetes uses today are still those that we understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lab.errors import LabError
from lab.wait import until

from oars.model import Cause
from oars.places.kube.why.explain import Snapshot, causes, refusal

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


def seen(kube: Kube) -> dict[str, Cause]:
    """All causes now, by their reason."""
    snapshot = Snapshot(
        pods=kube.pods(),
        events=kube.api.get(kube.path("events"))["items"],
        deployments=kube.api.get(kube.path("deployments", "apis/apps/v1"))["items"],
        nodes=kube.api.get("/api/v1/nodes")["items"],
        quotas=kube.api.get(kube.path("resourcequotas"))["items"],
    )
    return {cause.reason: cause for cause in causes(snapshot, kube.namespace)}


def said_by_kubernetes(kube: Kube) -> bool:
    """Of two pods that there is no node, and of the third that it was refused."""
    conditions = [part for pod in kube.pods() for part in pod["status"].get("conditions", ())]
    waiting = [part for part in conditions if part.get("reason") == "Unschedulable"]
    deployment = kube.api.get(kube.path("deployments/demo-worker", "apis/apps/v1"))
    refused = [part for part in deployment["status"].get("conditions", ()) if part["type"] == "ReplicaFailure"]
    return len(waiting) == 2 and bool(refused)


def both(told: dict[str, Cause]) -> dict[str, Cause] | None:
    """Once two pods were made and one was refused."""
    refused = told.get("QuotaExceeded")
    return told if refused and "(1 of 3)" in refused.message and "Unschedulable" in told else None


def test_a_full_quota_and_no_node_are_told_within_five_seconds(
    kube_api: Kube, quota: Callable[..., AbstractContextManager[None]]
) -> None:
    with quota(kube_api, {"requests.cpu": "2k"}):
        kube_api.apply(workers(replicas=3, cpu="1k"))
        until("Kubernetes has said both", lambda: said_by_kubernetes(kube_api), 60)
        found = until("both causes are told", lambda: both(seen(kube_api)), 5)
    assert found
    assert "requests.cpu: 1k more asked, 2k of 2k used" in found["QuotaExceeded"].message
    assert "found no node for 1000 cpu" in found["Unschedulable"].message


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("apis/apps/v1/namespaces/{0}/deployments", 'apiGroups: ["apps"], resources: ["deployments"], verbs: ["list"]'),
        ("api/v1/namespaces/{0}/pods/x/log", 'apiGroups: [""], resources: ["pods/log"], verbs: ["get"]'),
    ],
)
def test_a_missing_right_is_told_as_the_rule_to_add(kube_api: Kube, path: str, rule: str) -> None:
    with pytest.raises(LabError) as error:
        kube_api.kubectl("get", "--raw", f"/{path.format(kube_api.namespace)}", "--as=nobody-at-all")
    cause = refusal(403, "Forbidden", str(error.value), {})
    assert cause.reason == "RightMissing" and f"`- {{{rule}}}`" in cause.hint
