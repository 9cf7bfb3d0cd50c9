"""Direct mode's own promises: it goes when its client does, is reached through the API server, and outlives trouble."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from lab.kube import Kube

from oars.client import tunnels
from oars.client.sync import Cluster
from oars.spec.load import build
from oars.testing.driver import run_driver
from tests.contract.test_engines import TestDask as Dask
from tests.e2e.contract import SMALL, TIMEOUT, ours, renewed, until

pytestmark = [pytest.mark.timeout(600)]


def small(home: Kube, **more: Any) -> Cluster:
    spec = {
        "engine": "dask",
        "image": home.image("dask"),
        "head": {**SMALL, "memory": "1Gi"},
        "workers": [{"replicas": 1, "memory": "512Mi", **SMALL}],
        **more,
    }
    return Cluster(
        build(spec).spec, name="demo", timeout=TIMEOUT, namespace=home.namespace, kubeconfig=str(home.kubeconfig),
        mode="direct",
    )  # fmt: skip


def test_tied_cluster_is_removed_when_its_client_is_killed(kube: Kube) -> None:
    """kill -9 leaves nobody to clean up; the helper beside the head does it when the Lease is no longer renewed."""
    source = f"""
import sys
from oars import Cluster
from oars.spec.load import build
spec = build({{"engine": "dask", "image": {kube.image("dask")!r}, "head": {{"cpu": 0.3, "burst": True}},
    "workers": [{{"replicas": 1, "cpu": 0.3, "burst": True}}], "lifetime": {{"orphaned": "30s"}}}}).spec
cluster = Cluster(spec, name="demo", timeout="120s", mode="direct",
    namespace={kube.namespace!r}, kubeconfig={str(kube.kubeconfig)!r})
print("ready", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline().strip() == "ready"
        assert any(name.startswith("pod/demo-head") for name in ours(kube))
        owner.send_signal(signal.SIGKILL)
    until(lambda: not ours(kube), 150)


def test_client_works_through_the_api_server_alone(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no address of the cluster can be dialled: every port is forwarded, and follows the head."""
    monkeypatch.setattr(tunnels, "endpoints", lambda *_: [])
    with small(kube) as cluster:
        assert "127.0.0.1" in cluster.address
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
        head = next(pod["metadata"]["name"] for pod in kube.pods("oars.dev/group=head"))
        kube.kubectl("delete", "pod", head, "--grace-period=0", "--force")
        until(lambda: renewed(cluster, kube, 1), 180)
        cluster.wait(timeout=TIMEOUT)
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
    until(lambda: not ours(kube), 90)


def test_client_works_through_a_node_port(kube: Kube) -> None:
    with small(kube, expose={"type": "NodePort"}) as cluster:
        opened = {port["nodePort"] for port in kube.api.get(kube.path("services/demo-head"))["spec"]["ports"]}
        assert int(cluster.address.rpartition(":")[2]) in opened
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
