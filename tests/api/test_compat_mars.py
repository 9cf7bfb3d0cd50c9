"""`new_cluster` of Mars on a real control plane. Its pods do not run, so no cluster gets ready: what it creates, and
that it leaves nothing behind when it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from lab.kube import Kube
from lab.wait import until
from tests.api.stage import SIMULATED_POD, Stage, group, sized
from tests.api.test_direct import run_scenario
from tests.api.test_rbac_modes import account, kubeconfig_of

from oars.base.errors import Denied, NameInUse, NotFound, OarsError, TimedOut
from oars.base.settings import Settings
from oars.client.backend import CreateOptions, Location
from oars.client.kubernetes import KubeBackend
from oars.compat.mars import KubernetesClusterClient, cluster, new_cluster
from oars.compat.mars.rights import ROLE_NAME
from oars.spec.load import build

SIMULATED_HEAD: dict[str, Any] = {"cpu": "0.1", "memory": "64Mi", "pod": SIMULATED_POD}

IMAGE = "example.org/mars:1"


@pytest.fixture(autouse=True)
def _with_mars(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Python that has Mars."""
    monkeypatch.setattr(cluster, "find_distribution", lambda wanted: wanted or "pymars")


@pytest.fixture
def api_client(kube_api: Kube) -> Any:
    return config.new_client_from_config(str(kube_api.kubeconfig))


def namespaces(kube: Kube) -> set[str]:
    found = kube.api.get("/api/v1/namespaces")["items"]
    return {
        each["metadata"]["name"] for each in found if "oars.dev/created-for" in each["metadata"].get("annotations", {})
    }


@pytest.fixture
def nothing_left(kube_api: Kube) -> Iterator[None]:
    before = namespaces(kube_api)
    yield
    until("no namespace is left", lambda: namespaces(kube_api) <= before, 90)


def test_cluster_has_a_namespace_with_role_binding_and_account(
    kube_api: Kube, api_client: Any, nothing_left: None
) -> None:
    """While it starts; after the timeout nothing is left."""
    before = namespaces(kube_api)
    failure: list[BaseException] = []

    def create() -> None:
        try:
            new_cluster(api_client, IMAGE, worker_num=3, min_worker_num=2, timeout=20)
        except OarsError as error:
            failure.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    try:
        (name,) = until("it has a namespace", lambda: namespaces(kube_api) - before, 20)
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        until("it has a binding", lambda: kube_api.api.get(f"{rbac}/rolebindings")["items"], 20)
        (role,) = kube_api.api.get(f"{rbac}/roles")["items"]
        (binding,) = kube_api.api.get(f"{rbac}/rolebindings")["items"]
        assert role["metadata"]["name"] == ROLE_NAME and binding["roleRef"]["name"] == ROLE_NAME
        assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "watch", "list"]}]
        accounts = [each["name"] for each in binding["subjects"]]
        for verb, allowed in (("list", "yes"), ("delete", "no")):
            for each in accounts:
                user = f"system:serviceaccount:{name}:{each}"
                asked = kube_api.popen("auth", "can-i", verb, "pods", "-n", name, f"--as={user}")
                assert asked.communicate(timeout=60)[0].strip() == allowed, (verb, each)
        at = f"/apis/apps/v1/namespaces/{name}/deployments"
        (head,) = until("it has a head, without a node", lambda: kube_api.api.get(at)["items"], 20)
        assert head["spec"]["replicas"] == 1
        (service,) = kube_api.api.get(f"/api/v1/namespaces/{name}/services")["items"]
        assert service["spec"]["type"] == "NodePort"
    finally:
        thread.join(90)
    (error,) = failure
    assert isinstance(error, TimedOut) and "Timed out after 20 s waiting for cluster 'mars-" in error.message


def test_namespace_that_exists_is_not_touched(kube_api: Kube, api_client: Any, nothing_left: None) -> None:
    with pytest.raises(NameInUse, match=f"Namespace '{kube_api.namespace}' exists already"):
        new_cluster(api_client, IMAGE, namespace=kube_api.namespace)
    assert kube_api.api.exists(f"/api/v1/namespaces/{kube_api.namespace}")


