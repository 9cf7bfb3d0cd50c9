"""Workers leave nodes that are about to end, and pods with data are protected: a real control plane, simulated pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.api import Object
from tests.api.stage import Operator, Stage, group, resource

Operators = Callable[..., Operator]


@pytest.fixture
def holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which pods hold data, for operators that start later."""
    file = tmp_path / "held.json"

    def write(*pods: str) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(pods))
        fresh.rename(file)

    write()
    monkeypatch.setenv("SIMULATED_HELD", str(file))
    return write


def pod_on(stage: Stage, name: str = "demo") -> tuple[str, str]:
    """A worker and its node."""
    pod = next(pod for pod in stage.pods(name, "worker") if pod["spec"].get("nodeName"))
    return pod["metadata"]["name"], pod["spec"]["nodeName"]


def nodes_of(stage: Stage) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in stage.pods("demo", "worker")}


@contextmanager
def changed(stage: Stage, node: str, spec: Object) -> Iterator[None]:
    """A node with other fields for a while."""
    path = f"/api/v1/nodes/{node}"
    before = stage.kube.api.get(path)["spec"].get("taints")
    stage.kube.api.patch(path, {"spec": spec})
    try:
        yield
    finally:
        stage.kube.api.patch(path, {"spec": {"unschedulable": None, "taints": before}})


def taint(stage: Stage, node: str, key: str) -> Object:
    before = stage.kube.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or []
    return {"taints": [*before, {"key": key, "effect": "NoSchedule"}]}


@pytest.mark.parametrize("event", ["cordon", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_workers_leave_a_node_that_is_about_to_end(
    event: str, stage: Stage, operators: Operators, holders: Callable[..., None]
) -> None:
    """One that holds data stays until it is empty; the others leave when their successors run elsewhere."""
    operators()
    stage.create(resource("demo", group(replicas=3)))
    stage.await_ready("demo")
    victim, node = pod_on(stage)
    holders(victim)
    with changed(stage, node, {"unschedulable": True} if event == "cordon" else taint(stage, node, event)):
        stage.until("demo", "explains", lambda: node in str(stage.get("demo")["status"].get("retiring")))
        stage.until("demo", "has a successor", lambda: len(stage.workers("demo") - {victim}) >= 3)
        retiring = stage.until("demo", "refuses", lambda: (
            stage.get("demo")["status"]["retiring"].get(victim, {}).get("waits_for")
        ))  # fmt: skip
        assert retiring == "its data" and victim in stage.workers("demo")
        holders()
        stage.until("demo", "has left the node", lambda: node not in nodes_of(stage) and stage.is_ready("demo"))
        assert len(stage.pods("demo", "worker")) == 3


def test_pod_with_data_is_protected_from_node_autoscalers(
    stage: Stage, operators: Operators, holders: Callable[..., None]
) -> None:
    operators()
    stage.create(resource("demo", group(replicas=2)))
    stage.await_ready("demo")
    victim, _ = pod_on(stage)

    def annotations() -> Object:
        pod = next(pod for pod in stage.pods("demo", "worker") if pod["metadata"]["name"] == victim)
        found: Object = pod["metadata"].get("annotations") or {}
        return found

    holders(victim)
    stage.until("demo", "is protected", lambda: annotations().get("karpenter.sh/do-not-disrupt") == "true")
    assert annotations()["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    holders()
    stage.until("demo", "is free", lambda: "karpenter.sh/do-not-disrupt" not in annotations())
    others = [pod for pod in stage.pods("demo", "worker") if pod["metadata"]["name"] != victim]
    assert not any("oars.dev/protected" in (pod["metadata"].get("annotations") or {}) for pod in others)


def test_drain_is_requested_by_annotation(stage: Stage, operators: Operators, holders: Callable[..., None]) -> None:
    operators()
    stage.create(resource("demo", group(replicas=2)))
    stage.await_ready("demo")
    before = stage.workers("demo")
    victim = min(before)
    spec = stage.get("demo")["spec"]
    stage.kube.api.patch(stage._path("demo"), {"metadata": {"annotations": {"oars.dev/drain": victim}}})
    stage.until("demo", "has replaced it", lambda: victim not in stage.workers("demo") and stage.is_ready("demo"))
    assert len(stage.workers("demo")) == 2 and stage.get("demo")["spec"] == spec
    assert len(stage.workers("demo") & before) == 1, "nobody else was replaced"
