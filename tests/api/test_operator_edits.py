"""The operator and a description that changes: numbers, groups, templates, mistakes, and a head that is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab.api import Object
from lab.faultproxy import FaultProxy
from tests.api.stage import PLAYED, Operator, Stage, group, quiet_for, resource

from oars.places.kube import names

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]


@pytest.fixture
def running(stage: Stage, operators: Operators) -> Stage:
    """A cluster of 1 + 3 that an operator looks after."""
    operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    return stage


def test_a_group_more_and_a_group_less(running: Stage) -> None:
    old = running.workers("demo")
    running.edit("demo", {"workers": [group(), group("big", 2)]})
    running.await_ready("demo")
    assert set(running.deployments("demo")) == {"demo-head", "demo-worker", "demo-big"}
    assert running.workers("demo", "default") == old
    assert len(running.workers("demo", "big")) == 2
    running.edit("demo", {"workers": [group("big", 2)]})
    running.until("demo", "has one group", lambda: set(running.deployments("demo")) == {"demo-head", "demo-big"})
    running.until("demo", "has two workers", lambda: len(running.pods("demo", "worker")) == 2)
    assert running.await_ready("demo")["ready"] == "2/2"


OTHER_PODS = {"spec": PLAYED["spec"] | {"terminationGracePeriodSeconds": 77}}


@pytest.mark.parametrize("change", [{"env": {"COLOUR": "blue"}}, {"pod": OTHER_PODS}])
def test_other_workers_come_before_the_old_ones_go(running: Stage, change: dict[str, Any]) -> None:
    old = running.workers("demo")
    running.edit("demo", {"workers": [group(**change)]})
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


def test_another_image_replaces_all(running: Stage) -> None:
    running.edit("demo", {"image": "oars.lab/played:2"})

    def images() -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in running.pods("demo")}

    running.until("demo", "has the new image", lambda: images() == {"oars.lab/played:2"})
    running.await_ready("demo")
    assert len(running.pods("demo", "worker")) == 3


def test_what_the_head_shall_no_longer_have_is_taken_away(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", head={**resource("demo")["spec"]["head"], "env": {"COLOUR": "blue"}}))
    stage.await_ready("demo")

    def variables() -> set[str]:
        pods = stage.pods("demo", "head")
        return {each["name"] for pod in pods for each in pod["spec"]["containers"][0].get("env", ())}

    assert "COLOUR" in variables()
    stage.edit("demo", {"head": {"env": None}})
    stage.until("demo", "has lost the variable", lambda: stage.pods("demo", "head") and "COLOUR" not in variables())


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"options": {"colour": "blue"}}, "spec.options: played has no option 'colour'"),
        (
            {"head": {"pod": {"spec": {"containers": [{"name": "head", "command": ["sh"]}]}}}},
            "head.pod.spec.containers[head].command clashes with what Oars sets there",
        ),
        (
            {"head": {"pod": {"nodeSelector": {}}}},
            "head.pod.nodeSelector: a PodTemplateSpec has only metadata and spec",
        ),
    ],
)
def test_a_mistake_the_schema_lets_through_is_told_and_mended(
    running: Stage, edit: dict[str, object], words: str
) -> None:
    def told() -> Object | None:
        status: Object = running.get("demo")["status"]
        return status if words in status["message"] else None

    running.edit("demo", edit)
    status = running.until("demo", "is told what is wrong", told)
    assert status["reason"] == "InvalidSpec"
    assert status["conditions"][0]["status"] == "False" and words in status["conditions"][0]["message"]
    assert len(running.workers("demo")) == 3  # what runs is left alone
    version = running.get("demo")["metadata"]["resourceVersion"]
    assert quiet_for(3, lambda: int(running.get("demo")["metadata"]["resourceVersion"])) == 0, version
    running.edit("demo", {"options": None, "head": resource("demo")["spec"]["head"] | {"pod": None}})
    running.edit("demo", {"head": resource("demo")["spec"]["head"]})
    running.await_ready("demo")


def test_a_new_cluster_with_a_mistake_makes_nothing(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", engine="dusk"))
    status = stage.until("demo", "is refused", lambda: stage.get("demo").get("status"))
    assert "There is no engine 'dusk'. Did you mean 'dask'?" in status["message"]
    assert stage.left("demo") == []


def test_a_refusal_of_kubernetes_is_told_and_mended(stage: Stage, operators: Operators) -> None:
    operators()
    wrong = group()["pod"]["spec"] | {"dnsPolicy": "Nonsense"}
    stage.create(resource("demo", group(pod={"spec": wrong})))

    def told() -> bool:
        return "dnsPolicy" in (stage.get("demo").get("status") or {}).get("message", "")

    stage.until("demo", "is told of the refusal", told)
    stage.edit("demo", {"workers": [group()]})
    stage.await_ready("demo")


def test_after_a_new_head_workers_are_replaced_once(stage: Stage, operators: Operators, fault_proxy: Proxies) -> None:
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
        fresh = all(pod["metadata"]["annotations"].get(names.HEAD_SEEN) == "1" for pod in found)
        return fresh and len(found) == 3 and not stage.workers("demo") & old

    stage.until("demo", "has new workers", renewed)
    stage.await_ready("demo")
    assert proxy.count(resource="deployments", name="demo-worker", verb="patch") == before + 1
    template = stage.deployments("demo")["demo-worker"]["spec"]["template"]
    assert template["metadata"]["annotations"][names.HEAD_SEEN] == "1"


def test_what_somebody_deletes_comes_back(running: Stage) -> None:
    kube = running.kube
    kube.api.delete(kube.path("deployments/demo-worker", "apis/apps/v1"))
    running.until("demo", "has its workers again", lambda: len(running.workers("demo")) == 3)
    kube.api.delete(kube.path("deployments/demo-head", "apis/apps/v1"))
    running.until("demo", "has its head again", lambda: len(running.pods("demo", "head")) == 1)
    running.await_ready("demo")


def test_what_somebody_scales_by_hand_is_put_right(running: Stage) -> None:
    running.kube.kubectl("scale", "deployment/demo-worker", "--replicas=5")

    def put_right() -> bool:
        wanted = running.deployments("demo")["demo-worker"]["spec"]["replicas"]
        return bool(wanted == 3) and len(running.pods("demo", "worker")) == 3

    running.until("demo", "has three again", put_right)
