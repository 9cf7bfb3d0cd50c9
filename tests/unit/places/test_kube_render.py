"""A cluster rendered as Kubernetes objects, consistent with the configuration of the engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.operator import manifests
from oars.places.kube import names
from oars.places.kube.render import objects, sidecar
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.pod import DEFAULT_CONTAINER, cpu_quantity
from oars.places.kube.render.values import POD_FIELDS, SCRATCH
from tests.unit.places.clusters import cluster

Object = dict[str, Any]
ENGINES = ("dask", "ray", "mars", "played")


def rendered(**spec: Any) -> dict[str, Object]:
    """By kind/name."""
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in objects.manifests(cluster(**spec))}


def pod_of(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]
    return found


def container_of(deployment: Object) -> Object:
    found: Object = pod_of(deployment)["containers"][0]
    return found


def annotations_of(deployment: Object) -> dict[str, str]:
    found: dict[str, str] = deployment["spec"]["template"]["metadata"].get("annotations", {})
    return found


def variables_of(deployment: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container_of(deployment)["env"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_cluster_has_few_objects(engine: str) -> None:
    found = rendered(engine=engine, workers=3)
    named = {key for key in found if not key.startswith("ConfigMap/")}
    assert named == {
        "ServiceAccount/demo-oars", "Service/demo-head", "PodDisruptionBudget/demo-head", "NetworkPolicy/demo-oars",
        "Deployment/demo-head", "Deployment/demo-worker",
    }  # fmt: skip
    assert len(found) + 1 <= 8  # with the Secret
    assert next(iter(found)) == "ServiceAccount/demo-oars"  # no pod is admitted without it
    for obj in found.values():
        assert obj["metadata"]["namespace"] == "lab"
        assert obj["metadata"]["labels"][names.CLUSTER] == "demo"


def test_each_group_has_one_deployment() -> None:
    groups = [{"name": "default", "replicas": 2}, {"name": "big", "replicas": 0}]
    found = rendered(workers=groups)
    assert found["Deployment/demo-worker"]["spec"]["replicas"] == 2
    assert found["Deployment/demo-big"]["spec"]["replicas"] == 0
    assert found["Deployment/demo-head"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("engine", ENGINES)
def test_pods_meet_the_restricted_security_standard(engine: str) -> None:
    for key, obj in rendered(engine=engine).items():
        if not key.startswith("Deployment/"):
            continue
        spec = pod_of(obj)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == "demo-oars"
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
        assert kinds <= {"emptyDir", "configMap", "secret"}


@pytest.mark.parametrize("engine", ENGINES)
def test_requests_and_limits_equal_the_spec(engine: str) -> None:
    found = rendered(engine=engine, head={"cpu": 0.5, "memory": "3Gi"}, workers=[{"cpu": 2, "memory": "6Gi"}])
    for name, amounts in {
        "head": {"cpu": "500m", "memory": str(3 * 2**30)},
        "worker": {"cpu": "2", "memory": str(6 * 2**30)},
    }.items():
        assert container_of(found[f"Deployment/demo-{name}"])["resources"] == {"requests": amounts, "limits": amounts}


def test_dask_workers_are_configured_with_resources_of_their_pods() -> None:
    found = rendered(workers=[{"cpu": 3, "memory": "6Gi"}])
    container = container_of(found["Deployment/demo-worker"])
    words = " ".join([*container["command"], json.dumps(container["env"])])
    assert "--nthreads 3" in words
    assert str(6 * 2**30) in words


@pytest.mark.parametrize("engine", ENGINES)
def test_pod_fields_are_variables_only_if_used(engine: str) -> None:
    for key, obj in rendered(engine=engine).items():
        if key.startswith("Deployment/"):
            container = container_of(obj)
            facts = {entry["name"] for entry in container["env"] if "valueFrom" in entry}
            words = json.dumps([container["command"], [entry.get("value") for entry in container["env"]]])
            assert facts == set(re.findall(r"\$\((POD_[A-Z]+)\)", words))


@pytest.mark.parametrize("engine", ENGINES)
def test_only_placeholders_of_kubernetes_remain(engine: str) -> None:
    facts = {f"$({name})" for name in POD_FIELDS}
    assert set(re.findall(r"\$\([^)\s]*\)", json.dumps(list(rendered(engine=engine).values())))) <= facts


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_of_users_are_left_to_kubernetes(engine: str) -> None:
    said = {"PATH_X": "$(HOME)/bin", "ME": "$(POD_IP)", "TEXT": "$$(host)", "OURS": "$(head.host)"}
    found = rendered(engine=engine, env=said)
    for name in ("head", "worker"):
        variables = variables_of(found[f"Deployment/demo-{name}"])
        assert {key: variables[key] for key in said} == {**said, "OURS": "demo-head"}
        assert list(variables).index("POD_IP") < list(variables).index(
            "ME"
        )  # Kubernetes expands only earlier variables


def test_text_of_users_in_a_file_is_not_filled_in() -> None:
    data = rendered(engine="mars", mars={"config": {"path": "$(HOME)/x", "web": {"a": "$(nobody)"}}})[
        "ConfigMap/demo-oars"
    ]
    for key in ("head.config.yml", "default.config.yml"):
        config = json.loads(data["data"][key])
        assert (config["path"], config["web"]["a"]) == ("$(HOME)/x", "$(nobody)")
    assert json.loads(data["data"]["head.config.yml"])["web"]["port"] == 7104


def test_pods_are_replaced_when_their_files_change() -> None:
    before, after = (rendered(engine="mars", mars={"config": {"a": number}}) for number in (1, 2))
    for name in ("head", "worker"):
        old, new = (annotations_of(each[f"Deployment/demo-{name}"]) for each in (before, after))
        assert old[names.FILES] != new[names.FILES]
    assert annotations_of(rendered(engine="mars")["Deployment/demo-head"]) == annotations_of(
        rendered(engine="mars", workers=7)["Deployment/demo-head"]
    )


def test_pods_without_files_have_no_annotations() -> None:
    found = rendered(engine="ray")
    assert all(
        "annotations" not in found[f"Deployment/demo-{n}"]["spec"]["template"]["metadata"] for n in ("head", "worker")
    )


def test_working_directory_is_writable() -> None:
    mine = {"spec": {"containers": [{"name": "worker", "workingDir": "/data"}]}}
    found = rendered(workers=[{"pod": mine}])
    assert container_of(found["Deployment/demo-head"])["workingDir"] == SCRATCH
    assert container_of(found["Deployment/demo-worker"])["workingDir"] == "/data"


def scratch_of(deployment: Object, container: str = "") -> list[Object]:
    """The volumes that are mounted where programs write."""
    spec = pod_of(deployment)
    (found,) = [each for each in spec["containers"] if each["name"] == (container or spec["containers"][0]["name"])]
    mounted = [mount["name"] for mount in found["volumeMounts"] if mount["mountPath"] == SCRATCH]
    return [volume for volume in spec["volumes"] if volume["name"] in mounted]


def test_scratch_volume_exists_only_for_a_read_only_root() -> None:
    def hardened(name: str) -> Object:
        return {"spec": {"containers": [{"name": name, "securityContext": {"readOnlyRootFilesystem": True}}]}}

    groups = [{"name": "default"}, {"name": "hard", "pod": hardened("worker")}]
    found = rendered(engine="played", workers=groups)
    assert scratch_of(found["Deployment/demo-head"]) == scratch_of(found["Deployment/demo-worker"]) == []
    assert scratch_of(found["Deployment/demo-hard"]) == [{"name": "tmp", "emptyDir": {}}]
    found = rendered(engine="played", head={"pod": hardened("head")}, workers=[{"pod": hardened("sidecar")}])
    assert scratch_of(found["Deployment/demo-head"]) == [{"name": "tmp", "emptyDir": {}}]
    assert scratch_of(found["Deployment/demo-worker"]) == []


def test_scratch_can_be_a_volume_of_the_user() -> None:
    disk = {"name": "disk", "hostPath": {"path": "/fast"}}
    container = {"name": "worker", "volumeMounts": [{"name": "disk", "mountPath": SCRATCH}]}
    for context in ({}, {"securityContext": {"readOnlyRootFilesystem": True}}):
        mine = {"spec": {"volumes": [disk], "containers": [{**container, **context}]}}
        assert scratch_of(rendered(workers=[{"pod": mine}])["Deployment/demo-worker"]) == [disk]


def test_helper_shares_scratch_with_the_head() -> None:
    _, head = sidecar.head_and_owned(cluster(tied=True), watched=True)
    assert scratch_of(head, "head") == scratch_of(head, names.HELPER) == [{"name": "tmp", "emptyDir": {}}]


@pytest.mark.parametrize("containers", [{"name": "worker"}, ["worker"], [{"securityContext": []}], "worker"])
def test_malformed_overlay_is_an_error(containers: object) -> None:
    with pytest.raises(SpecError):
        rendered(workers=[{"pod": {"spec": {"containers": containers}}}])


def test_only_managed_deployments_have_no_progress_deadline() -> None:
    """`kubectl rollout status` of rendered manifests must not wait forever."""
    made = cluster()
    kept = objects.managed_worker_deployment(made, made.shape.workers[0], 3, "demo-worker", "r1")
    _, head = sidecar.head_and_owned(made, watched=False)
    assert {d["spec"]["progressDeadlineSeconds"] for d in (kept, head)} == {objects.NO_DEADLINE}
    assert all("progressDeadlineSeconds" not in obj.get("spec", {}) for obj in rendered().values())


def test_deployments_have_the_group_label() -> None:
    found = rendered(workers=[{"name": "big"}])
    groups = {
        key: found[key]["metadata"]["labels"][names.GROUP] for key in ("Deployment/demo-head", "Deployment/demo-big")
    }
    assert groups == {"Deployment/demo-head": "head", "Deployment/demo-big": "big"}


def shared_memory_of(deployment: Object) -> int:
    """The size of /dev/shm. It is memory, and so part of the container's limit."""
    (mount,) = [each for each in container_of(deployment)["volumeMounts"] if each["mountPath"] == "/dev/shm"]
    (volume,) = [each for each in pod_of(deployment)["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    return int(volume["emptyDir"]["sizeLimit"])


GIB = 2**30


@pytest.mark.parametrize(
    ("spec", "head", "worker"),
    [
        ({"engine": "ray"}, int(2 * GIB * 0.3), int(4 * GIB * 0.3)),
        ({"engine": "ray", "ray": {"objectStoreMemory": "1Gi"}}, GIB, GIB),
        ({"engine": "mars"}, 2 * GIB, 4 * GIB),
        ({"engine": "mars", "mars": {"distribution": "pymars"}}, 2 * GIB, 4 * GIB),
    ],
)
def test_shared_memory_has_the_size_that_the_engine_uses(spec: Object, head: int, worker: int) -> None:
    """With the default of 64 MiB the engine dies of a bus error."""
    found = rendered(**spec, head={"memory": "2Gi"}, workers=[{"memory": "4Gi"}])
    assert shared_memory_of(found["Deployment/demo-head"]) == head
    assert shared_memory_of(found["Deployment/demo-worker"]) == worker


def test_dask_needs_no_shared_memory() -> None:
    assert all(
        mount["mountPath"] != "/dev/shm" for mount in container_of(rendered()["Deployment/demo-worker"])["volumeMounts"]
    )


@pytest.mark.parametrize("name", ["head", "worker"])
def test_ray_divides_the_memory_of_the_pod_between_tasks_and_objects(name: str) -> None:
    found = rendered(engine="ray", head={"memory": "2Gi"}, workers=[{"memory": "2Gi"}])[f"Deployment/demo-{name}"]
    told = {word.partition("=")[0]: word.partition("=")[2] for word in container_of(found)["command"]}
    limit = int(container_of(found)["resources"]["limits"]["memory"])
    assert int(told["--object-store-memory"]) == shared_memory_of(found)
    assert int(told["--memory"]) + int(told["--object-store-memory"]) == limit


def test_memory_that_the_object_store_of_ray_would_fill_is_refused() -> None:
    with pytest.raises(SpecError, match=r"head\.memory must be larger than Ray's object store, which takes 1536Mi"):
        rendered(engine="ray", ray={"objectStoreMemory": "1.5Gi"})


def test_default_container_is_set_if_there_are_several() -> None:
    sidecar = {"spec": {"containers": [{"name": "log", "image": "team/log:1"}]}}
    found = rendered(workers=[{"name": "default", "pod": sidecar}])
    assert DEFAULT_CONTAINER not in annotations_of(found["Deployment/demo-head"])
    assert annotations_of(found["Deployment/demo-worker"]) == {DEFAULT_CONTAINER: "worker"}


def test_memory_has_a_default() -> None:
    found = rendered()
    assert container_of(found["Deployment/demo-head"])["resources"]["limits"]["memory"] == str(DEFAULTS.head_memory)
    assert container_of(found["Deployment/demo-worker"])["resources"]["limits"]["memory"] == str(DEFAULTS.worker_memory)


def test_gpus_are_requested() -> None:
    container = container_of(rendered(workers=[{"gpu": 2}])["Deployment/demo-worker"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(("cpu", "text"), [(1, "1"), (0.5, "500m"), (2.25, "2250m"), (16, "16")])
def test_cpu_is_written_as_a_quantity(cpu: float, text: str) -> None:
    assert cpu_quantity(cpu) == text


def test_rendered_pods_have_service_variables() -> None:
    container = container_of(rendered(engine="ray")["Deployment/demo-worker"])
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["RAY_HEAD_SERVICE_HOST"] == variables["DEMO_HEAD_SERVICE_HOST"] == "demo-head"
    assert variables["RAY_HEAD_SERVICE_PORT"].isdigit()
    assert pod_of(rendered(engine="ray")["Deployment/demo-worker"])["enableServiceLinks"] is False


def test_service_has_the_ports_of_the_head() -> None:
    made = cluster()
    service = objects.service(made)
    served = {port.default for port in made.shape.head.process.ports if port.on_service}
    assert {port["port"] for port in service["spec"]["ports"]} == served
    assert service["spec"]["selector"][names.GROUP] == "head"


HOST = {"host": "demo.example.org"}


@pytest.mark.parametrize(
    ("engine", "expose", "opened"),
    [
        ("dask", {}, set()),
        ("dask", {"type": "NodePort"}, {8786, 8787}),
        ("dask", {"type": "LoadBalancer"}, {8786, 8787}),
        ("dask", HOST, {8787}),
        ("dask", {**HOST, "type": "NodePort"}, {8786, 8787}),
        ("ray", HOST, {8265}),
        ("mars", HOST, {7104}),
    ],
)
def test_network_policy_opens_only_exposed_ports(engine: str, expose: Object, opened: set[int]) -> None:
    made = cluster(engine, expose=expose)
    rules = objects.network_policy(made)["spec"]["ingress"]
    to_all = {port["port"] for rule in rules if "from" not in rule for port in rule["ports"]}
    assert to_all - {names.HELPER_PORT} == opened  # the helper requires a token
    to_some = {port["port"] for rule in rules for port in rule.get("ports", ())}
    assert to_some >= {port.default for port in made.shape.head.process.ports if port.on_service}


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_ingress_uses_the_port_that_the_policy_opens(engine: str) -> None:
    made = cluster(engine, expose=HOST)
    path = objects.ingress(made)["spec"]["rules"][0]["http"]["paths"][0]
    assert {"ports": [{"port": path["backend"]["service"]["port"]["number"], "protocol": "TCP"}]} in (
        objects.network_policy(made)["spec"]["ingress"]
    )


def test_host_name_creates_an_ingress() -> None:
    expose = {"host": "demo.example.org", "ingressClass": "nginx", "tlsSecret": "cert"}
    ingress = rendered(expose=expose)["Ingress/demo-head"]
    assert ingress["spec"]["rules"][0]["host"] == "demo.example.org"
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["demo.example.org"], "secretName": "cert"}]


def test_created_namespace_comes_first() -> None:
    assert next(iter(rendered(namespace={"create": True}))) == "Namespace/lab"


def test_revision_of_a_group_changes_only_with_its_pods() -> None:
    def revision(**spec: Any) -> str:
        made = cluster(**spec)
        return objects.revision_of(made, made.shape.workers[0])

    first = revision(workers=2)
    assert revision(workers=2) == first
    assert revision(workers=5) == first
    assert revision(workers=2, head={"cpu": 4}) == first
    assert revision(workers=2, env={"A": "1"}) != first
    assert revision(workers=2, image="team/it:2") != first
    assert revision(workers=[{"replicas": 2, "cpu": 2}]) != first
    assert revision(engine="mars", mars={"config": {"a": 1}}) != revision(engine="mars", mars={"config": {"a": 2}})


def test_conflict_with_an_overlay_names_the_group() -> None:
    overlay = {"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}
    with pytest.raises(SpecError, match=r"workers\[default\]\.pod\.spec\.containers\[worker\]\.command cannot be set"):
        rendered(workers=[{"pod": overlay}])


def test_manifests_contain_no_secret() -> None:
    text = json.dumps(list(rendered(engine="ray").values()))
    assert "secretName" in text and '"Secret"' not in text


def test_network_policy_admits_the_operator() -> None:
    rules = rendered()["NetworkPolicy/demo-oars"]["spec"]["ingress"]
    peers = [peer for rule in rules for peer in rule.get("from", ()) if "namespaceSelector" in peer]
    selectors = [peer["podSelector"]["matchLabels"] for peer in peers]
    labels = manifests.deployment(manifests.InstallOptions())["spec"]["template"]["metadata"]["labels"]
    assert selectors and all(selector.items() <= labels.items() for selector in selectors)
