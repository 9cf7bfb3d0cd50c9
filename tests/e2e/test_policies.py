"""Clusters behind their own NetworkPolicy, which is enforced here: they work, and pods elsewhere reach nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.kube import Cluster as Kubernetes
from lab.kube import Kube

from lab import kube as kubes
from oars.client.sync import Cluster
from oars.places.kube import names
from oars.spec.load import build
from oars.testing.driver import run_driver
from tests.contract import test_engines as engines
from tests.e2e import attacker
from tests.e2e.contract import SELECTORS, SMALL, TIMEOUT, until

pytestmark = [pytest.mark.timeout(600)]

# What clients of the namespace reach at the head in direct mode.
FOR_CLIENTS = {
    engines.TestDask: {8786, 8787},
    engines.TestRay: {6379, 8265, 10001},
    engines.TestPymars: {7104},
}
IMAGES = {engines.TestDask: "dask", engines.TestRay: "ray", engines.TestPymars: "mars-pymars"}
DASHBOARD = Path(__file__).parents[2] / "deploy/helm/oars/dashboards/oars.json"
LONG = pytest.mark.long


@pytest.fixture
def elsewhere(cluster_with_node: Kubernetes) -> Iterator[Kube]:
    """Another namespace, where others live."""
    with kubes.fresh_namespace(cluster_with_node, has_node=True) as kube:
        yield kube


def made(kube: Kube, engine: type[Any], **more: Any) -> Cluster:
    size = {**SMALL, "memory": "1Gi"}
    image = kube.image(IMAGES[engine])
    data = {**engine.spec, "image": image, "head": size, "workers": [{"replicas": 1, **size}], **more}
    return Cluster(
        build(data).spec, name="demo", timeout=TIMEOUT, mode="direct", namespace=kube.namespace,
        kubeconfig=str(kube.kubeconfig),
    )  # fmt: skip


def reaches(home: Kube, pod: str, address: str, port: int) -> bool:
    return bool(attacker.reached(home, pod, [(address, port)]))


def pod_of(home: Kube, role: str) -> dict[str, Any]:
    (found,) = home.pods(SELECTORS[role])
    return found


@pytest.mark.parametrize("engine", IMAGES, ids=["dask", "ray", "mars"])
def test_pods_of_other_namespaces_reach_no_port(kube: Kube, elsewhere: Kube, enforced: None, engine: type[Any]) -> None:
    """Whatever they call themselves: the operator, the head, a worker."""
    with made(kube, engine):
        image = kube.image(IMAGES[engine])
        attacker.start_all(elsewhere, image)
        attacker.start_pod(kube, "client", {"app": "client"}, image)
        kube.await_ready("visitor", 1)
        addresses = attacker.addresses_of(kube, [pod_of(kube, role) for role in ("head", "worker")])
        assert names.HELPER_PORT in {port for _, port in addresses}
        opened = FOR_CLIENTS[engine] | {names.HELPER_PORT}  # not the supervisor of Mars, which loads any pickle
        until(lambda: {port for _, port in attacker.reached(kube, "client", addresses)} == opened, 60)
        until(lambda: not attacker.all_reached(elsewhere, addresses), 60)


def test_clients_are_narrowed_to_labels(kube: Kube, enforced: None) -> None:
    image = kube.image("dask")
    with made(kube, engines.TestDask, expose={"clients": {"role": "driver"}}):
        attacker.start_pod(kube, "driver", {"role": "driver"}, image)
        attacker.start_pod(kube, "other", {"role": "other"}, image)
        kube.await_ready("visitor", 2)
        head = pod_of(kube, "head")["status"]["podIP"]
        until(lambda: reaches(kube, "driver", head, 8786))
        until(lambda: not reaches(kube, "other", head, 8786))


SCRAPE = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
except OSError as error:
    print(error)
"""


def _metrics(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("engine", "served"),
    [
        (engines.TestDask, {"head": (8787, "dask_scheduler_"), "worker": (8788, "dask_worker_")}),
        (engines.TestRay, {"head": (8080, "ray_node_"), "worker": (8080, "ray_node_")}),
    ],
    ids=["dask", "ray"],
)
def test_metrics_are_read_from_another_namespace(
    kube: Kube, elsewhere: Kube, enforced: None, engine: type[Any], served: dict[str, tuple[int, str]]
) -> None:
    """By a Prometheus there, which reaches no other port, and finds what the dashboard of the chart shows. Pods of a
    third namespace reach nothing."""
    shown = set(re.findall(r"\b(?:dask|ray)_\w+", DASHBOARD.read_text()))
    monitoring = {names.NAMESPACE_NAME: elsewhere.namespace}
    with (
        made(kube, engine, expose={"metrics": monitoring}),
        kubes.fresh_namespace(kube.cluster, has_node=True) as third,
    ):
        for home in (elsewhere, third):
            attacker.start_pod(home, "prometheus", {"app": "prometheus"}, kube.image(IMAGES[engine]))
            home.await_ready("visitor", 1)
        pods = {role: pod_of(kube, role) for role in served}
        opened = {port for port, _ in served.values()}
        for role, (port, prefix) in served.items():
            wanted = {name for name in shown if name.startswith(prefix)}
            url = f"http://{pods[role]['status']['podIP']}:{port}/metrics"
            words = ("exec", "prometheus", "--", "python3", "-c", SCRAPE, url)
            until(lambda words=words, wanted=wanted: wanted and wanted <= _metrics(elsewhere.kubectl(*words)))  # type: ignore[misc]
        addresses = attacker.addresses_of(kube, pods.values())
        until(lambda: {port for _, port in attacker.reached(elsewhere, "prometheus", addresses)} == opened, 60)
        until(lambda: not attacker.reached(third, "prometheus", addresses), 60)


@pytest.mark.parametrize(
    "engine",
    [engines.TestDask, pytest.param(engines.TestRay, marks=LONG), pytest.param(engines.TestPymars, marks=LONG)],
    ids=["dask", "ray", "mars"],
)
def test_cluster_works_behind_its_network_policy(kube: Kube, enforced: None, engine: type[Any]) -> None:
    """From outside the driver comes through the API server, which no policy shuts out."""
    with made(kube, engine) as demo:
        assert any(line.startswith("result") for line in run_driver(demo, engine.work, 180))
        attacker.start_pod(kube, "client", {"app": "client"}, kube.image(IMAGES[engine]))
        kube.await_ready("visitor", 1)
        head, worker = pod_of(kube, "head"), pod_of(kube, "worker")
        served = min(FOR_CLIENTS[engine])
        own = worker["spec"]["containers"][0]["ports"][0]["containerPort"]
        at_head, at_worker = (head["status"]["podIP"], served), (worker["status"]["podIP"], own)
        until(lambda: reaches(kube, "client", *at_head))
        until(lambda: not reaches(kube, "client", *at_worker))  # clients use the head only
        until(lambda: reaches(kube, head["metadata"]["name"], *at_worker))  # members reach each other
        kube.kubectl("delete", "pod", worker["metadata"]["name"], seconds=120)
        until(lambda: worker["metadata"]["name"] not in {member.id for member in demo.members()}, 60)
        demo.wait(timeout=TIMEOUT)
        assert any(line.startswith("result") for line in run_driver(demo, engine.work, 180))
