"""A cluster as Kubernetes objects: few, named so that people find them, and agreeing with what the engine is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oars import engines
from oars.base.errors import SpecError
from oars.places.kube import names, render
from oars.places.kube.describe import HEAD_MEMORY, WORKER_MEMORY, describe
from oars.places.kube.pod import Cluster, cpu_quantity
from oars.spec.cluster import ClusterSpec

Object = dict[str, Any]
ENGINES = ("dask", "ray", "mars", "played")


def cluster(engine: str = "dask", **spec: Any) -> Cluster:
    made = ClusterSpec.model_validate({"engine": engine, "place": "kubernetes", "image": "team/it:1", **spec})
    return describe("demo", "lab", made, engines.get(engine))


def objects(**spec: Any) -> dict[str, Object]:
    """By kind/name."""
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in render.manifests(cluster(**spec))}


def pod_of(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]
    return found


def container_of(deployment: Object) -> Object:
    found: Object = pod_of(deployment)["containers"][0]
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_is_few_objects(engine: str) -> None:
    found = objects(engine=engine, workers=3)
    named = {key for key in found if not key.startswith("ConfigMap/")}
    assert named == {
        "ServiceAccount/demo", "Service/demo-head", "PodDisruptionBudget/demo-head", "NetworkPolicy/demo",
        "Deployment/demo-head", "Deployment/demo-worker",
    }  # fmt: skip
    assert len(found) + 1 <= 8  # with the Secret
    assert next(iter(found)) == "ServiceAccount/demo"  # without it no pod is let in
    for obj in found.values():
        assert obj["metadata"]["namespace"] == "lab"
        assert obj["metadata"]["labels"][names.CLUSTER] == "demo"


def test_each_group_is_one_deployment() -> None:
    groups = [{"name": "default", "replicas": 2}, {"name": "big", "replicas": 0}]
    found = objects(workers=groups)
    assert found["Deployment/demo-worker"]["spec"]["replicas"] == 2
    assert found["Deployment/demo-big"]["spec"]["replicas"] == 0
    assert found["Deployment/demo-head"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("engine", ENGINES)
def test_pods_meet_the_restricted_standard(engine: str) -> None:
    for key, obj in objects(engine=engine).items():
        if not key.startswith("Deployment/"):
            continue
        spec = pod_of(obj)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == "demo"
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
        assert kinds <= {"emptyDir", "configMap", "secret"}


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_and_limits_are_the_same_and_as_said(engine: str) -> None:
    found = objects(engine=engine, head={"cpu": 0.5, "memory": "3Gi"}, workers=[{"cpu": 2, "memory": "6Gi"}])
    for name, amounts in {
        "head": {"cpu": "500m", "memory": str(3 * 2**30)},
        "worker": {"cpu": "2", "memory": str(6 * 2**30)},
    }.items():
        assert container_of(found[f"Deployment/demo-{name}"])["resources"] == {"requests": amounts, "limits": amounts}


def test_dask_workers_are_told_what_their_pods_have() -> None:
    found = objects(workers=[{"cpu": 3, "memory": "6Gi"}])
    container = container_of(found["Deployment/demo-worker"])
    words = " ".join([*container["command"], json.dumps(container["env"])])
    assert "--nthreads 3" in words
    assert str(6 * 2**30) in words


def test_memory_has_a_default_so_that_no_engine_takes_the_whole_node() -> None:
    found = objects()
    assert container_of(found["Deployment/demo-head"])["resources"]["limits"]["memory"] == str(HEAD_MEMORY)
    assert container_of(found["Deployment/demo-worker"])["resources"]["limits"]["memory"] == str(WORKER_MEMORY)


def test_gpus_are_asked_for() -> None:
    container = container_of(objects(workers=[{"gpu": 2}])["Deployment/demo-worker"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(("cpu", "text"), [(1, "1"), (0.5, "500m"), (2.25, "2250m"), (16, "16")])
def test_cpu_as_kubernetes_writes_it(cpu: float, text: str) -> None:
    assert cpu_quantity(cpu) == text


def test_scripts_find_the_head_by_the_variables_they_know() -> None:
    container = container_of(objects(engine="ray")["Deployment/demo-worker"])
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["RAY_HEAD_SERVICE_HOST"] == variables["DEMO_HEAD_SERVICE_HOST"] == "demo-head"
    assert variables["RAY_HEAD_SERVICE_PORT"].isdigit()
    assert pod_of(objects(engine="ray")["Deployment/demo-worker"])["enableServiceLinks"] is False


def test_the_service_has_the_ports_that_the_head_serves() -> None:
    made = cluster()
    service = render.service(made)
    served = {port.default for port in made.shape.head.process.ports if port.served}
    assert {port["port"] for port in service["spec"]["ports"]} == served
    assert service["spec"]["selector"][names.ROLE] == "head"


def test_only_what_is_exposed_is_open_to_others() -> None:
    closed, opened = (render.network_policy(cluster(expose={"type": kind})) for kind in ("ClusterIP", "LoadBalancer"))

    def open_ports(policy: Object) -> set[int]:
        rules = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
        return {port["port"] for rule in rules for port in rule["ports"]} - {names.HELPER_PORT}  # it asks for a token

    assert open_ports(closed) == set()
    assert 8786 in open_ports(opened)


def test_a_host_name_makes_an_ingress() -> None:
    expose = {"host": "demo.example.org", "ingressClass": "nginx", "tlsSecret": "cert"}
    ingress = objects(expose=expose)["Ingress/demo-head"]
    assert ingress["spec"]["rules"][0]["host"] == "demo.example.org"
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["demo.example.org"], "secretName": "cert"}]


def test_a_namespace_of_its_own_comes_first() -> None:
    assert next(iter(objects(namespace={"create": True}))) == "Namespace/lab"


def test_the_revision_of_a_group_changes_with_its_pods_alone() -> None:
    def revision(**spec: Any) -> str:
        made = cluster(**spec)
        return render.revision_of(made, made.shape.workers[0])

    first = revision(workers=2)
    assert revision(workers=2) == first
    assert revision(workers=5) == first
    assert revision(workers=2, head={"cpu": 4}) == first
    assert revision(workers=2, env={"A": "1"}) != first
    assert revision(workers=2, image="team/it:2") != first
    assert revision(workers=[{"replicas": 2, "cpu": 2}]) != first


def test_a_clash_names_the_group() -> None:
    overlay = {"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}
    with pytest.raises(SpecError, match=r"workers\[default\]\.pod\.spec\.containers\[worker\]\.command clashes"):
        objects(workers=[{"pod": overlay}])


def test_no_secret_stands_in_a_manifest() -> None:
    text = json.dumps(list(objects(engine="ray").values()))
    assert "secretName" in text and '"Secret"' not in text
