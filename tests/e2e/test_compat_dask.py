"""The classic KubeCluster of dask-kubernetes on real pods, with the code blocks and the Role of its page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest
import yaml
from distributed import Client, Security
from lab.api import Object
from lab.cluster import Lab
from lab.kube import Kube
from lab.wait import until

from oars.base.errors import Denied, OarsError, StartFailed, TimedOut
from oars.compat.dask_kubernetes import KubeConfig
from oars.compat.dask_kubernetes.classic import KubeCluster, make_pod_spec
from oars.secure.secrets import cluster_secrets
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account, cluster_wide, kubeconfig_of, may
from tests.compat.blocks import DASK_KUBERNETES_CLASSIC, page
from tests.compat.edits import DASK, DASK_SIZES, added, edited, edits
from tests.e2e.drivers import await_end, driver_pod
from tests.e2e.images import with_programs

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:\nMismatched versions", "ignore:Mismatched versions"),  # Python 3.11.x
]

PAGE = page(DASK_KUBERNETES_CLASSIC)
ROLE = next(
    yaml.safe_load(edited(code, edits(DASK, "Role", "Role's name"))) for _, code in PAGE if "kind: Role" in code
)
NODES_RULE = next(yaml.safe_load(code) for _, code in PAGE if '"nodes"' in code)
(FORWARD_RULE,) = yaml.safe_load(added(DASK, "Role, if"))
WORKER_SPEC, GPU_SPEC = (code for language, code in PAGE if language == "yaml" and "kind: Pod" in code)


def left(kube: Kube) -> list[str]:
    """All that a KubeCluster made in the namespace."""
    return kube.kubectl("get", "pods,services,pdb", "-l", "app=dask", "-o", "name").split()


def await_empty(kube: Kube) -> None:
    until("nothing is left", lambda: not left(kube), 90)


def template(kube: Kube, **more: Any) -> Any:
    return make_pod_spec(image=kube.image("dask"), memory_limit="512Mi", cpu_request=0.1, **more)


def workers(client: Client) -> int:
    return len(client.scheduler_info()["workers"])


def bind(kube: Kube, *rules: Object) -> None:
    """The page's Role, with further rules, for the account ann."""
    role = {**ROLE, "rules": [*ROLE["rules"], *rules]}
    binding = {
        "apiVersion": role["apiVersion"],
        "kind": "RoleBinding",
        "metadata": {"name": "ann"},
        "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": kube.namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]},
    }
    stage = Stage(kube)
    account(stage, "ann")
    kube.apply(role, binding)
    until("ann has her rights", lambda: may(stage, "ann", "create", "pods"))
    assert not may(stage, "ann", "list", "secrets") and not may(stage, "ann", "create", "configmaps")


