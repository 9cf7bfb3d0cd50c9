"""The newer KubeCluster of dask-kubernetes on real pods, with Oars' operator and without."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client
from lab.kube import Kube
from lab.wait import until

from oars.base.errors import EngineUnreachable, NameInUse, NotFound, StartFailed
from oars.compat.dask_kubernetes.operator import KubeCluster, discover, make_cluster_spec
from oars.operator import rbac
from oars.operator.rbac import Subject
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account, may
from tests.e2e.contract import ours
from tests.e2e.drivers import await_end, driver_pod

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:\nMismatched versions", "ignore:Mismatched")]

SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}


@pytest.fixture
def space(kube: Kube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The namespace, found by the environment and by Dask's configuration as users of that project do."""
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    monkeypatch.setenv("OARS_STATE_DIR", str(tmp_path / "state"))
    settings = {"namespace": kube.namespace, "image": kube.image("dask"), "resources": SMALL, "resource-timeout": 120}
    with dask.config.set({f"kubernetes.{key}": value for key, value in settings.items()}):
        yield kube


def test_life_cycle(space: Kube) -> None:
    """Create, scale with data, worker groups, a second client, logs, close."""
    with KubeCluster(name="foo", n_workers=1, env={"A": "1"}) as cluster, Client(cluster) as client:
        client.wait_for_workers(1, 120)
        assert client.submit(sum, [1, 2]).result(60) == 3
        cluster.scale(2)
        client.wait_for_workers(2, 120)
        held = client.map(lambda n: n, range(20))
        assert sum(client.gather(held)) == 190
        cluster.scale(1)
        until("one is left", lambda: len(client.scheduler_info()["workers"]) == 1, 90)
        assert sum(client.gather(held)) == 190

        cluster.add_worker_group("high-mem", n_workers=1, env={"B": "2"})
        until("the group is there", lambda: any("high-mem" in name for name in names(client)), 120)
        assert asyncio.run(found()) == [("foo", KubeCluster)]
        again = KubeCluster.from_name("foo")
        again.scale(2, worker_group="high-mem")
        until("it has two", lambda: sum("high-mem" in name for name in names(client)) == 2, 120)
        again.close()
        cluster.delete_worker_group("high-mem")
        until("the group is gone", lambda: not any("high-mem" in name for name in names(client)), 120)
        assert any("Scheduler at" in log for log in cluster.get_logs().values())
        assert cluster.dashboard_link.endswith("/status")
        with pytest.raises(NameInUse):
            KubeCluster(name="foo", create_mode="CREATE_ONLY")
    until("nothing is left", lambda: not ours(space), 90)
    with pytest.raises(NotFound):
        KubeCluster.from_name("foo")


async def found() -> list[tuple[str, type[KubeCluster]]]:
    return [each async for each in discover()]


def names(client: Client) -> list[str]:
    return [info["name"] for info in client.scheduler_info()["workers"].values()]


def test_custom_spec_and_adaptive_scaling_with_the_operator(space: Kube, operator: Path) -> None:
    body = make_cluster_spec("bar", image=space.image("dask"), n_workers=0, resources=SMALL)
    body["spec"]["worker"]["spec"]["containers"][0]["workingDir"] = "/tmp"
    with KubeCluster(custom_cluster_spec=body) as cluster, Client(cluster) as client:
        cluster.adapt(minimum=0, maximum=1)
        assert client.submit(sum, [1, 2]).result(120) == 3
        until("it shrank", lambda: not names(client), 120)
        cluster.scale(1)
        client.wait_for_workers(1, 120)
    until("nothing is left", lambda: not ours(space), 90)


INSIDE = """
import dask
from distributed import Client
from oars.compat.dask_kubernetes.operator import KubeCluster
size = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}
# No port can be forwarded here: the account has no such right.
with KubeCluster(
    name="foo", image=IMAGE, n_workers=1, resources=size, resource_timeout=120, port_forward_cluster_ip=False,
    worker_command="dask-worker --lifetime 1h",
) as cluster, Client(cluster) as client:
    client.wait_for_workers(1, 120)
    print("sum", client.submit(sum, [1, 2]).result(60), "threads", sum(client.nthreads().values()))
    lifetime = client.submit(dask.config.get, "distributed.worker.lifetime.duration").result(60)
    print("lifetime", lifetime)
    cluster.scale(2)
    client.wait_for_workers(2, 120)
print("done")
"""


def test_program_in_a_pod(kube: Kube) -> None:
    """With the rights that `oars rbac` prints, without those to forward ports."""
    stage = Stage(kube)
    account(stage, "ann")
    objects = rbac.direct_role(kube.namespace, Subject("ServiceAccount", "ann", kube.namespace))
    for role in (each for each in objects if each["kind"] == "Role"):
        role["rules"] = [rule for rule in role["rules"] if "pods/portforward" not in rule["resources"]]
    kube.apply(*objects)
    until("ann has her rights", lambda: may(stage, "ann", "create", "configmaps"))
    kube.apply(driver_pod(kube, f"IMAGE = {kube.image('dask')!r}\n{INSIDE}"))
    log = await_end(kube, "driver")
    assert "sum 3 threads 1" in log and "lifetime 1h" in log and "done" in log, log
    until("nothing is left", lambda: not ours(kube), 90)


def test_node_port_and_idle_end(space: Kube) -> None:
    """It is reached at a port of the node, and deleted when it was idle."""
    cluster = KubeCluster(name="idle", n_workers=1, scheduler_service_type="NodePort", idle_timeout=4)
    try:
        assert not cluster.scheduler_address.startswith("tls://127.0.0.1:")
        until("it is closed", lambda: cluster.status.name == "closed", 120)
    finally:
        cluster.close()
    until("nothing is left", lambda: not ours(space), 90)


FORGOTTEN = """
from oars.compat.dask_kubernetes.operator import KubeCluster
cluster = KubeCluster(name="forgotten", n_workers=1, idle_timeout=6, shutdown_on_close=False, namespace=NAMESPACE,
                      image=IMAGE, resources=RESOURCES, resource_timeout=120)
print("ready", flush=True)
input()
"""


def test_idle_cluster_ends_without_its_program(space: Kube) -> None:
    """The program is killed, and there is no operator: the helper next to the head ends the cluster."""
    values = {"NAMESPACE": space.namespace, "IMAGE": space.image("dask"), "RESOURCES": SMALL}
    source = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + FORGOTTEN
    with subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True) as program:
        assert program.stdout is not None
        assert any(line.strip() == "ready" for line in program.stdout)
        program.kill()
    assert ours(space), "it outlives its program"
    until("it ended by itself", lambda: not ours(space), 120)


def test_cluster_that_cannot_start_or_be_reached_leaves_nothing(space: Kube) -> None:
    with pytest.raises(StartFailed, match="has no program dask"):
        KubeCluster(name="empty", image=space.image("base"))
    until("nothing is left", lambda: not ours(space), 90)
    try:  # the lab's Services can be reached from its host, but not at all times
        cluster = KubeCluster(name="inside", n_workers=0, port_forward_cluster_ip=False)
    except EngineUnreachable as error:
        assert "port_forward_cluster_ip=False" in error.message
    else:
        assert not cluster.scheduler_address.startswith("tls://127.0.0.1:"), "it was forwarded"
        cluster.close()
    until("nothing is left", lambda: not ours(space), 90)