def test_user_without_rights_gets_the_rule(stage: Stage, tmp_path: Path, nothing_left: None) -> None:
    account(stage, "ann")
    client = config.new_client_from_config(str(kubeconfig_of(stage, "ann", tmp_path / "config")))
    with pytest.raises(Denied, match="may not create namespaces") as denied:
        new_cluster(client, IMAGE)
    assert 'resources: ["namespaces"]' in denied.value.hint


def test_attach_finds_no_cluster(kube_api: Kube, api_client: Any) -> None:
    with pytest.raises(NotFound, match=f"There is no Mars cluster in namespace '{kube_api.namespace}'"):
        KubernetesClusterClient(api_client, kube_api.namespace, "http://10.0.0.1:30000")


def test_attach_finds_the_cluster_with_the_endpoint(stage: Stage) -> None:
    """Two Mars clusters in one namespace, and one of another engine."""
    namespace = stage.kube.namespace
    mars = {"head": SIMULATED_HEAD, "place": "kubernetes", "expose": {"type": "NodePort"}, **sized(group(replicas=1))}
    specs = {"one": {"engine": "mars"}, "two": {"engine": "mars"}, "other": {"engine": "simulated"}}
    where = Location("kubernetes", namespace=namespace, kubeconfig=str(stage.kube.kubeconfig), mode="direct")

    async def scenario() -> None:
        backend = KubeBackend(Settings.from_environ(os.environ), os.environ, where)
        connection = cluster.Connection(backend)
        try:
            handles = []
            for name, spec in specs.items():
                handles.append(await backend.create(name, build({**mars, **spec}).spec, CreateOptions(tied=False)))
            for name in specs:
                await asyncio.to_thread(await_head, stage, name)
            addresses = {name: await backend.cluster(name).address(30) for name in ("one", "two")}
            assert len(set(addresses.values())) == 2
            for name, address in addresses.items():
                assert (await connection.find(address)).name == name
            with pytest.raises(NotFound, match=r"No Mars cluster in namespace .* has the endpoint http://x:1\."):
                await connection.find("http://x:1")
            for handle in handles:
                assert await handle.stop(60)
        finally:
            await backend.close()

    run_scenario(scenario())


def await_head(stage: Stage, name: str) -> None:
    def running() -> bool:
        return any(pod["status"].get("phase") == "Running" for pod in stage.pods(name, "head"))

    until(f"the head of {name} runs", running, 60)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"extra_labels": {"bad label": "x"}}, "bad label"),
        ({"worker_extra_labels": {"team": "a b"}}, "a b"),
        ({"extra_volumes": [{"name": "A_b", "mountPath": "/a", "emptyDir": {}}]}, "A_b"),
        ({"extra_volumes": [{"name": "a", "mountPath": "/a", "emptyDirs": {}}]}, "emptyDirs"),
    ],
)  # fmt: skip
def test_values_that_kubernetes_refuses_leave_nothing(
    given: dict[str, Any], message: str, api_client: Any, nothing_left: None
) -> None:
    with pytest.raises(OarsError) as refused:
        new_cluster(api_client, IMAGE, timeout=60, **given)
    assert message in refused.value.message and "rejected" in refused.value.message


INTERRUPTED = """
from oars.compat.mars import cluster
cluster.find_distribution = lambda wanted: "pymars"
cluster.new_cluster(timeout=120)
"""


def test_interrupted_start_leaves_nothing(kube_api: Kube, nothing_left: None) -> None:
    """Ctrl-C while the cluster starts."""
    before, env = namespaces(kube_api), {**os.environ, "KUBECONFIG": str(kube_api.kubeconfig)}
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], env=env, stderr=subprocess.PIPE, text=True) as process:
        (name,) = until("it has a namespace", lambda: namespaces(kube_api) - before, 60)
        at = f"/apis/apps/v1/namespaces/{name}/deployments"
        until("it has a head, without a node", lambda: kube_api.api.get(at)["items"], 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors and process.returncode != 0


ENDING = """
from oars.client.sync import run
from oars.compat.mars import cluster
connection = cluster.Connection(cluster._backend(None, NAMESPACE))
print(run(connection._backend.list()))
"""


def test_program_that_ends_leaves_no_connection_open(kube_api: Kube) -> None:
    env = {**os.environ, "KUBECONFIG": str(kube_api.kubeconfig)}
    words = [sys.executable, "-c", f"NAMESPACE = {kube_api.namespace!r}\n{ENDING}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
