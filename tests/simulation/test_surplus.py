"""The check that a Deployment does not grow beyond what is desired."""

from __future__ import annotations

import pytest

from oars.kube.kinds import Object
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from tests.simulation.history import NAMESPACE, History


def history_of_two_workers() -> tuple[History, str]:
    """A history with a cluster of two workers, and the cluster's uid."""
    history = History(1)
    cluster = {"metadata": {"name": "demo", "namespace": NAMESPACE}, "spec": {"replicas": 2}}
    return history, history.server.create(COMPUTE_CLUSTER.plural, cluster)["metadata"]["uid"]


def deployment(name: str, size: int, owner: str) -> Object:
    metadata = {
        "name": name, "namespace": NAMESPACE, "labels": {names.CLUSTER: "demo", names.GROUP: "worker"},
        "ownerReferences": [{"uid": owner}],
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"replicas": size}}


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((2, 2), ""),
        ((3,), "worker-0 has 3 replicas, but at most 2 are desired"),
        ((2, 2, 2), "6 replicas, but at most 2 and a surge of as many are desired"),
    ],
)
def test_deployments_beyond_the_desired_size_are_a_problem(sizes: tuple[int, ...], problem: str) -> None:
    history, owner = history_of_two_workers()
    for number, size in enumerate(sizes):
        history.server.create("deployments", deployment(f"worker-{number}", size, owner))
    assert history.problem == problem


def test_growing_deployment_is_a_problem() -> None:
    history, owner = history_of_two_workers()
    history.server.create("deployments", deployment("worker", 2, owner))
    history.server.patch(("deployments", NAMESPACE, "worker"), {"spec": {"replicas": 3}})
    assert history.problem == "worker has 3 replicas, but at most 2 are desired"


def test_deployment_whose_owner_is_gone_is_no_problem() -> None:
    """A late write of the operator creates it for a cluster that was deleted and created again (seed 20183)."""
    history, owner = history_of_two_workers()
    history.server.create("deployments", deployment("worker-of-the-deleted", 3, "uid-of-the-deleted"))
    for number in range(2):
        history.server.create("deployments", deployment(f"worker-{number}", 2, owner))
    assert history.problem == ""
