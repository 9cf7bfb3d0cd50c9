"""A node is not ready for a while: the real operator on a virtual clock changes one cluster that has pods there, and
leaves the pods of another one alone."""

from __future__ import annotations

import asyncio

from oars.places.kube.kinds import COMPUTE_CLUSTER
from tests.simulation.api_server import Event, cluster_of
from tests.simulation.controllers import Node
from tests.simulation.history import Replica
from tests.simulation.test_fairness import ManyClusters, is_ready

TEAM = "team"
AWAY_SECONDS = 120.0  # less than Kubernetes waits before it deletes the pods of such a node


class UnreachableNode(ManyClusters):
    """Two clusters run on two nodes. Of one node no kubelet reports; meanwhile a user changes one of the clusters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replicas = [Replica("operator", self)]
        self.kubernetes.nodes = [Node("a", 100), Node("b", 100)]
        self.ends: list[str] = []  # clusters whose pods were deleted while the node was away

    async def _run(self) -> None:
        async with self._running():
            for name in ("demo", "other"):
                self.create(TEAM, name, replicas=6)
            await self._until(lambda: all(map(is_ready, self._clusters())), 300)
            self.before = self.workers("other")
            await asyncio.sleep(60)  # protects the heads
            self._set_ready(False)
            self.log("node b is not ready")
            self.server.listeners.append(self._note)
            self.server.patch((COMPUTE_CLUSTER.plural, TEAM, "demo"), {"spec": {"workers": [{"cpu": 2}]}})
            await asyncio.sleep(AWAY_SECONDS)
            self.server.listeners.remove(self._note)
            self.log("node b is ready")
            self._set_ready(True)
            await self._until(lambda: all(map(is_ready, self._clusters())), 300)

    def workers(self, cluster: str) -> dict[str, str]:
        """By uid, with where they run."""
        pods = self._pods_of(cluster, head=False)
        return {pod["metadata"]["uid"]: str(pod["spec"]["nodeName"]) for pod in pods}

    def _set_ready(self, ready: bool) -> None:
        for pod in list(self.kubernetes.pods()):
            if pod["spec"].get("nodeName") == "b":
                self.kubernetes.set_ready(pod, ready)

    def _note(self, event: Event) -> None:
        if event.key[0] == "pods" and event.object["metadata"].get("deletionTimestamp"):
            self.ends.append(cluster_of(event.object))

    def writes(self) -> list[str]:
        """What the operator wrote while the node was away, other than Leases, statuses and Events."""
        first, last = (
            next(n for n, line in enumerate(self.lines) if "node b is " + s in line) for s in ("not", "ready")
        )
        lines = [line.partition("operator: ")[2] for line in self.lines[first:last]]
        return [line for line in lines if line and not any(word in line for word in ("leases", "status", "events"))]


def test_pods_of_another_cluster_on_a_node_that_is_not_ready_are_left_alone() -> None:
    history = UnreachableNode(3)
    history.run()
    assert set(history.before.values()) == {"a", "b"}
    assert history.workers("other") == history.before
    assert set(history.ends) == {"demo"}
    writes = history.writes()
    assert any(" demo-" in line for line in writes)
    assert not [line for line in writes if " other" in line]
