"""Nodes that are drained or lost, on a real control plane with simulated pods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from lab.api import Object
from lab.wait import until
from tests.api.stage import Operator, Stage, group, resource
from tests.api.test_direct import at_home, make, ready, run_scenario

from oars.service import manifests
from oars.spec.load import build

Operators = Callable[..., Operator]


def head_of(stage: Stage) -> Object:
    (head,) = stage.pods("demo", "head")
    return head


def evict(stage: Stage, pod: Object) -> int:
    """The API server's answer to what `kubectl drain` does."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return stage.kube.api.raw("POST", stage.kube.path(f"pods/{name}/eviction"), body)[0]


@pytest.fixture
def guarded(stage: Stage, operators: Operators) -> Stage:
    """A cluster that is ready and settled."""
    operators()
    stage.create(resource("demo", group(replicas=1)))
    stage.await_ready("demo")
    stage.await_guarded("demo")
    return stage


def test_eviction_of_the_head_is_blocked_until_it_is_allowed(guarded: Stage) -> None:
    head = head_of(guarded)
    budget = guarded.kube.path("poddisruptionbudgets/demo-head", "apis/policy/v1")
    guarded.until(
        "demo", "has a budget that counts", lambda: guarded.kube.api.get(budget)["status"]["expectedPods"] == 1
    )
    assert evict(guarded, head) == 429
    assert "spec.head.eviction" in guarded.kube.kubectl("get", "pdb/demo-head", "-o", "yaml")

    guarded.edit("demo", {"head": {"eviction": "allow"}})
    guarded.until("demo", "has no budget", lambda: guarded.kube.api.raw("GET", budget)[0] == 404)
    assert head_of(guarded)["metadata"]["uid"] == head["metadata"]["uid"], "the change alone replaces no pod"
    assert evict(guarded, head) == 201
    guarded.until("demo", "has another head", lambda: [
        pod for pod in guarded.pods("demo", "head") if pod["metadata"]["uid"] != head["metadata"]["uid"]
    ])  # fmt: skip
    guarded.await_ready("demo")

    guarded.edit("demo", {"head": {"eviction": "block"}})
    guarded.await_guarded("demo")


# a head that is stuck in termination, as on a lost node


def published(stage: Stage) -> set[str]:
    """Addresses that the head's Service sends connections to. The real controller writes them."""
    query = "kubernetes.io/service-name%3Ddemo-head"
    found = stage.kube.api.get(f"{stage.kube.path('endpointslices', 'apis/discovery.k8s.io/v1')}?labelSelector={query}")
    endpoints = [endpoint for each in found["items"] for endpoint in each.get("endpoints") or ()]
    return {address for each in endpoints if each["conditions"]["ready"] for address in each["addresses"]}


def run_as_kubelet(stage: Stage, pod: Object, address: str) -> None:
    """Report that the pod is ready."""
    containers = [
        {"name": each["name"], "image": each["image"], "imageID": "", "ready": True, "restartCount": 0}
        for each in pod["spec"]["containers"]
    ]
    status = {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": containers,
        "conditions": [{"type": "Ready", "status": "True"}],
    }  # fmt: skip
    stage.kube.api.patch(stage.kube.path(f"pods/{pod['metadata']['name']}/status"), {"status": status})


def start_operated(stage: Stage, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("guarded")


def start_direct(stage: Stage, _: pytest.FixtureRequest) -> None:
    """As `oars up`, which ends as soon as the cluster is ready: nobody runs the loop then."""

    async def scenario() -> None:
        async with at_home(stage) as home:
            await make(home, 1)
            await ready(home, 1)

    run_scenario(scenario())


def start_rendered(stage: Stage, _: pytest.FixtureRequest) -> None:
    spec = build({**resource("demo", group(replicas=1))["spec"], "place": "kubernetes"}).spec
    stage.kube.apply(*manifests.render("demo", spec, stage.kube.namespace).objects)


@pytest.mark.parametrize(
    "start", [start_operated, start_direct, start_rendered], ids=["operator", "direct", "rendered"]
)
def test_service_never_points_at_a_head_that_is_stuck_in_termination(
    start: Callable[[Stage, pytest.FixtureRequest], None],
    stage: Stage,
    outage: Callable[[str], AbstractContextManager[None]],
    request: pytest.FixtureRequest,
) -> None:
    """As on a lost node: nobody confirms that the pod has ended."""
    start(stage, request)
    until("the head is published", lambda: len(published(stage)) == 1, 60)
    head = head_of(stage)
    old, new = head["status"]["podIP"], "10.99.99.99"
    assert published(stage) == {old}
    with outage("kwok"):
        stage.kube.api.delete(stage.kube.path(f"pods/{head['metadata']['name']}"))
        until("there is another head", lambda: stage.pods("demo", "head"), 60)
        until("the old one is not published", lambda: old not in published(stage), 60)
        run_as_kubelet(stage, head_of(stage), new)
        until("the new one is published", lambda: published(stage) == {new}, 60)
        stuck = [pod for pod in stage.kube.pods("oars.dev/group=head") if "deletionTimestamp" in pod["metadata"]]
        assert [pod["status"]["podIP"] for pod in stuck] == [old]
