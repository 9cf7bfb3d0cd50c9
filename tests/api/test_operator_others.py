"""What others do beside the operator, on a real control plane: labels, objects of the same names, deletion, scaling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from lab.api import ApiError, Object
from lab.faultproxy import FaultProxy
from lab.wait import until
from tests.api.stage import Operator, Stage, resource

from oars.places.kube import names

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]


def label(stage: Stage, pod: str, *words: str) -> None:
    stage.kube.kubectl("label", f"pod/{pod}", *words)


def heals(stage: Stage, name: str) -> None:
    """A worker that goes is missed, and another one is counted."""
    lost = sorted(stage.workers(name))[0]
    stage.kube.kubectl("delete", f"pod/{lost}", "--grace-period=0", "--force")
    stage.until(name, "has lost a worker", lambda: lost not in stage.workers(name))
    stage.edit(name, {"replicas": 4})
    assert stage.await_ready(name)["ready"] == "4/4"


# labels


def test_pod_with_wrong_labels_is_ignored(stage: Stage, operators: Operators) -> None:
    operator = operators()
    for name in ("demo", "other"):
        stage.create(resource(name))
    for name in ("demo", "other"):
        stage.await_ready(name)
    bare, odd, moved = sorted(stage.workers("demo"))
    label(stage, bare, f"{names.GROUP}-")
    label(stage, odd, f"{names.GROUP}=boss", "--overwrite")
    label(stage, moved, f"{names.CLUSTER}=elsewhere", "--overwrite")
    stage.until("demo", "has others instead", lambda: len(stage.workers("demo") - {bare, odd, moved}) == 3)
    assert stage.await_ready("demo")["ready"] == "3/3"
    heals(stage, "other")
    heals(stage, "demo")
    assert operator.stop() == 128 + 15
    assert not operator.says("Traceback")


# what keeps Deployments from their pods


def test_head_without_a_replicaset_is_explained_until_it_has_one(
    stage: Stage, operators: Operators, quota: Callable[..., AbstractContextManager[None]]
) -> None:
    """Only an event tells of it, and only of the Deployment."""
    operators()
    with quota(stage.kube, {"count/replicasets.apps": "0"}):
        stage.create(resource("demo"))

        def explained() -> bool:
            return bool(stage.get("demo").get("status", {}).get("reason") == "QuotaExceeded")

        stage.until("demo", "is explained", explained)
        message = stage.get("demo")["status"]["message"]
        assert message.startswith("The head cannot be created: quota") and "count/replicasets.apps" in message
    assert stage.await_ready("demo", 120)["ready"] == "3/3"


# names


def foreign(stage: Stage, path: str, version: str, kind: str, name: str, **body: Any) -> Callable[[], Object]:
    """Make somebody else's object; returns how to look at what is theirs of it."""
    api, where = "v1" if version == "api/v1" else version.removeprefix("apis/"), stage.kube.path(path, version)
    metadata = {"name": name, "labels": {"app": "theirs"}}
    stage.kube.api.create(where, {"apiVersion": api, "kind": kind, "metadata": metadata, **body})

    def look() -> Object:
        found = stage.kube.api.get(f"{where}/{name}")
        kept = {key: value for key, value in found.items() if key in ("spec", "data")}
        return {**kept, "uid": found["metadata"]["uid"], "labels": found["metadata"]["labels"],
                "owners": found["metadata"].get("ownerReferences")}  # fmt: skip

    return look


