"""Another version of the operator takes over clusters that run: what nobody asked to replace stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.api.stage import Operator, Stage, group, resource, sized

from oars.places.kube import names

Operators = Callable[..., Operator]

# Started with every Python that finds it: an Oars that says other things of the same pods.
ANOTHER = """
from oars.base import version
version.VERSION = "another"
from oars.places.kube.render import pod
pod.NO_PRIVILEGES["readOnlyRootFilesystem"] = False
"""


@pytest.fixture
def upgraded(stage: Stage, operators: Operators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    """A cluster of 1 + 3, created by this version and now reconciled by another."""
    first = operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    first.stop()
    (tmp_path / "sitecustomize.py").write_text(ANOTHER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    operators(identity="two")
    return stage


def is_of_another(stage: Stage, pod: str) -> bool:
    found = stage.kube.api.get(stage.kube.path(f"pods/{pod}"))
    return "readOnlyRootFilesystem" in found["spec"]["containers"][0]["securityContext"]


def heads(stage: Stage) -> list[str]:
    return [pod["metadata"]["name"] for pod in stage.pods("demo", "head")]


def test_scaling_after_an_upgrade_keeps_the_pods(upgraded: Stage) -> None:
    before, head = upgraded.workers("demo"), heads(upgraded)
    upgraded.edit("demo", {"replicas": 5})
    assert upgraded.await_ready("demo")["ready"] == "5/5"
    assert before < upgraded.workers("demo")
    upgraded.edit("demo", {"replicas": 2})
    upgraded.until("demo", "has two workers", lambda: len(upgraded.pods("demo", "worker")) == 2)
    assert heads(upgraded) == head
    assert len(upgraded.deployments("demo")) == 2


def test_change_after_an_upgrade_replaces_only_what_changed(upgraded: Stage) -> None:
    before, head = upgraded.workers("demo"), heads(upgraded)
    upgraded.edit("demo", sized(group(env={"A": "b"}), group("big", 1)))
    upgraded.until("demo", "has other workers", lambda: not before & upgraded.workers("demo"))
    upgraded.await_ready("demo")
    assert all(is_of_another(upgraded, worker) for worker in upgraded.workers("demo"))
    assert heads(upgraded) == head and not is_of_another(upgraded, head[0])
    upgraded.edit("demo", {"head": {"env": {"A": "b"}}})
    upgraded.until("demo", "has another head", lambda: set(heads(upgraded)) - set(head))
    assert all(is_of_another(upgraded, name) for name in set(heads(upgraded)) - set(head))


def test_head_lost_after_an_upgrade_gets_workers_of_the_new_version(upgraded: Stage) -> None:
    before, head = upgraded.workers("demo"), heads(upgraded)
    upgraded.kube.api.delete(upgraded.kube.path(f"pods/{head[0]}"))

    def replaced() -> bool:
        """With one look: the old ones go all at once, before there are others."""
        found = upgraded.workers("demo")
        return len(found) == 3 and not before & found

    upgraded.until("demo", "has other workers", replaced)
    upgraded.await_ready("demo")
    assert all(is_of_another(upgraded, worker) for worker in upgraded.workers("demo"))
    stamps = {pod["metadata"].get("annotations", {}).get(names.HEAD_EPOCH) for pod in upgraded.pods("demo", "worker")}
    assert stamps == {"1"}


def test_network_policy_and_service_of_an_older_version_are_replaced_without_pods(
    stage: Stage, operators: Operators
) -> None:
    """As earlier versions made them: open to every pod that calls itself the operator, and to heads that are gone."""
    first = operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    first.stop()
    api, path = stage.kube.api, stage.kube.path
    policy, service = path("networkpolicies/demo-oars", "apis/networking.k8s.io/v1"), path("services/demo-head")
    head = path("deployments/demo-head", "apis/apps/v1")
    wide = [{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": names.OPERATOR}}]}]
    api.patch(policy, {"spec": {"ingress": wide}})
    api.patch(service, {"spec": {"publishNotReadyAddresses": True}})
    rendered, spec, epoch, *_ = api.get(head)["metadata"]["annotations"][names.APPLIED].split(" ")
    api.patch(head, {"metadata": {"annotations": {names.APPLIED: f"{rendered[::-1]} {spec} {epoch} 0.0.1"}}})
    pods = {pod["metadata"]["uid"] for pod in stage.pods("demo")}

    operators(identity="two")
    stage.until("demo", "has a policy of this version", lambda: api.get(policy)["spec"]["ingress"] != wide)
    stage.until("demo", "has its Service", lambda: not api.get(service)["spec"].get("publishNotReadyAddresses"))
    peers = [peer for rule in api.get(policy)["spec"]["ingress"] for peer in rule.get("from", ())]
    assert not [peer for peer in peers if peer.get("namespaceSelector") == {}]
    stage.until("demo", "is marked", lambda: len(api.get(head)["metadata"]["annotations"][names.APPLIED].split()) == 5)
    assert {pod["metadata"]["uid"] for pod in stage.pods("demo")} == pods
