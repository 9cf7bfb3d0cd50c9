"""The fixtures: namespaces, simulated nodes, disruptions."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from lab.api import ApiError, Object
from lab.cluster import Lab
from lab.components import FOLLOWERS
from lab.errors import LabError
from lab.kube import Cluster, Kube, fresh_namespace
from lab.wait import until

from lab import dns
from lab import kwok as simulated

Harm = Callable[..., AbstractContextManager[None]]


def sleeper(kube: Kube, name: str = "sleeper", **spec: object) -> Object:
    """Return a pod that sleeps, with the smallest image."""
    container = {"name": "main", "image": kube.image("base"), "command": ["sleep", "1000"]}
    labels = {"app": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def container(pod: Object) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def test_each_test_has_its_own_namespace(kube_api: Kube) -> None:
    accounts = kube_api.api.get(kube_api.path("serviceaccounts"))["items"]
    assert [account["metadata"]["name"] for account in accounts] == ["default"]
    assert kube_api.pods() == []


def test_api_server_is_real(kube_api: Kube) -> None:
    assert kube_api.api.get("/version")["gitVersion"].startswith("v1.34")
    with pytest.raises(ApiError) as refusal:
        kube_api.api.create(kube_api.path("pods"), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
    assert refusal.value.status == 422


def test_500_simulated_pods_become_ready(kube_api: Kube, kwok: Callable[[int], list[str]]) -> None:
    assert len(kwok(10)) == 10
    template = {
        "metadata": {"labels": {"app": "many"}},
        "spec": {"containers": [{"name": "main", "image": "none"}], **simulated.POD},
    }
    spec = {"replicas": 500, "selector": {"matchLabels": {"app": "many"}}, "template": template}
    kube_api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": spec})
    path = kube_api.path("deployments/many", "apis/apps/v1")
    until("500 pods are Ready", lambda: kube_api.api.get(path)["status"].get("readyReplicas") == 500, 120, 0.5)


def test_quota_is_enforced(kube_api: Kube, quota: Harm) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}}
    body = {**pod, "spec": {"containers": [{"name": "main", "image": "none"}], **simulated.POD}}
    with quota(kube_api, {"pods": "1"}):
        kube_api.api.create(kube_api.path("pods"), body)
        with pytest.raises(ApiError) as refusal:
            kube_api.api.create(kube_api.path("pods"), body)
    assert refusal.value.status == 403
    assert "exceeded quota" in str(refusal.value)


def test_exec_and_dns_work_on_the_real_node(kube: Kube, lab: Lab) -> None:
    kube.apply(sleeper(kube))
    kube.await_ready("app=sleeper", 1)
    assert kube.kubectl("exec", "sleeper", "--", "id", "-u").strip() == "1000"
    found = kube.kubectl("exec", "sleeper", "--", "getent", "hosts", "kubernetes.default")
    assert lab.network.kubernetes in found
    where = lab.network.dns
    until("DNS answers", lambda: dns.resolves(where, "kubernetes.default.svc.cluster.local"), 60)


def test_pods_cannot_reach_other_networks(kube: Kube) -> None:
    kube.apply(sleeper(kube))
    kube.await_ready("app=sleeper", 1)
    script = "import socket; socket.setdefaulttimeout(3); socket.create_connection(('192.0.2.1', 80))"
    with pytest.raises(Exception, match=r"Network is unreachable|No route to host"):
        kube.kubectl("exec", "sleeper", "--", "python3", "-c", script)


def test_tainted_node_accepts_no_pods(kube: Kube, taint: Harm) -> None:
    with taint(kube):
        kube.apply(sleeper(kube))

        def unschedulable() -> bool:
            conditions = kube.pods("app=sleeper")[0]["status"].get("conditions", [])
            return any(part.get("reason") == "Unschedulable" for part in conditions)

        until("the pod is unschedulable", unschedulable, 60)
    kube.await_ready("app=sleeper", 1)


def test_cut_pod_is_unreachable_until_the_cut_ends(kube: Kube, cut: Harm) -> None:
    server = sleeper(kube, "server")
    server["spec"]["containers"][0]["command"] = ["python3", "-m", "http.server", "8000"]
    server["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    kube.apply(server, sleeper(kube))
    (pod,) = kube.await_ready("app=server", 1)
    kube.await_ready("app=sleeper", 1)
    fetch = [
        "exec",
        "sleeper",
        "--",
        "wget",
        "-q",
        "-T",
        "2",
        "-t",
        "1",
        "-O-",
        f"http://{pod['status']['podIP']}:8000/",
    ]

    def serves() -> bool:
        try:
            return "html" in kube.kubectl(*fetch)
        except LabError:
            return False

    until("the server answers", serves, 60)
    with cut(pod), pytest.raises(Exception, match="failed"):
        kube.kubectl(*fetch)
    until("the server answers again", serves, 60)


@pytest.mark.parametrize("component", ["kube-apiserver", "kubelet", "containerd"])
def test_running_pods_survive_an_outage(kube: Kube, lab: Lab, outage: Harm, component: str) -> None:
    kube.apply(sleeper(kube))
    for first in (True, False):
        (before,) = kube.await_ready("app=sleeper", 1)
        with outage(component):
            assert component not in lab.running()
            if component == "kube-apiserver":
                assert not kube.api.healthy()
        (after,) = kube.await_ready("app=sleeper", 1)
        assert component in lab.running()
        if container(after) == container(before):
            break
        # On a busy machine a kubelet without containerd may declare a container lost, but not each time.
        assert first and component == "containerd", "a container was restarted"
    until("commands run in the pod", lambda: kube.runs("sleeper", "echo", "well"))


def test_controllers_are_restarted_with_the_api_server(lab: Lab, cluster: Cluster, outage: Harm) -> None:
    before = [lab.component(name) for name in FOLLOWERS[:2]]
    with outage("kube-apiserver"):
        pass
    for name, old in zip(FOLLOWERS, before, strict=False):
        assert lab.component(name) not in (None, old), f"{name} was not restarted"
    with fresh_namespace(cluster, has_node=False) as kube:  # waits for the service account, which a controller creates
        assert kube.api.healthy()


def test_kubectl_works_with_the_kubeconfig(kube_api: Kube) -> None:
    listed = json.loads(kube_api.kubectl("get", "--raw", "/api/v1/namespaces"))
    assert kube_api.namespace in {item["metadata"]["name"] for item in listed["items"]}