SERVICE = {"spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}}}
POD = {"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
DEPLOYMENT = {"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "theirs"}}, "template": POD}}


@pytest.mark.parametrize(
    ("path", "version", "kind", "name", "body"),
    [
        ("services", "api/v1", "Service", "demo-head", SERVICE),
        ("serviceaccounts", "api/v1", "ServiceAccount", "demo-oars", {}),
        ("deployments", "apis/apps/v1", "Deployment", "demo-worker", DEPLOYMENT),
    ],
)
def test_foreign_objects_are_reported_and_left_alone(  # noqa: PLR0913 (a table)
    path: str, version: str, kind: str, name: str, body: Object, stage: Stage, operators: Operators
) -> None:
    operator = operators()
    look = foreign(stage, path, version, kind, name, **body)
    before = look()
    stage.create(resource("demo"))
    words = f"A {kind} {name} that does not belong to this cluster exists in namespace {stage.kube.namespace}."

    def told() -> bool:
        conditions = (stage.get("demo").get("status") or {}).get("conditions") or ()
        return any(words in condition["message"] and condition["status"] == "False" for condition in conditions)

    stage.until("demo", "the status says who owns the name", told)
    assert stage.get("demo")["status"]["reason"] == "NameTaken"
    assert look() == before
    stage.kube.api.delete(f"{stage.kube.path(path, version)}/{name}")
    stage.await_ready("demo")
    assert look()["owners"][0]["name"] == "demo"
    assert not operator.says("Traceback")


def test_cluster_may_have_the_name_of_the_default_service_account(stage: Stage, operators: Operators) -> None:
    operators()
    account = stage.kube.path("serviceaccounts/default")
    until("the namespace has its account", lambda: stage.kube.api.exists(account))
    before = stage.kube.api.get(account)["metadata"]["resourceVersion"]
    stage.create(resource("default"))
    stage.await_ready("default")
    stage.delete("default")
    stage.kube.api.request(
        "DELETE", stage.kube.path("pods") + f"?labelSelector={names.CLUSTER}%3Ddefault&gracePeriodSeconds=0"
    )
    until("the cluster is gone", lambda: not stage.left("default"), 150)
    assert stage.kube.api.get(account)["metadata"]["resourceVersion"] == before


def test_foreign_ingress_is_not_deleted(stage: Stage, operators: Operators) -> None:
    operators()
    backend = {"service": {"name": "theirs", "port": {"number": 80}}}
    look = foreign(
        stage, "ingresses", "apis/networking.k8s.io/v1", "Ingress", "demo-head", spec={"defaultBackend": backend}
    )
    before = look()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.edit("demo", {"head": {"env": {"A": "b"}}})
    stage.await_ready("demo")
    assert look() == before


# deletion


def secret(stage: Stage) -> Object:
    try:
        found: Object = stage.kube.api.get(stage.kube.path("secrets/demo-oars"))["metadata"]
        return found
    except ApiError:
        return {"uid": "", "ownerReferences": [{"uid": ""}]}


def test_cluster_with_a_reused_name_gets_new_secrets(stage: Stage, operators: Operators) -> None:
    """Those of the first one go when the garbage collector comes to them."""
    operators()
    first = stage.create(resource("demo", engine="dask", image="i:1"))
    stage.until("demo", "has a Secret", lambda: secret(stage)["uid"])
    assert secret(stage)["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
    old = secret(stage)["uid"]
    stage.delete("demo")
    again = stage.create(resource("demo", engine="dask", image="i:1"))
    uid = again["metadata"]["uid"]
    stage.until("demo", "has another Secret", lambda: secret(stage)["ownerReferences"][0]["uid"] == uid)
    assert secret(stage)["uid"] != old
    until("nothing of the first is left", lambda: owners(stage, "demo") == {uid}, 150)
    assert secret(stage)["ownerReferences"][0]["uid"] == uid


def owners(stage: Stage, name: str) -> set[str]:
    return {each["metadata"]["ownerReferences"][0]["uid"] for each in stage.deployments(name).values()}


def test_foreign_secret_is_reported(stage: Stage, operators: Operators) -> None:
    operators()
    look = foreign(stage, "secrets", "api/v1", "Secret", "demo-oars", data={"password": "bWluZQ=="})
    before = look()
    stage.create(resource("demo", engine="dask", image="i:1"))

    def told() -> bool:
        return "A Secret demo-oars that does not belong to" in (stage.get("demo").get("status") or {}).get(
            "message", ""
        )

    stage.until("demo", "the status says so", told)
    assert look() == before


def test_foreground_deletion_waits_for_owned_objects(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    held = stage.kube.path("networkpolicies/demo-oars", "apis/networking.k8s.io/v1")
    stage.kube.api.patch(held, {"metadata": {"finalizers": ["oars.dev/held"]}})
    stage.kube.kubectl("delete", "computecluster/demo", "--wait=false", "--cascade=foreground")
    stage.kube.api.request(
        "DELETE", stage.kube.path("pods") + f"?labelSelector={names.CLUSTER}%3Ddemo&gracePeriodSeconds=0"
    )
    until("the rest is gone", lambda: stage.left("demo") == ["networkpolicies/demo-oars"], 150)
    assert stage.get("demo")["metadata"]["deletionTimestamp"], "something is left, so it is"
    stage.kube.api.patch(held, {"metadata": {"finalizers": None}})
    clusters = stage.kube.path("computeclusters/demo", "apis/oars.dev/v1alpha1")
    until("it is gone", lambda: not stage.kube.api.exists(clusters), 150)
    assert stage.left("demo") == []


# scaling


def test_autoscaler_can_scale_the_cluster(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.await_guarded("demo")
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    target = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeCluster", "name": "demo"}
    spec = {"scaleTargetRef": target, "minReplicas": 4, "maxReplicas": 6, "metrics": [metric]}
    scalers = stage.kube.path("horizontalpodautoscalers", "apis/autoscaling/v2")
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "demo"}}
    stage.kube.api.create(scalers, {**body, "spec": spec})

    def conditions() -> dict[str, str]:
        found = stage.kube.api.get(f"{scalers}/demo").get("status") or {}
        return {each["type"]: each["status"] for each in found.get("conditions") or ()}

    stage.until("demo", "is found by the autoscaler", lambda: conditions().get("AbleToScale") == "True", 90)
    stage.until("demo", "has the fewest it may have", lambda: len(stage.workers("demo")) == 4, 60)
    assert stage.await_ready("demo")["ready"] == "4/4"