@pytest.fixture
def ann(kube: Kube, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`ann(*rules)`: arguments for a KubeCluster of a user outside, with the page's Role and these rules."""

    def arguments(*rules: Object) -> dict[str, Any]:
        bind(kube, *rules)
        config = kubeconfig_of(Stage(kube), "ann", tmp_path / "ann")
        return {"namespace": kube.namespace, "auth": KubeConfig(str(config))}

    return arguments


@pytest.fixture
def user(ann: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Arguments for a KubeCluster with the page's Role and the right to forward ports."""
    return ann(FORWARD_RULE)


def changed(code: str, kube: Kube) -> str:
    """The page's code with the changes that the migration page lists, and in a size for the lab."""
    return edited(code, [*DASK_SIZES, *edits(DASK, "import", "image", image=kube.image("dask"))])


@contextlib.contextmanager
def configured(kube: Kube, kubeconfig: Path | str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with dask.config.set({"kubernetes.namespace": kube.namespace}):
        yield


# The page, as a user outside


def test_quickstart_of_the_page(
    kube: Kube, ann: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ann(FORWARD_RULE)["auth"].config_file
    first, second = [code for language, code in PAGE if language == "python"][:2]
    found: dict[str, Any] = {}
    with configured(kube, config, monkeypatch):
        exec(changed(first, kube), found)
        try:
            exec(changed(second, kube), found)
            assert "1.0" in capsys.readouterr().out
            cluster = found["cluster"]
            assert cluster.scheduler_address.startswith("tcp://127.0.0.1:"), "through a port-forward"
            assert cluster.scheduler.address == f"tcp://{cluster.name}.{kube.namespace}:8786"
            assert found["pod_spec"].spec.containers[0].args[0] == "dask-worker"
        finally:
            if "client" in found:
                found["client"].close()
            found["cluster"].close()
    await_empty(kube)


def test_worker_spec_of_the_page(
    kube: Kube, ann: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The YAML file, by its path and by the configuration; its pods have what the page says."""
    config = ann(FORWARD_RULE)["auth"].config_file
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker-spec.yml").write_text(changed(WORKER_SPEC, kube))
    code = [code for language, code in PAGE if language == "python"][2]
    found: dict[str, Any] = {}
    with configured(kube, config, monkeypatch):
        exec(changed(code, kube), found)
        with found["cluster"] as cluster, Client(cluster) as client:
            client.wait_for_workers(1, 120)
            (pod,) = cluster.pods()
            env = {each.name: each.value for each in pod.spec.containers[0].env}
            assert env["EXTRA_PIP_PACKAGES"] == "git+https://github.com/dask/distributed"
            assert pod.metadata.labels["foo"] == "bar" and pod.spec.restart_policy == "Never"
            assert {each["key"] for each in pod.spec.tolerations} >= {
                "k8s.dask.org/dedicated",
                "k8s.dask.org_dedicated",
            }
            (info,) = client.scheduler_info()["workers"].values()
            assert info["nthreads"] == 2 and info["name"] == pod.metadata.name
            assert pod.metadata.owner_references[0].uid == cluster.scheduler_pod.metadata.uid
        with dask.config.set({"kubernetes.worker-template-path": "worker-spec.yml"}), KubeCluster() as again:
            assert again.status.name == "running"
    await_empty(kube)


# Stands in for dask-cuda, which needs a graphics card: Dask's worker without the options for its memory.
CUDA_WORKER = """#!/bin/sh
set -- "$@" --
while [ "$1" != -- ]; do
  if [ "$1" = --rmm-pool-size ]; then echo "a pool of $2"; shift 2; else set -- "$@" "$1"; shift; fi
done
shift
exec dask worker "$@"
"""


@pytest.fixture
def two_gpus(kube: Kube) -> Iterator[None]:
    """The node says that it has two, one of them for the scheduler: the page's template is that of all pods."""
    (node,) = kube.api.get("/api/v1/nodes")["items"]
    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
    amounts = {"nvidia.com/gpu": "2"}
    kube.api.patch(path, {"status": {"capacity": amounts, "allocatable": amounts}})
    yield
    nothing = dict.fromkeys(amounts)
    kube.api.patch(path, {"status": {"capacity": nothing, "allocatable": nothing}})


def test_gpu_spec_of_the_page(kube: Kube, user: dict[str, Any], two_gpus: None, tmp_path: Path) -> None:
    """The pods have the GPUs, and dask-cuda's worker has its options."""
    image = with_programs(kube, "oars.lab/dask-cuda-worker:1", tmp_path, {"dask-cuda-worker": CUDA_WORKER})
    path = tmp_path / "gpu-spec.yml"
    path.write_text(edited(GPU_SPEC, [*DASK_SIZES, *edits(DASK, "import", "image", image=image)]))
    with KubeCluster(str(path), n_workers=1, **user) as cluster, Client(cluster) as client:
        client.wait_for_workers(1, 120)
        (pod,) = cluster.pods()
        resources = pod.spec.containers[0].resources
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
        assert client.submit(sum, [1, 2]).result(60) == 3
        (log,) = cluster.logs().values()
        assert "a pool of 10GB" in log, log
    await_empty(kube)


def test_role_of_the_page_does_not_allow_port_forwards(kube: Kube, ann: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(Denied, match=r"may not \w+ pods/portforward") as denied:
        KubeCluster(template(kube), **ann())
    assert 'resources: ["pods/portforward"]' in denied.value.hint
    await_empty(kube)


# The page, as a pod inside


INSIDE = """
import os, time
import dask, distributed
os.chdir("/tmp")
open("worker-spec.yml", "w").write(SPEC)
dask.config.set({"kubernetes.count.start": 1})
exec(CODE)
client.wait_for_workers(1, 120)
print("namespace", cluster.namespace)
if MODE == "remote":
    assert cluster.scheduler_address == f"tcp://{cluster.name}.{cluster.namespace}:8786", cluster.scheduler_address
    assert "Scheduler at" in cluster.get_logs(cluster=False, workers=False)["Scheduler"]
assert [log for log in cluster.logs().values() if "Start worker" in log or "Registered" in log], cluster.logs()
cluster.scale(2)
client.wait_for_workers(2, 120)
held = client.map(lambda n: n, range(50))
print("sum", client.submit(sum, held).result(60))
cluster.scale(1)
deadline = time.monotonic() + 90
while len(client.scheduler_info()["workers"]) > 1:
    assert time.monotonic() < deadline
    time.sleep(0.2)
print("kept", sum(client.gather(held)))
owner, = {each.name for pod in cluster.pods() for each in pod.metadata.owner_references}
print("owner", "this pod" if owner == os.environ["HOSTNAME"] else owner)
cluster.adapt(minimum=1, maximum=2, interval="500ms", wait_count=2, target_duration="2s")
def work(number):
    distributed.Event("grown").wait(240)
    return number
futures = client.map(work, range(40))
client.wait_for_workers(2, 120)
distributed.Event("grown").set()
print("grown", sum(client.gather(futures)))
deadline = time.monotonic() + 120
while len(client.scheduler_info()["workers"]) > 1:
    assert time.monotonic() < deadline
    time.sleep(0.2)
print("shrunk", sum(client.gather(futures)))
client.close()
cluster.close()
print("done")
"""


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_code_of_the_page_in_a_pod_with_exactly_its_role(kube: Kube, mode: str) -> None:
    """The last block is the page's local scheduler; the other mode differs by that argument only."""
    bind(kube)
    code = changed([code for language, code in PAGE if language == "python"][-1], kube)
    if mode == "remote":
        code = code.replace(", deploy_mode='local'", "")
    values = {"CODE": code, "SPEC": changed(WORKER_SPEC, kube), "MODE": mode}
    source = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + INSIDE
    kube.apply(driver_pod(kube, source))
    log = await_end(kube, "driver")
    owner = "owner this pod" if mode == "local" else "owner dask-"
    for line in (f"namespace {kube.namespace}", "sum 1225", "kept 1225", owner, "grown 780", "shrunk 780", "done"):
        assert line in log, log
    await_empty(kube)


def test_different_versions_are_reported(kube: Kube, user: dict[str, Any]) -> None:
    """An environment that differs from the client's: Dask's warning names the package and both versions."""
    fake = "import distributed.versions as versions; versions._version_cached = lambda package: '1.2.3'"
    preload = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": fake}
    with KubeCluster(template(kube, env=preload), **user) as cluster:
        with pytest.warns(match=r"(?s)Mismatched versions found.*dask.*1\.2\.3"), Client(cluster):
            pass
    await_empty(kube)


# TLS


def test_tls_with_certificates_of_the_template(kube: Kube, user: dict[str, Any], tmp_path: Path) -> None:
    """A Secret of the user is mounted by the template; client, scheduler and workers speak TLS only. The arguments env
    and scheduler_pod_template reach their pods."""
    made = cluster_secrets("demo", ("tls",))
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    kube.kubectl("create", "secret", "generic", "tls", *(f"--from-file={tmp_path / name}" for name in made))
    files = {"CA_FILE": "ca.pem"} | {
        f"{role}__{key}": f"{key.lower()}.pem" for role in ("SCHEDULER", "WORKER") for key in ("CERT", "KEY")
    }
    env = {f"DASK_DISTRIBUTED__COMM__TLS__{key}": f"/tls/{name}" for key, name in files.items()}
    mounted = {
        "extra_container_config": {"volumeMounts": [{"name": "tls", "mountPath": "/tls"}]},
        "extra_pod_config": {"volumes": [{"name": "tls", "secret": {"secretName": "tls"}}]},
    }
    paths = {name: str(tmp_path / name) for name in made}
    security = Security(
        tls_ca_file=paths["ca.pem"], tls_client_cert=paths["cert.pem"], tls_client_key=paths["key.pem"],
        require_encryption=True,
    )  # fmt: skip
    own = template(kube, labels={"own": "yes"}, **mounted)
    arguments: dict[str, Any] = {"protocol": "tls://", "security": security, "env": {**env, "MINE": "7"}}
    with KubeCluster(
        template(kube, **mounted), n_workers=1, scheduler_pod_template=own, **arguments, **user
    ) as cluster:
        assert cluster.scheduler_address.startswith("tls://") and cluster.scheduler.address.startswith("tls://")
        assert cluster.scheduler_pod.metadata.labels["own"] == "yes"
        assert cluster.pod_template.spec.containers[0].volume_mounts[0].mount_path == "/tls"
        with Client(cluster) as client:
            client.wait_for_workers(1, 120)
            assert client.submit(os.getenv, "MINE").result(60) == "7"
            assert all(address.startswith("tls://") for address in client.scheduler_info()["workers"])
    await_empty(kube)


# Adaptive scaling, drains, healing


def slow(seconds: float) -> Callable[[int], int]:
    """A task. It is defined here and not in the module, which the workers cannot import."""

    def task(number: int) -> int:
        time.sleep(seconds)
        return number

    return task


def computed(client: Client) -> int:
    """How often a task of `slow` was computed."""

    def count(dask_scheduler: Any) -> int:
        log = dask_scheduler.transition_log
        return sum(finish == "memory" for key, _, finish, *_ in log if str(key).startswith("task-"))

    found: int = client.run_on_scheduler(count)
    return found


def test_adapts_up_from_one_worker_and_down_again_without_losing_results(
    kube: Kube, ann: Callable[..., dict[str, Any]]
) -> None:
    with KubeCluster(template(kube), **ann(FORWARD_RULE)) as cluster:
        cluster.adapt(minimum=1, maximum=3, interval="500ms", wait_count=2, target_duration="2s")
        with Client(cluster) as client:
            client.wait_for_workers(1, 120)
            futures = client.map(slow(0.5), range(60), pure=False)
            until("it grew", lambda: workers(client) == 3, 120)
            total = sum(client.gather(futures))
            last = client.map(slow(8.0), range(2), pure=False)  # it shrinks while these run
            until("it shrank", lambda: workers(client) == 1, 120)
            assert sum(client.gather(last)) == 1
            assert total == sum(client.gather(futures)) == sum(range(60)), "results that it held were moved"
            assert computed(client) == 62, "nothing was computed twice"
            until("the pods are gone", lambda: len(cluster.pods()) == 1, 60)
    await_empty(kube)


def test_scale_down_under_load_runs_no_task_twice(kube: Kube, user: dict[str, Any]) -> None:
    with KubeCluster(template(kube), n_workers=2, **user) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, 120)
        futures = client.map(slow(2.0), range(8), pure=False)
        cluster.scale(1)
        assert sorted(client.gather(futures)) == list(range(8))
        until("one worker is left", lambda: workers(client) == 1, 90)
        assert sorted(client.gather(futures)) == list(range(8)) and computed(client) == 8
    await_empty(kube)


def test_lost_pods_are_replaced(kube: Kube, user: dict[str, Any], crash: Callable[[Object, str], None]) -> None:
    """A worker, then the scheduler: the same cluster object serves at the same address afterwards."""
    with KubeCluster(template(kube), n_workers=1, **user) as cluster:
        with Client(cluster) as client:
            client.wait_for_workers(1, 120)
            (before,) = cluster.pods()
            kube.kubectl("delete", "pod", before.metadata.name, "--grace-period=0", "--force")
            until("it is replaced", lambda: [p for p in cluster.pods() if p.metadata.uid != before.metadata.uid], 60)
            client.wait_for_workers(1, 120)
            assert client.submit(sum, [1, 2]).result(60) == 3
        address, service = cluster.scheduler_address, kube.api.get(kube.path(f"services/{cluster.name}"))
        scheduler = kube.api.get(kube.path(f"pods/{cluster.scheduler_pod.metadata.name}"))
        crash(scheduler, "dask-container")
        until("there is another scheduler",
              lambda: cluster.scheduler_pod.metadata.uid != scheduler["metadata"]["uid"], 60)  # fmt: skip
        with Client(cluster, timeout=120) as client:
            client.wait_for_workers(1, 120)
            assert client.submit(sum, [1, 2]).result(60) == 3
        until("the cluster knows it", lambda: len(cluster.scheduler_info["workers"]) == 1, 60)
        assert cluster.scheduler_address == address
        assert kube.api.get(kube.path(f"services/{cluster.name}"))["metadata"]["uid"] == service["metadata"]["uid"]
    await_empty(kube)


# Ends


def test_killed_client_leaves_no_process_behind(kube: Kube) -> None:
    """kill -9: the scheduler closes itself, and the workers with it. The ended pods stay, and go with the first."""
    source = f"""
import dask
from oars.compat.dask_kubernetes import KubeCluster, KubeConfig, make_pod_spec
dask.config.set({{"kubernetes.orphan-timeout": 10}})
spec = make_pod_spec({kube.image("dask")!r}, memory_limit="512Mi", cpu_request=0.1)
auth = KubeConfig({str(kube.kubeconfig)!r})
cluster = KubeCluster(spec, n_workers=1, namespace={kube.namespace!r}, auth=auth, quiet=True)
cluster.wait_for_workers(1, 120)
print("ready", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline().strip() == "ready"
        owner.send_signal(signal.SIGKILL)

    def phases() -> set[str]:
        return {pod["status"].get("phase", "") for pod in kube.pods("app=dask")}

    until("both pods ended", lambda: phases() == {"Succeeded"}, 150)
    assert sorted(name.split("/")[0] for name in left(kube)) == [
        "pod", "pod", "poddisruptionbudget.policy", "service",
    ]  # fmt: skip
    (scheduler,) = kube.pods("dask.org/component=scheduler")
    kube.kubectl("delete", "pod", scheduler["metadata"]["name"])
    await_empty(kube)


def test_idle_scheduler_ends_the_cluster(kube: Kube, user: dict[str, Any]) -> None:
    cluster = KubeCluster(template(kube), n_workers=1, idle_timeout="5s", **user)
    try:
        until("it is closed", lambda: cluster.status.name == "closed", 120)
        await_empty(kube)
    finally:
        cluster.close()


def test_program_that_forgets_to_close_leaves_nothing(kube: Kube) -> None:
    source = f"""
from oars.compat.dask_kubernetes import KubeCluster, KubeConfig, make_pod_spec
spec = make_pod_spec({kube.image("dask")!r}, memory_limit="512Mi", cpu_request=0.1)
cluster = KubeCluster(spec, n_workers=1, namespace={kube.namespace!r}, auth=KubeConfig({str(kube.kubeconfig)!r}))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    await_empty(kube)


# Ways to the scheduler


def test_node_port(kube: Kube, ann: Callable[..., dict[str, Any]]) -> None:
    """Without the right to list nodes it says which rule is missing."""
    arguments = ann()
    with dask.config.set({"kubernetes.scheduler-service-type": "NodePort"}):
        with pytest.raises(Denied, match=r"may not list nodes") as denied:
            KubeCluster(template(kube), **arguments)
        assert 'resources: ["nodes"]' in denied.value.hint
        await_empty(kube)
        metadata, version = {"name": kube.namespace}, "rbac.authorization.k8s.io/v1"
        role = {"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": NODES_RULE}
        binding = {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": kube.namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": kube.namespace},
        }
        with cluster_wide(Stage(kube), [role, binding]):
            until("she may list nodes", lambda: may(Stage(kube), "ann", "list", "nodes"))
            with KubeCluster(template(kube), **arguments) as cluster, Client(cluster) as client:
                opened = {port["nodePort"] for port in cluster.scheduler.service.spec.ports}
                assert int(cluster.scheduler_address.rpartition(":")[2]) in opened
                assert client.get_versions()["scheduler"]
    await_empty(kube)


def test_load_balancer(kube: Kube, ann: Callable[..., dict[str, Any]]) -> None:
    """The lab has no controller for load balancers; the test assigns an address in its place."""
    role_only = ann()
    with dask.config.set({"kubernetes.scheduler-service-type": "LoadBalancer"}):
        with pytest.raises(TimedOut, match="no load balancer that answers after 2 s"):
            KubeCluster(template(kube), scheduler_service_wait_timeout=2, **role_only)
        await_empty(kube)

        def assign() -> str:
            path = kube.path("services/balanced")
            until("there is a Service", lambda: kube.api.exists(path), 60)
            address = kube.api.get(path)["spec"]["clusterIP"]
            kube.api.patch(f"{path}/status", {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
            return str(address)

        with ThreadPoolExecutor(1) as pool:
            assigned = pool.submit(assign)
            with KubeCluster(
                template(kube), name="balanced", scheduler_service_wait_timeout=60, **role_only
            ) as cluster:
                assert cluster.scheduler_address == f"tcp://{assigned.result(60)}:8786"
                with Client(cluster) as client:
                    assert client.get_versions()["scheduler"]
    await_empty(kube)


def test_local_scheduler_outside(kube: Kube, ann: Callable[..., dict[str, Any]], lab: Lab) -> None:
    """The lab's pods reach this machine at one of its addresses."""
    role_only = ann()
    local: dict[str, Any] = {"deploy_mode": "local", "host": lab.network.host, "dashboard_address": ":0"}
    with KubeCluster(template(kube), n_workers=1, **local, **role_only) as cluster:
        assert isinstance(cluster.scheduler, distributed.Scheduler)
        assert [name.split("/")[0] for name in left(kube)] == ["pod"], "no Service, no budget"
        with Client(cluster) as client:
            client.wait_for_workers(1, 120)
            assert client.submit(sum, [1, 2]).result(60) == 3
            cluster.scale(2)
            client.wait_for_workers(2, 120)
            held = client.map(slow(0.1), range(6))
            cluster.scale(1)
            until("one is left", lambda: workers(client) == 1, 90)
            assert sum(client.gather(held)) == 15
    await_empty(kube)


# Other ways to use it


def test_asynchronous_use(kube: Kube, user: dict[str, Any]) -> None:
    """As JupyterLab's extension does: await the class, scale, adapt, read what it shows, close."""

    async def scenario() -> None:
        cluster = await KubeCluster(template(kube), asynchronous=True, **user)
        assert isinstance(cluster, distributed.deploy.Cluster)
        await cluster.scale(1)
        async with Client(cluster, asynchronous=True) as client:
            await client.wait_for_workers(1, 120)
            assert await client.submit(sum, [1, 2]) == 3
        assert cluster.dashboard_link.startswith("http://127.0.0.1:") and cluster.scheduler_info["workers"]
        cluster.adapt(minimum=0, maximum=1)
        assert "KubeCluster" in cluster._repr_html_() and cluster._scaling_status()
        logs = await cluster.get_logs()
        assert {"Cluster", "Scheduler"} < set(logs) and len(logs) == 3
        pod_logs = await cluster._logs()
        assert "Scheduler at" in pod_logs["Scheduler"]
        await cluster.close()
        async with KubeCluster(template(kube), asynchronous=True, **user) as again:
            assert again.status.name == "running"

    asyncio.run(scenario())
    await_empty(kube)


def test_dashboard_behind_a_proxy(kube: Kube, user: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The link of the page; the proxy reaches the port on this machine."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ann/")
    with dask.config.set({"distributed.dashboard.link": "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status"}):
        with KubeCluster(template(kube), **user) as cluster:
            found = re.fullmatch(r"/user/ann/proxy/(\d+)/status", cluster.dashboard_link)
            assert found, cluster.dashboard_link
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/health", timeout=30) as reply:
                assert reply.status == 200
    await_empty(kube)


# Mistakes: one sentence, and nothing left


def test_image_without_dask(kube: Kube, user: dict[str, Any]) -> None:
    with pytest.raises(StartFailed) as failed:
        KubeCluster(make_pod_spec(image=kube.image("base")), **user)
    assert failed.value.message.endswith("the image contains no Dask.") and "template" in failed.value.hint
    await_empty(kube)


def test_image_that_does_not_exist(kube: Kube, user: dict[str, Any]) -> None:
    spec = make_pod_spec("oars.lab/none:1", extra_container_config={"imagePullPolicy": "Never"})
    with pytest.raises(StartFailed, match=r"image oars.lab/none:1 is not on the node"):
        KubeCluster(spec, **user)
    await_empty(kube)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extra_container_config": {"imagePullPolcy": "Never"}}, "unknown field.*imagePullPolcy"),
        ({"extra_container_config": {"imagePullPolicy": "Sometimes"}}, "imagePullPolicy.*Sometimes"),
        ({"labels": {"a": "not a label!"}}, "metadata.labels"),
        ({"extra_pod_config": {"serviceAccountName": "nobody"}}, "nobody"),
    ],
)
def test_template_that_kubernetes_refuses(kube: Kube, user: dict[str, Any], more: dict[str, Any], message: str) -> None:
    before = time.monotonic()
    with pytest.raises(OarsError, match=message):
        KubeCluster(template(kube, **more), **user)
    assert time.monotonic() - before < 30 and left(kube) == []


def test_name_that_is_taken(kube: Kube, user: dict[str, Any]) -> None:
    with KubeCluster(template(kube), name="taken", **user) as cluster:
        with pytest.raises(OarsError, match=r"taken.*exists"):
            KubeCluster(template(kube), name="taken", **user)
        with Client(cluster) as client:
            assert client.get_versions()["scheduler"]
    await_empty(kube)
