"""Simulated nodes: kwok simulates their pods; API server, scheduler and controllers are real."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lab.api import Api, Object
from lab.node import usable
from lab.wait import until

if TYPE_CHECKING:
    from lab.cluster import Lab

LABEL = "type"
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
# A pod's spec must contain this to be scheduled on a simulated node.
POD = {"nodeSelector": {LABEL: "kwok"}, "tolerations": [{"key": TAINT["key"], "operator": "Exists"}]}


def up(lab: "Lab", count: int) -> list[str]:
    """Create `count` simulated nodes, wait until all are Ready, and return their names."""
    lab.start("kwok")
    names = [f"kwok-{number}" for number in range(count)]
    api = lab.api
    missing = set(names) - nodes(api).keys()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: api.create("/api/v1/nodes", _node(name)), sorted(missing)))
    until(f"{count} simulated nodes are Ready", lambda: set(names) <= _ready(api), 120)
    return names


def down(lab: "Lab") -> None:
    """Delete the simulated nodes."""
    lab.api.request("DELETE", f"/api/v1/nodes?labelSelector={LABEL}%3Dkwok")


def nodes(api: Api) -> dict[str, Object]:
    """Return the simulated nodes by name."""
    listed = api.get(f"/api/v1/nodes?labelSelector={LABEL}%3Dkwok")
    return {node["metadata"]["name"]: node for node in listed["items"]}


def _ready(api: Api) -> set[str]:
    return {name for name, node in nodes(api).items() if usable(node)}


def _node(name: str) -> Object:
    room = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {LABEL: "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }
