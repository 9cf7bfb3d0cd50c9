"""The operator and a description that changes: numbers, groups, templates, mistakes, and a head that is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab.api import Object
from lab.faultproxy import FaultProxy
from lab.kube import is_ready
from tests.api.stage import SIMULATED_POD, Operator, Stage, group, quiet_for, resource, sized

from oars.places.kube import names

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]


@pytest.fixture
def running(stage: Stage, operators: Operators) -> Stage:
    """A cluster of 1 + 3 that an operator reconciles."""
    operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    return stage


def test_groups_are_added_and_removed(running: Stage) -> None:
    old = running.workers("demo")
    running.edit("demo", sized(group(), group("big", 2)))
    running.await_ready("demo")
    assert set(running.deployments("demo")) == {"demo-head", "demo-worker", "demo-big"}
    assert running.workers("demo", "default") == old
    assert len(running.workers("demo", "big")) == 2
    running.edit("demo", sized(group("big", 2)))
    running.until("demo", "has one group", lambda: set(running.deployments("demo")) == {"demo-head", "demo-big"})
    running.until("demo", "has two workers", lambda: len(running.pods("demo", "worker")) == 2)
    assert running.await_ready("demo")["ready"] == "2/2"


OTHER_PODS = {"spec": SIMULATED_POD["spec"] | {"terminationGracePeriodSeconds": 77}}


@pytest.mark.parametrize("change", [{"env": {"COLOUR": "blue"}}, {"pod": OTHER_PODS}])
def test_new_workers_are_ready_before_old_ones_are_removed(running: Stage, change: dict[str, Any]) -> None:
    old = running.workers("demo")
    running.edit("demo", sized(group(**change)))
    least = 99

    def replaced() -> bool:
        nonlocal least
        ready = running.workers("demo")
        least = min(least, len(ready))
        return len(ready) == 3 and not ready & old and len(running.pods("demo", "worker")) == 3

    running.until("demo", "has other workers", replaced)
    assert least >= 3
    running.await_ready("demo")
    running.until("demo", "has one Deployment of workers", lambda: len(running.deployments("demo")) == 2)


def test_new_image_replaces_all_members(running: Stage) -> None:
    running.edit("demo", {"image": "oars.lab/simulated:2"})

    def images() -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in running.pods("demo")}

    running.until("demo", "has the new image", lambda: images() == {"oars.lab/simulated:2"})
    running.await_ready("demo")
    assert len(running.pods("demo", "worker")) == 3


def test_fields_removed_from_the_spec_are_removed_from_the_head(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", head={**resource("demo")["spec"]["head"], "env": {"COLOUR": "blue"}}))
    stage.await_ready("demo")

    def variables() -> list[set[str]]:
        """Of each head there is; for a moment there is none."""
        pods = stage.pods("demo", "head")
        return [{each["name"] for each in pod["spec"]["containers"][0].get("env", ())} for pod in pods]

    def is_lost() -> bool:
        found = variables()
        return bool(found) and not any("COLOUR" in of_one for of_one in found)

    assert all("COLOUR" in of_one for of_one in variables())
    stage.edit("demo", {"head": {"env": None}})
    stage.until("demo", "has lost the variable", is_lost)


def test_ready_means_the_head_of_the_current_revision(running: Stage) -> None:
    old = {pod["metadata"]["name"] for pod in running.pods("demo", "head")}
    running.edit("demo", {"head": {"env": {"COLOUR": "blue"}}})
    running.await_ready("demo")
    (new,) = {pod["metadata"]["name"] for pod in running.pods("demo", "head")}
    assert new not in old


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"options": {"colour": "blue"}}, "spec.options: simulated has no option 'colour'"),
        (
            {"head": {"pod": {"spec": {"containers": [{"name": "head", "command": ["sh"]}]}}}},
            "head.pod.spec.containers[head].command cannot be set",
        ),
        (
            {"head": {"pod": {"nodeSelector": {}}}},
            "head.pod.nodeSelector: a PodTemplateSpec has only metadata and spec",
        ),
    ],
)
def test_invalid_spec_that_the_schema_accepts_is_reported_until_it_is_fixed(
    running: Stage, edit: dict[str, object], words: str
) -> None:
    def told() -> Object | None:
        status: Object = running.get("demo")["status"]
        return status if words in status["message"] else None

    running.edit("demo", edit)
    status = running.until("demo", "the status says what is wrong", told)
    assert status["reason"] == "InvalidSpec"
    assert status["conditions"][0]["status"] == "False" and words in status["conditions"][0]["message"]
    assert len(running.workers("demo")) == 3  # what runs is left alone
    version = running.get("demo")["metadata"]["resourceVersion"]
    assert quiet_for(3, lambda: int(running.get("demo")["metadata"]["resourceVersion"])) == 0, version
    running.edit("demo", {"options": None, "head": resource("demo")["spec"]["head"] | {"pod": None}})
    running.edit("demo", {"head": resource("demo")["spec"]["head"]})
    running.await_ready("demo")


def test_new_cluster_with_an_invalid_spec_creates_nothing(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", engine="dusk"))
    message = stage.until("demo", "is refused", lambda: stage.get("demo")["status"].get("message"))
    assert "There is no engine 'dusk'. Did you mean 'dask'?" in message
    assert stage.left("demo") == []


def test_rejected_object_is_reported_until_the_spec_is_fixed(stage: Stage, operators: Operators) -> None:
    operators()
    wrong = group()["pod"]["spec"] | {"dnsPolicy": "Nonsense"}
    stage.create(resource("demo", group(pod={"spec": wrong})))

    def told() -> bool:
        return "dnsPolicy" in (stage.get("demo").get("status") or {}).get("message", "")

    stage.until("demo", "the status shows the refusal", told)
    stage.edit("demo", sized(group()))
    stage.await_ready("demo")


@pytest.mark.usefixtures("patient")
def test_workers_are_replaced_once_after_a_new_head(stage: Stage, operators: Operators, fault_proxy: Proxies) -> None:
    proxy = fault_proxy()
    operators(proxy.kubeconfig)
    stage.create(resource("demo"))
    stage.await_ready("demo")
    old = stage.workers("demo")
    before = proxy.count(resource="deployments", name="demo-worker", verb="patch")
    head = stage.pods("demo", "head")[0]["metadata"]["name"]
    stage.kube.api.delete(stage.kube.path(f"pods/{head}"))

    def renewed() -> bool:
        found = stage.pods("demo", "worker")
        fresh = all(pod["metadata"].get("annotations", {}).get(names.HEAD_EPOCH) == "1" for pod in found)
        return fresh and len(found) == 3 and not stage.workers("demo") & old

    stage.until("demo", "has new workers", renewed)
    stage.await_ready("demo")
    assert proxy.count(resource="deployments", name="demo-worker", verb="patch") == before + 1
    template = stage.deployments("demo")["demo-worker"]["spec"]["template"]
    assert template["metadata"]["annotations"][names.HEAD_EPOCH] == "1"


def test_deleted_deployments_are_recreated(running: Stage) -> None:
    """The pods of what is deleted outlive it for a moment: only others show that it came back."""
    kube = running.kube

    def ready(role: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in running.pods("demo", role) if is_ready(pod)}

    def has_others(role: str, count: int, old: set[str]) -> bool:
        found = ready(role)
        return len(found) == count and not found & old

    workers = ready("worker")
    kube.api.delete(kube.path("deployments/demo-worker", "apis/apps/v1"))
    running.until("demo", "has its workers again", lambda: has_others("worker", 3, workers))
    head = ready("head")
    kube.api.delete(kube.path("deployments/demo-head", "apis/apps/v1"))
    running.until("demo", "has its head again", lambda: has_others("head", 1, head))
    running.await_ready("demo")


def test_deleted_surroundings_are_recreated(running: Stage) -> None:
    objects = [
        "service/demo-head",
        "serviceaccount/demo-oars",
        "networkpolicy/demo-oars",
        "poddisruptionbudget/demo-head",
    ]
    running.await_guarded("demo")
    before, pods = set(running.left("demo")), running.workers("demo")
    running.kube.kubectl("delete", *objects)
    running.until("demo", "is whole again", lambda: set(running.left("demo")) == before)
    assert running.workers("demo") == pods, "nothing else was touched"


def test_objects_deleted_while_the_operator_was_down_are_recreated(stage: Stage, operators: Operators) -> None:
    first = operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.await_guarded("demo")
    before = set(stage.left("demo"))
    first.stop()
    stage.kube.kubectl("delete", "service/demo-head", "poddisruptionbudget/demo-head")
    operators()
    stage.until("demo", "is whole again", lambda: set(stage.left("demo")) == before)


def test_ingress_is_created_and_deleted_with_its_host(running: Stage) -> None:
    ingress = running.kube.path("ingresses/demo-head", "apis/networking.k8s.io/v1")
    running.edit("demo", {"expose": {"host": "demo.example.org"}})
    running.until("demo", "has an Ingress", lambda: running.kube.api.raw("GET", ingress)[0] == 200)
    running.edit("demo", {"expose": {"host": None}})
    running.until("demo", "has none", lambda: running.kube.api.raw("GET", ingress)[0] == 404)


def test_spec_for_another_namespace_is_rejected(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", namespace={"name": "elsewhere"}))
    message = stage.until("demo", "is refused", lambda: stage.get("demo")["status"].get("message"))
    assert "spec.namespace.name is 'elsewhere'" in message
    assert stage.left("demo") == []


def test_manual_scaling_of_a_deployment_is_reverted_and_reported(running: Stage) -> None:
    running.kube.kubectl("scale", "deployment/demo-worker", "--replicas=5")

    def put_right() -> bool:
        wanted = running.deployments("demo")["demo-worker"]["spec"]["replicas"]
        return bool(wanted == 3) and len(running.pods("demo", "worker")) == 3

    running.until("demo", "has three again", put_right)
    running.edit("demo", sized(group(replicas=2)))
    assert running.await_ready("demo")["ready"] == "2/2", "a write of Oars itself is not reported"
    causes = running.get("demo")["status"]["causes"]
    (cause,) = [each for each in causes if each["reason"] == "ReplicasOverwritten"]
    assert "demo-worker to 5" in cause["message"] and "on computecluster/demo" in cause["hint"]
