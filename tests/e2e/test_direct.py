"""Direct mode's own promises: it goes when its client does, is reached through the API server, and outlives trouble."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from lab.kube import Kube

from oars.base.settings import Settings
from oars.client import tunnels
from oars.client.backend import Location
from oars.client.kubernetes import KubeBackend
from oars.client.sync import Cluster
from oars.service import Service
from oars.spec.load import build
from oars.testing.driver import DriverProgram, run_driver
from tests.contract.test_engines import TestDask as Dask
from tests.contract.test_engines import TestRay as Ray
from tests.contract.test_engines import TestXorbits as Xorbits
from tests.e2e.contract import SMALL, TIMEOUT, await_renewed, ours, until

pytestmark = [pytest.mark.timeout(600)]


def small(home: Kube, engine: str = "dask", *, tied: bool = True, **more: Any) -> Cluster:
    spec = {
        "engine": engine,
        "image": home.image({"mars": "mars-xorbits"}.get(engine, engine)),
        "head": {**SMALL, "memory": "1Gi"},
        "workers": [{"replicas": 1, "memory": "512Mi", **SMALL}],
        **more,
    }
    return Cluster(
        build(spec).spec, name="demo", timeout=TIMEOUT, namespace=home.namespace, kubeconfig=str(home.kubeconfig),
        mode="direct", tied=tied,
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


@pytest.mark.parametrize(
    ("engine", "hold"),
    [
        ("dask", Dask.hold),
        pytest.param("ray", Ray.hold, marks=pytest.mark.long),
        pytest.param("mars", Xorbits.hold, marks=pytest.mark.long),
    ],
)
def test_detached_cluster_ends_when_its_last_client_left(kube: Kube, engine: str, hold: str) -> None:
    """No program of Oars runs then: the helper next to the head asks the engine, and deletes the cluster."""

    async def limit(**lifetime: str) -> None:
        backend = KubeBackend(Settings.from_environ(os.environ), os.environ, location)
        handle = backend.cluster("demo")
        spec = await handle.spec()
        await handle.apply(spec.model_copy(update={"lifetime": type(spec.lifetime).model_validate(lifetime)}))
        await backend.close()

    location = Location("kubernetes", namespace=kube.namespace, kubeconfig=str(kube.kubeconfig))
    with small(kube, engine, tied=False, lifetime={"max": "1h"}) as cluster:
        before = cluster.status().expires
        assert before is not None and before.reason == "MaxLifetime"
        (head,) = kube.pods("oars.dev/group=head")
        with DriverProgram(cluster, hold) as program:
            program.expect("held")
            asyncio.run(limit(noClient="8s"))
            until(lambda: cluster.status().expires is None, 60)  # the new limit counts, and a client is there
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
    assert [pod["metadata"]["uid"] for pod in kube.pods("oars.dev/group=head")] == [head["metadata"]["uid"]]
    until(lambda: not ours(kube), 150)
    (gone,) = asyncio.run(Service(os.environ, location).list_gone()).clusters
    assert (gone.name, gone.engine, gone.reason, gone.mode) == ("demo", engine, "NoClient", "direct")


def test_client_works_through_the_api_server_alone(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no address of the cluster can be dialled: every port is forwarded, and follows the head."""
    monkeypatch.setattr(tunnels, "endpoints", lambda *_: [])
    with small(kube) as cluster:
        assert "127.0.0.1" in cluster.address
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
        (head,) = kube.pods("oars.dev/group=head")
        kube.kubectl("delete", "pod", head["metadata"]["name"], "--grace-period=0", "--force")
        await_renewed(cluster, kube, 1, head)
        cluster.wait(timeout=TIMEOUT)
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
    until(lambda: not ours(kube), 90)


def test_client_works_through_a_node_port(kube: Kube) -> None:
    with small(kube, expose={"type": "NodePort"}) as cluster:
        opened = {port["nodePort"] for port in kube.api.get(kube.path("services/demo-head"))["spec"]["ports"]}
        assert int(cluster.address.rpartition(":")[2]) in opened
        assert any(line.startswith("result") for line in run_driver(cluster, Dask.work))
