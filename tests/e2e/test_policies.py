"""Clusters behind their own NetworkPolicy, which is enforced here: they work, and strangers stay outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lab.kube import Cluster as Kubernetes
from lab.kube import Kube

from lab import kube as kubes
from oars.client.sync import Cluster
from oars.spec.load import build
from oars.testing.driver import run_driver
from tests.contract import test_engines as engines
from tests.e2e.contract import SELECTORS, SMALL, TIMEOUT, until

pytestmark = [pytest.mark.timeout(600)]

REACHED = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


@pytest.fixture
def elsewhere(cluster_with_node: Kubernetes) -> Iterator[Kube]:
    """Another namespace, where others live."""
    with kubes.fresh_namespace(cluster_with_node, has_node=True) as kube:
        yield kube


def start_visitor(home: Kube, image: str) -> None:
    container = {"name": "main", "image": image, "command": ["sleep", "600"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": "visitor", "labels": {"app": "visitor"}}
    home.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    home.await_ready("app=visitor", 1)


def reaches(home: Kube, pod: str, address: str, port: int) -> bool:
    """Whether a pod gets through; silence and a refusal are told apart from each other by nobody who is shut out."""
    line = f"python3 -c '{REACHED}' {address} {port} 2>/dev/null && echo yes || echo no"
    return home.kubectl("exec", pod, "--", "bash", "-c", line).strip() == "yes"


def pod_of(home: Kube, role: str) -> dict[str, Any]:
    (found,) = home.pods(SELECTORS[role])
    return found


@pytest.mark.parametrize(
    ("engine", "image"),
    [
        (engines.TestDask, "dask"),
        pytest.param(engines.TestRay, "ray", marks=pytest.mark.long),
        pytest.param(engines.TestPymars, "mars-pymars", marks=pytest.mark.long),
    ],
    ids=["dask", "ray", "mars"],
)
def test_network_policy_admits_members_and_the_namespace_only(
    kube: Kube, elsewhere: Kube, enforced: None, engine: type[Any], image: str
) -> None:
    """From outside the driver comes through the API server, which no policy shuts out."""
    size = {**SMALL, "memory": "1Gi"}
    data = {**engine.spec, "image": kube.image(image), "head": size, "workers": [{"replicas": 1, **size}]}
    with Cluster(
        build(data).spec, name="demo", timeout=TIMEOUT, mode="direct", namespace=kube.namespace,
        kubeconfig=str(kube.kubeconfig),
    ) as demo:  # fmt: skip
        assert any(line.startswith("result") for line in run_driver(demo, engine.work, 180))
        for home in (kube, elsewhere):
            start_visitor(home, kube.image(image))
        head, worker = pod_of(kube, "head"), pod_of(kube, "worker")
        served = kube.api.get(kube.path("services/demo-head"))["spec"]["ports"][0]["port"]
        own = worker["spec"]["containers"][0]["ports"][0]["containerPort"]
        at_head, at_worker = (head["status"]["podIP"], served), (worker["status"]["podIP"], own)
        until(lambda: not reaches(elsewhere, "visitor", *at_head))
        until(lambda: not reaches(elsewhere, "visitor", *at_worker))
        until(lambda: reaches(kube, "visitor", *at_head))  # whoever shares the namespace may use the cluster
        assert not reaches(kube, "visitor", *at_worker), "but not speak to its workers"
        until(lambda: reaches(kube, head["metadata"]["name"], *at_worker))  # which members do
        kube.kubectl("delete", "pod", worker["metadata"]["name"], seconds=120)
        until(lambda: worker["metadata"]["name"] not in {member.id for member in demo.members()}, 60)
        demo.wait(timeout=TIMEOUT)
        assert any(line.startswith("result") for line in run_driver(demo, engine.work, 180))
