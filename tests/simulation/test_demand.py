"""New demand is noticed soon, also with many autoscaled clusters: the real operator on a virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from oars.engines.base import Wire
from oars.model import HEAD, Demand, View
from oars.places.kube import names
from tests.simulation.engine import SimulatedEngine
from tests.simulation.history import Replica
from tests.simulation.test_fairness import ManyClusters, is_ready

CLUSTERS, BUSY = 100, 8
MOST_SECONDS = 2.0  # from the demand to the write that serves it


@dataclass
class Loaded(SimulatedEngine):
    """Some clusters have work for three workers."""

    busy: set[str] = field(default_factory=set)

    async def look(self, wire: Wire) -> View:
        view = await super().look(wire)
        pod = self.kubernetes.server.with_uid(wire.incarnations.get(HEAD, ""))
        is_busy = pod is not None and pod["metadata"]["labels"][names.CLUSTER] in self.busy
        return replace(view, demand=(Demand({"cpu": 1.0}, 3),) if is_busy else ()) if view.up else view


class Elastic(ManyClusters):
    """Autoscaled clusters at rest; some of them get work, one after another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine: Loaded = Loaded(self.kubernetes, self.random, self.log)
        self.replicas = [Replica("operator", self)]

    async def _run(self) -> None:
        background = [asyncio.create_task(each) for each in (self.kubernetes.run(), self.replicas[0].run())]
        try:
            for number in range(CLUSTERS):
                self.create("team", f"c{number}", replicas=0, workers=[{"cpu": 1, "max": 5}])
            await self._until(lambda: all(map(is_ready, self._clusters())), 300)
            await asyncio.sleep(10)
            for number in range(BUSY):
                await asyncio.sleep(self.random.uniform(1.0, 3.0))
                self.reactions.append(await self._serve(f"c{number}"))
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _serve(self, name: str) -> float:
        """Seconds until the operator asks for workers."""
        began = self.clock.now
        self.engine.busy.add(name)
        worker = ("deployments", "team", names.workers(name, "default"))
        await self._until(lambda: self.server.get(worker)["spec"]["replicas"] == 3, 60)
        return self.clock.now - began


def test_demand_of_one_of_many_autoscaled_clusters_is_served_within_two_seconds() -> None:
    elastic = Elastic(1)
    elastic.run()
    assert len(elastic.reactions) == BUSY and max(elastic.reactions) <= MOST_SECONDS, elastic.reactions
