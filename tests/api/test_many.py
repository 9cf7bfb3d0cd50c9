"""Numbers, with simulated pods: many clusters, and a large one. How fast it goes is measured by bench/kube_scale.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from bench import kube_scale
from lab.cluster import Lab
from lab.kube import is_ready
from lab.wait import until
from tests.api.stage import Operator, Stage, quiet_for

from oars.kube import config
from oars.kube.client import Client
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

Operators = Callable[..., Operator]
SECONDS = 300
REST = 15


@pytest.fixture
def operator(stage: Stage, operators: Operators, kwok: Callable[[int], list[str]]) -> Operator:
    kwok(1 + kube_scale.MOST_PODS["pair"] // kube_scale.PODS_PER_NODE)
    return operators()


@asynccontextmanager
async def connected(stage: Stage) -> AsyncIterator[Client]:
    async with Client(config.load({}, kubeconfig=stage.kube.kubeconfig), timeout=120) as client:
        yield client


def create(stage: Stage, count: int, workers: int) -> None:
    """All at once, and wait until each says that it is ready."""

    async def story() -> None:
        where = stage.kube.namespace
        objects = [obj for number in range(count) for obj in kube_scale.by_oars(f"c{number}", where, workers)]
        async with connected(stage) as client:
            await kube_scale.seconds_until(client, COMPUTE_CLUSTER, where, objects, count, kube_scale.is_ready)

    asyncio.run(story())


def delete_all(stage: Stage) -> None:
    async def story() -> None:
        async with connected(stage) as client:
            await kube_scale.delete_all(client, COMPUTE_CLUSTER, stage.kube.namespace)

    asyncio.run(story())
    until("nothing is left", lambda: not stage.left(), SECONDS, 2)


def guarded(stage: Stage) -> int:
    """Budgets are the last that clusters get."""
    return len(stage.kube.api.get(stage.kube.path("poddisruptionbudgets", "apis/policy/v1"))["items"])


def test_300_clusters_start_rest_and_stop(stage: Stage, operator: Operator, lab: Lab) -> None:
    create(stage, 300, 3)
    assert sum(map(is_ready, stage.kube.pods(names.CLUSTER))) == 300 * 4
    until("all are guarded", lambda: guarded(stage) == 300, SECONDS, 1)

    def written() -> int:
        return int(kube_scale.writes(lab.api))

    until("nothing is written, nor in namespaces of earlier tests", lambda: quiet_for(REST, written) == 0, SECONDS)
    until("nobody is due and waits", lambda: operator.metrics()["oars_queue_depth"] == 0)
    delete_all(stage)
    assert not operator.says("Traceback")


def test_1000_workers_start_and_most_are_removed(stage: Stage, operator: Operator) -> None:
    create(stage, 1, 1000)
    before = stage.workers("c0")
    assert len(before) == 1000
    stage.edit("c0", {"replicas": 10})
    assert stage.await_ready("c0", SECONDS)["ready"] == "10/10"
    stage.until("c0", "has ten workers", lambda: len(stage.pods("c0", "worker")) == 10, SECONDS)
    assert stage.workers("c0") < before, "those who stay are none that came instead"
    delete_all(stage)
    assert not operator.says("Traceback")
