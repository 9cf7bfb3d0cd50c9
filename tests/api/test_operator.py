"""The operator on a real control plane with simulated pods: what it makes, in how many writes, what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from lab.faultproxy import FaultProxy
from tests.api.stage import Operator, Stage, group, quiet_for, requests, resource

from oars.places.kube import names
from oars.places.kube.state.root import PROGRESS_SECONDS

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]


def object_writes(proxy: FaultProxy) -> list[str]:
    """Writes of the cluster's objects: neither the Lease nor status and Events."""
    found = [record.request for record in proxy.writes]
    told = [r for r in found if r.resource in ("leases", "events") or r.subresource == "status"]
    return [f"{r.verb} {r.resource}/{r.name}" for r in found if r not in told]


def status_writes(proxy: FaultProxy) -> int:
    return proxy.count(resource="computeclusters", subresource="status", verb="patch")


@pytest.fixture
def proxied(stage: Stage, patient: None, operators: Operators, fault_proxy: Proxies) -> FaultProxy:
    """An operator at work behind a proxy that counts."""
    proxy = fault_proxy()
    operators(proxy.kubeconfig)
    return proxy


def test_create_takes_few_writes_and_sets_owner_references(stage: Stage, proxied: FaultProxy) -> None:
    began = time.monotonic()
    made = stage.create(resource("demo"))
    status = stage.await_ready("demo")
    late = max(0.0, time.monotonic() - began - 10)  # on a busy machine the start takes longer, and the status shows it
    assert status["ready"] == "3/3" and status["replicas"] == 3
    assert status["endpoints"]["client"] == f"simulated://demo-head.{stage.kube.namespace}:8786"
    assert status["conditions"][0]["status"] == "True"
    assert len(object_writes(proxied)) <= 7, f"with the budget that is to come: {object_writes(proxied)}"
    assert status_writes(proxied) <= 5 + late / PROGRESS_SECONDS
    owners = {
        (each["metadata"]["ownerReferences"][0]["uid"], each["metadata"]["name"])
        for each in stage.deployments("demo").values()
    }
    assert owners == {(made["metadata"]["uid"], "demo-head"), (made["metadata"]["uid"], "demo-worker")}


def test_ready_head_gets_a_budget_then_no_writes_and_300_workers_are_one_write(
    stage: Stage, proxied: FaultProxy, kwok: Callable[[int], list[str]]
) -> None:
    """One after the other: each begins where the one before it ends."""
    stage.create(resource("demo"))
    ready = stage.await_ready("demo")["conditions"][0]["lastTransitionTime"]
    stage.await_guarded("demo")
    budget = stage.kube.api.get(stage.kube.path("poddisruptionbudgets/demo-head", "apis/policy/v1"))["metadata"]
    assert budget["creationTimestamp"] > ready, "not before there is something to lose, nor at once"
    made = [write for write in object_writes(proxied) if "poddisruptionbudgets" in write or "deployments" in write]
    assert made[-1] == "patch poddisruptionbudgets/demo-head"

    stage.until("demo", "is at rest", lambda: quiet_for(10, lambda: requests(proxied)) == 0)  # watches tell all

    before, told = len(object_writes(proxied)), status_writes(proxied)
    began = time.monotonic()
    stage.edit("demo", {"replicas": 300})
    status = stage.await_ready("demo", 120)
    elapsed = time.monotonic() - began
    assert status["ready"] == "300/300"
    assert object_writes(proxied)[before:] == ["patch deployments/demo-worker"]
    assert status_writes(proxied) - told <= 5 + elapsed / PROGRESS_SECONDS


def test_kubectl_scale_changes_the_number_of_workers(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo", group(replicas=1)))
    stage.await_ready("demo")
    stage.kube.kubectl("scale", "computecluster/demo", "--replicas=4")
    assert stage.await_ready("demo")["ready"] == "4/4"
    selector = stage.get("demo")["status"]["selector"]
    assert len(stage.kube.pods(selector.replace(",", "%2C"))) == 4


def test_scale_down_deletes_exactly_the_retired_workers(stage: Stage, proxied: FaultProxy) -> None:
    stage.create(resource("demo", group(replicas=10)))
    stage.await_ready("demo")
    before = stage.workers("demo")
    stage.edit("demo", {"replicas": 4})
    stage.await_ready("demo")
    stage.until("demo", "has four workers", lambda: len(stage.pods("demo", "worker")) == 4)
    marked = {
        record.request.name
        for record in proxied.writes
        if record.request.resource == "pods" and record.request.verb == "patch"
    }
    assert len(marked) == 6
    assert stage.workers("demo") == before - marked


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deletion_leaves_no_objects(cascade: str, stage: Stage, operators: Operators) -> None:
    operator = operators()
    stage.create(resource("demo"))
    stage.create(resource("other", group(replicas=1)))
    stage.await_ready("demo")
    stage.await_ready("other")
    stage.kube.kubectl("delete", "computecluster/demo", "--wait=false", f"--cascade={cascade}")
    stage.kube.api.request(
        "DELETE", stage.kube.path("pods") + f"?labelSelector={names.CLUSTER}%3Ddemo&gracePeriodSeconds=0"
    )
    stage.until("other", "is alone", lambda: not stage.left("demo"))
    assert stage.is_ready("other")
    assert operator.stop() == 128 + 15
    assert not operator.says("Traceback")


def test_cluster_with_a_reused_name_is_a_new_cluster(stage: Stage, operators: Operators) -> None:
    operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.delete("demo")
    again = stage.create(resource("demo", group(replicas=2)))
    assert stage.await_ready("demo")["ready"] == "2/2"
    stage.until(
        "demo",
        "has only new objects",
        lambda: (
            {d["metadata"]["ownerReferences"][0]["uid"] for d in stage.deployments("demo").values()}
            == {again["metadata"]["uid"]}
        ),
    )
