"""Dask's extension of JupyterLab with the classic KubeCluster: its own manager starts, scales, adapts and closes one.
It is not a development dependency: it brings JupyterLab, and with jupyter-server-proxy each Dask scheduler starts more
slowly."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab.kube import Kube
from lab.wait import until

import oars
from oars import engines
from oars.base.settings import Settings
from oars.client.backend import Driver
from oars.envs.build import Environments
from oars.spec.load import build
from oars.testing.driver import DriverProgram

pytestmark = pytest.mark.timeout(600)

EXTENSION = "dask-labextension==7.0.0"
PROGRAM = """
import sys
sys.path += FOLDERS
import asyncio, dask
from oars.compat.dask_kubernetes import make_pod_spec

async def workers(manager, cluster, count):
    async with asyncio.timeout(120):
        while manager.get_cluster(cluster)["workers"] != count:
            await asyncio.sleep(0.2)
    print("workers", count, flush=True)

async def main():
    from dask_labextension.manager import DaskClusterManager
    async with DaskClusterManager() as manager:
        cluster = (await manager.start_cluster(configuration={"name": "mine", "workers": 1}))["id"]
        await workers(manager, cluster, 1)
        await manager.scale_cluster(cluster, 2)
        await workers(manager, cluster, 2)
        adapted = manager.adapt_cluster(cluster, 1, 1)
        print("adapts", adapted["adapt"], flush=True)
        await workers(manager, cluster, 1)
        (listed,) = manager.list_clusters()
        print("listed", listed["name"], listed["dashboard_link"], flush=True)
        assert (await manager.close_cluster(cluster))["id"] == cluster and not manager.list_clusters()
    print("closed", flush=True)

template = make_pod_spec(IMAGE, memory_limit="512Mi", cpu_request=0.1)
dask.config.set({"kubernetes.namespace": NAMESPACE, "labextension.factory": {
    "module": "oars.compat.dask_kubernetes.classic", "class": "KubeCluster", "args": [],
    "kwargs": {"pod-template": dict(template)},
}})
asyncio.run(main())
"""


@dataclass(frozen=True)
class Jupyter:
    """A Python with Dask and the extension, in which Oars is installed."""

    kube: Kube

    def driver(self) -> Driver:
        needs = engines.get("dask").needs(build({"engine": "dask"}).spec)
        cache = Environments(Settings.from_environ(os.environ).cache_dir)
        env = cache.prepare("dask", needs, (EXTENSION,), lambda _: None)
        return Driver(str(env.python), {**os.environ, "KUBECONFIG": str(self.kube.kubeconfig)})


def test_jupyterlab_extension_manages_a_cluster(kube: Kube) -> None:
    folders = [str(Path(oars.__file__).parents[1]), sysconfig.get_paths()["purelib"]]
    values = {"FOLDERS": folders, "IMAGE": kube.image("dask"), "NAMESPACE": kube.namespace}
    source = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + PROGRAM
    with DriverProgram(Jupyter(kube), source) as program:
        program.expect("workers 1", 300)
        program.expect("workers 2", 120)
        program.expect("adapts {'minimum': 1, 'maximum': 1}", 30)
        program.expect("workers 1", 120)
        assert program.expect("listed mine http://", 30).endswith("/status")
        program.expect("closed", 60)
    until("nothing is left", lambda: not kube.kubectl("get", "pods,services,pdb", "-l", "app=dask", "-o", "name"), 90)
