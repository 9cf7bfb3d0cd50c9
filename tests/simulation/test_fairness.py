"""Tenants do not delay each other: the real operator on a virtual clock, with 200 clusters of one tenant that misbehave
and 20 clusters of others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oars.engines.base import Wire
from oars.kube.kinds import Object
from oars.model import HEAD, View
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.spec.cluster import API_VERSION, KIND
from tests.simulation.controllers import Node
from tests.simulation.engine import SimulatedEngine
from tests.simulation.history import History, Replica

NOISY, NOISY_CLUSTERS, HEALTHY_CLUSTERS = "noisy", 200, 20
MOST_DELAY = 1.0


class SilentHeads(SimulatedEngine):
    """The heads of one namespace are ready, but swallow packets."""

    silent = False

    async def look(self, wire: Wire) -> View:
        uid = wire.incarnations.get(HEAD, "")
        pod = self.kubernetes.server.with_uid(uid)
        if self.silent and pod is not None and pod["metadata"]["namespace"] == NOISY:
            await asyncio.Event().wait()
        return await super().look(wire)


class ManyClusters(History):
    """More clusters than other histories have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.namespaces = ()
        self.server.events = deque(maxlen=20_000)
        self.kubernetes.nodes = [Node("a", 10_000)]
        self.reactions: list[float] = []  # seconds until the operator changed the Deployment

    def create(self, namespace: str, name: str, **fields: object) -> None:
        spec = {"engine": "simulated", "replicas": 1, "workers": [{"cpu": 1}], **fields}
        metadata = {"name": name, "namespace": namespace}
        self.server.create(
            COMPUTE_CLUSTER.plural, {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        )

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Kubernetes and an operator run, and workers join their heads."""
        runs = (self.kubernetes.run(), self.replicas[0].run(), self._join())
        tasks = [asyncio.create_task(each) for each in runs]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self) -> None:
        while True:
            for cluster in self._clusters():
                self.engine.submit(cluster["metadata"]["name"])
            await asyncio.sleep(0.5)

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (the clock is virtual)
                await asyncio.sleep(0.05)


class Tenants(ManyClusters):
    """All clusters run; then `trouble` is called, and each healthy cluster is scaled up once within 40 s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine: SilentHeads = SilentHeads(self.kubernetes, self.random, self.log)
        self.replicas = [Replica("operator", self)]
        self.trouble: Callable[[Tenants], None] = lambda _: None
        self.starts: list[float] = []  # seconds until the cluster was Ready again

    async def _run(self) -> None:
        async with self._running() as tasks:
            for number in range(NOISY_CLUSTERS):
                self.create(NOISY, f"noisy-{number}")
            for number in range(HEALTHY_CLUSTERS):
                self.create(f"team-{number % 4}", f"healthy-{number}")
            await self._until(lambda: all(map(is_ready, self._clusters())), 300)
            self.trouble(self)
            await asyncio.sleep(0.5)
            scales = asyncio.gather(*(self._scale(number) for number in range(HEALTHY_CLUSTERS)))
            endings: list[asyncio.Future[Any]] = [scales, *tasks]
            for ended in (await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED))[0]:
                ended.result()

    async def _scale(self, number: int) -> None:
        await asyncio.sleep(2.0 * number)
        key = (COMPUTE_CLUSTER.plural, f"team-{number % 4}", f"healthy-{number}")
        self.server.patch(key, {"spec": {"replicas": 2}})
        began = self.clock.now
        deployments = [
            each
            for each in self.server.find("deployments", key[1])
            if each["metadata"]["labels"][names.CLUSTER] == key[2] and not each["metadata"]["name"].endswith("-head")
        ]
        worker = ("deployments", key[1], deployments[0]["metadata"]["name"])
        await self._until(lambda: self.server.get(worker)["spec"]["replicas"] == 2, 120)
        self.reactions.append(self.clock.now - began)
        await self._until(lambda: is_ready(self.server.get(key)), 120)
        self.starts.append(self.clock.now - began)


def is_ready(cluster: Object) -> bool:
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    generation = cluster["metadata"]["generation"]
    return any(
        each["type"] == "Ready" and each["status"] == "True" and each.get("observedGeneration") == generation
        for each in conditions
    )


def silent_heads(tenants: Tenants) -> None:
    tenants.engine.silent = True


def many_new_clusters(tenants: Tenants) -> None:
    for number in range(NOISY_CLUSTERS):
        tenants.create(NOISY, f"new-{number}")


def broken_specs(tenants: Tenants) -> None:
    for number in range(NOISY_CLUSTERS):
        tenants.create(NOISY, f"broken-{number}", workers=[{"cpu": "many"}])


TROUBLES: dict[str, Callable[[Tenants], None]] = {
    f"{NOISY_CLUSTERS} heads that are ready but do not answer": silent_heads,
    f"{NOISY_CLUSTERS} new clusters at once": many_new_clusters,
    f"{NOISY_CLUSTERS} broken specs": broken_specs,
}


def measure(trouble: Callable[[Tenants], None]) -> Tenants:
    tenants = Tenants(1)
    tenants.trouble = trouble
    tenants.run()
    return tenants


@pytest.fixture(scope="module")
def undisturbed() -> Tenants:
    return measure(lambda _: None)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_other_tenants_are_delayed_by_a_second_at_most(trouble: str, undisturbed: Tenants) -> None:
    tenants = measure(TROUBLES[trouble])
    assert len(tenants.starts) == HEALTHY_CLUSTERS
    assert max(tenants.reactions) <= max(undisturbed.reactions) + MOST_DELAY
    assert max(tenants.starts) <= max(undisturbed.starts) + MOST_DELAY
