"""Workers never take the room that their own head needs, on a real scheduler with simulated pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.api import Object
from lab.kube import is_ready
from tests.api.stage import SIMULATED_POD, Operator, Stage, group, resource

CROWDED = "20"  # cpu; a simulated node has 32


def on_one_node(stage: Stage) -> dict[str, Any]:
    """A pod overlay for the first simulated node."""
    nodes = stage.kube.api.get("/api/v1/nodes?labelSelector=type%3Dkwok")["items"]
    hostname = nodes[0]["metadata"]["labels"]["kubernetes.io/hostname"]
    return {"spec": {**SIMULATED_POD["spec"], "nodeSelector": {"kubernetes.io/hostname": hostname}}}


def bound(pods: list[Object]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")]


def test_head_gets_its_room_before_its_workers_and_again_after_it_was_lost(
    stage: Stage, operators: Callable[..., Operator]
) -> None:
    pod = on_one_node(stage)
    operators()
    head = {"cpu": CROWDED, "memory": "64Mi", "pod": pod}
    stage.create(resource("demo", group(replicas=2, cpu=CROWDED, pod=pod), head=head))
    stage.until("demo", "has both workers waiting", lambda: len(stage.pods("demo", "worker")) == 2)
    (first,) = stage.until("demo", "has a head", lambda: bound(stage.pods("demo", "head")))
    assert bound(stage.pods("demo", "worker")) == []
    stage.until("demo", "has a head that runs", lambda: is_ready(stage.pods("demo", "head")[0]))

    # A worker that waits takes the room at once. It must leave, or nothing would ever run.
    name = stage.pods("demo", "head")[0]["metadata"]["name"]
    stage.kube.api.delete(stage.kube.path(f"pods/{name}") + "?gracePeriodSeconds=0")
    stage.until("demo", "has another head", lambda: set(bound(stage.pods("demo", "head"))) - {first})
    stage.until("demo", "has its workers back", lambda: len(stage.pods("demo", "worker")) == 2)
    assert len(bound(stage.pods("demo", "head"))) == 1
