"""Enforcement of NetworkPolicies in the lab."""

from typing import Any

import pytest
from lab.errors import LabError
from lab.kube import Kube
from lab.policies import World, ruleset
from lab.wait import until

HERE, ELSEWHERE = "here", "elsewhere"


def pod(name: str, address: str, namespace: str = HERE, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"containers": [{"name": "main", "ports": [{"name": "web", "containerPort": 8080}]}]}
    return {"metadata": metadata, "spec": spec, "status": {"podIP": address, "phase": "Running"}}


def policy(*ingress: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"podSelector": {"matchLabels": {"app": "demo"}}, "policyTypes": ["Ingress"], "ingress": list(ingress)}
    return {"metadata": {"name": "p", "namespace": HERE}, "spec": {**spec, **more}}


DEMO = pod("demo", "10.0.0.1", app="demo")
FRIEND = pod("friend", "10.0.0.2", app="friend")
STRANGER = pod("stranger", "10.0.0.3", ELSEWHERE, app="friend")
WORLD = World(
    [DEMO, FRIEND, STRANGER],
    [{"metadata": {"name": name, "labels": {"name": name}}} for name in (HERE, ELSEWHERE)],
    "10.0.0.254",
)


def rules(*policies: dict[str, Any], of: dict[str, Any] = DEMO) -> list[str]:
    return [line.strip() for line in ruleset(of, policies, WORLD).splitlines() if "saddr" in line or "dport" in line]


def test_pod_without_a_policy_has_no_rules() -> None:
    assert ruleset(FRIEND, [policy()], WORLD) == ""


def test_pod_selector_selects_in_the_policys_namespace() -> None:
    by_label = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}
    node, friend = rules(policy(by_label))
    assert "10.0.0.254" in node and friend == "ip saddr { 10.0.0.2 } accept"


def test_namespace_selectors_and_ports() -> None:
    other = {"namespaceSelector": {"matchLabels": {"name": ELSEWHERE}}, "podSelector": {}}
    assert rules(policy({"from": [other], "ports": [{"port": 80}, {"port": 81}]}))[1:] == [
        "ip saddr { 10.0.0.3 } tcp dport { 80, 81 } accept"
    ]
    by_name = {"ports": [{"port": "web", "protocol": "TCP"}]}
    assert rules(policy(by_name))[1:] == ["tcp dport { 8080 } accept"]


@pytest.mark.parametrize(
    "wrong",
    [
        policy({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}),
        policy({"ports": [{"port": "unheard-of"}]}),
        policy(policyTypes=["Ingress", "Egress"]),
        policy(podSelector={"matchExpressions": []}),
    ],
    ids=["address", "name of a port", "egress", "expression"],
)
def test_unsupported_policy_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(LabError, match="enforce"):
        ruleset(DEMO, [wrong], WORLD)


def start(kube: Kube, name: str, *command: str) -> dict[str, Any]:
    container = {"name": "main", "image": kube.image("base"), "command": list(command)}
    metadata = {"name": name, "labels": {"app": name}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return kube.await_ready(f"app={name}", 1)[0]


def test_policy_is_enforced_until_it_is_deleted(kube: Kube, enforced: None) -> None:
    address = start(kube, "demo", "python3", "-m", "http.server", "8000")["status"]["podIP"]
    for name in ("friend", "other"):
        start(kube, name, "sleep", "600")

    def reaches(name: str) -> bool:
        line = f"timeout 2 bash -c 'echo > /dev/tcp/{address}/8000' && echo yes || echo no"
        return kube.kubectl("exec", name, "--", "bash", "-c", line).strip() == "yes"

    until("the server answers", lambda: reaches("other"), 60, 0.2)
    made = policy({"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]})
    kube.apply(
        {**made, "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "only-friends"}}
    )
    until("other pods cannot connect", lambda: not reaches("other"), 60, 0.2)
    until("the selected pod can connect", lambda: reaches("friend"), 60, 0.2)
    kube.kubectl("delete", "networkpolicy/only-friends")
    until("all pods can connect again", lambda: reaches("other"), 60, 0.2)
