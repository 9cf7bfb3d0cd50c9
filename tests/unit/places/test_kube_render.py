"""A cluster rendered as Kubernetes objects, consistent with the configuration of the engine."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.client.pod_usage import quantity
from oars.engines.web_guard import OPEN_PATHS
from oars.places.kube import names
from oars.places.kube.render import objects, sidecar
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.pod import DEFAULT_CONTAINER, cpu_quantity, template
from oars.places.kube.render.values import POD_FIELDS, SCRATCH
from tests.unit.places.clusters import cluster

Object = dict[str, Any]
ENGINES = ("dask", "ray", "mars", "simulated")


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


def test_labels_and_annotations_of_the_user_are_on_all_objects_and_pods() -> None:
    """Not in selectors, which cannot change. Those of a more special field, and those of Oars, override them."""
    found = rendered(
        labels={"team": "data", "app.kubernetes.io/part-of": "shop"}, annotations={"owner": "ada", "note": "x"},
        expose={"annotations": {"note": "y"}, "host": "a.example.org"},
        workers=[{"pod": {"metadata": {"labels": {"team": "gpu"}}}}],
    )  # fmt: skip
    for name, obj in found.items():
        assert obj["metadata"]["labels"]["app.kubernetes.io/part-of"] == "shop"
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "oars"
        note = "y" if name.partition("/")[0] in ("Service", "Ingress") else "x"
        assert (obj["metadata"]["annotations"]["owner"], obj["metadata"]["annotations"]["note"]) == ("ada", note)
    for name, team in (("head", "data"), ("worker", "gpu")):
        spec = found[f"Deployment/demo-{name}"]["spec"]
        assert spec["template"]["metadata"]["labels"]["team"] == team
        assert spec["template"]["metadata"]["annotations"]["owner"] == "ada"
        assert "team" not in spec["selector"]["matchLabels"]
    assert "team" not in found["Service/demo-head"]["spec"]["selector"]


def test_recommended_labels_are_on_all_objects_and_pods_but_not_in_selectors() -> None:
    found = rendered(engine="ray", labels={"app.kubernetes.io/name": "shop"}, expose={"host": "a.example.org"})
    own = {
        "app.kubernetes.io/name": "ray",
        "app.kubernetes.io/instance": "demo",
        "app.kubernetes.io/managed-by": "oars",
    }
    for obj in found.values():
        assert own.items() <= obj["metadata"]["labels"].items()
    for role in ("head", "worker"):
        deployment = found[f"Deployment/demo-{role}"]
        template, component = deployment["spec"]["template"], {"app.kubernetes.io/component": role}
        assert {**own, **component}.items() <= deployment["metadata"]["labels"].items()
        on_pods = {**own, **component, "app.kubernetes.io/name": "shop"}  # tools may select pods by labels of the user
        assert on_pods.items() <= template["metadata"]["labels"].items()
        assert set(deployment["spec"]["selector"]["matchLabels"]) == {names.CLUSTER, names.GROUP}
    assert set(found["Service/demo-head"]["spec"]["selector"]) == {names.CLUSTER, names.GROUP}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"labels": {"oars.dev/cluster": "other"}}, "is reserved for Oars"),
        ({"annotations": {"jobs.oars.dev/x": "y"}}, "is reserved for Oars"),
        ({"labels": {"team": "a b"}}, "team=a b is not a label"),
        ({"annotations": {"a b": "c"}}, "a b is not the name of an annotation"),
    ],
)
def test_labels_that_kubernetes_or_oars_cannot_accept_are_errors(spec: dict[str, Any], words: str) -> None:
    with pytest.raises((SpecError, ValueError), match=words):
        rendered(**spec)


def test_each_group_has_one_deployment() -> None:
    groups = [{"name": "default", "replicas": 2}, {"name": "big", "replicas": 0}]
    found = rendered(workers=groups)
    assert found["Deployment/demo-worker"]["spec"]["replicas"] == 2
    assert found["Deployment/demo-big"]["spec"]["replicas"] == 0
    assert found["Deployment/demo-head"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("engine", "variable", "address"),
    [
        ("dask", "DASK_SCHEDULER_ADDRESS", "tls://demo-head:8786"),
        ("ray", "RAY_ADDRESS", "demo-head:6379"),
        ("mars", "OARS_ADDRESS", "http://demo-head:7104"),
    ],
)
def test_programs_in_every_pod_find_the_cluster(engine: str, variable: str, address: str) -> None:
    """Also those of `kubectl exec`, which reads no shell profile."""
    deployments = [obj for key, obj in rendered(engine=engine).items() if key.startswith("Deployment/")]
    _, head = sidecar.head_and_owned(cluster(engine=engine), watched=True)
    assert [variables_of(each).get(variable) for each in (*deployments, head)] == [address] * 3


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


@pytest.mark.parametrize("env", [{}, {"PYTHONPATH": "/mine"}])
def test_drivers_in_pods_find_the_engine_s_modules(env: dict[str, str]) -> None:
    """With kubectl alone, in every mode."""
    found = rendered(engine="mars", env=env)
    for name, group in (("head", "head"), ("worker", "default")):
        deployment = found[f"Deployment/demo-{name}"]
        variables = variables_of(deployment)
        assert variables["PYTHONPATH"] == "/etc/oars/files/driver" + (":/mine" if env else "")
        assert variables["OARS_TOKEN_FILE"] == "/etc/oars/secrets/token"
        assert variables["OARS_MARS_ADDRESS"] == "http://demo-head:7104"
        volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
        item = {"key": f"{group}.driver.sitecustomize.py", "path": "driver/sitecustomize.py"}
        assert item in volumes["oars-files"]["configMap"]["items"]
        assert item["key"] in found["ConfigMap/demo-oars"]["data"]
        assert {"key": "token", "path": "token"} in volumes["oars-secrets"]["secret"]["items"]
    managed = template(cluster(engine="mars", env=env), cluster(engine="mars", env=env).shape.head)
    assert "PYTHONPATH" in {each["name"] for each in managed["spec"]["containers"][0]["env"]}


def test_probe_of_mars_needs_no_token() -> None:
    (container,) = rendered(engine="mars")["Deployment/demo-head"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/api/oars/health", "port": 7104}
    assert container["readinessProbe"]["httpGet"]["path"] in OPEN_PATHS


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
    found = rendered(engine="simulated", workers=groups)
    assert scratch_of(found["Deployment/demo-head"]) == scratch_of(found["Deployment/demo-worker"]) == []
    assert scratch_of(found["Deployment/demo-hard"]) == [{"name": "tmp", "emptyDir": {}}]
    found = rendered(engine="simulated", head={"pod": hardened("head")}, workers=[{"pod": hardened("sidecar")}])
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


def with_margin(size: int) -> int:
    """The volume of an engine that uses this much of it."""
    return math.ceil(size / 0.95)


@pytest.mark.parametrize(
    ("spec", "head", "worker"),
    [
        ({"engine": "ray"}, with_margin(int(2 * GIB * 0.3)), with_margin(int(4 * GIB * 0.3))),
        ({"engine": "ray", "ray": {"objectStoreMemory": "1Gi"}}, with_margin(GIB), with_margin(GIB)),
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
    assert with_margin(int(told["--object-store-memory"])) == shared_memory_of(found)
    assert int(told["--memory"]) + int(told["--object-store-memory"]) == limit


def test_memory_that_the_object_store_of_ray_would_fill_is_refused() -> None:
    with pytest.raises(SpecError, match=r"head\.memory must be larger than Ray's object store, which takes 1536Mi"):
        rendered(engine="ray", ray={"objectStoreMemory": "1.5Gi"})


def test_default_container_is_set_if_there_are_several() -> None:
    sidecar = {"spec": {"containers": [{"name": "log", "image": "team/log:1"}]}}
    found = rendered(workers=[{"name": "default", "pod": sidecar}])
    assert DEFAULT_CONTAINER not in annotations_of(found["Deployment/demo-head"])
    assert annotations_of(found["Deployment/demo-worker"]) == {DEFAULT_CONTAINER: "worker"}


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_image_can_be_pinned_by_digest(engine: str) -> None:
    """The defaults are tags of releases, which their registries can move."""
    image = f"example.org/team/image@sha256:{'0' * 64}"
    desired = cluster(engine=engine, workers=1, image=image, tied=True)
    _, head = sidecar.head_and_owned(desired, watched=True)
    found = [head, rendered(engine=engine, workers=1, image=image)["Deployment/demo-worker"]]
    assert {each["image"] for deployment in found for each in pod_of(deployment)["containers"]} == {image}


def test_memory_has_a_default() -> None:
    found = rendered()
    assert container_of(found["Deployment/demo-head"])["resources"]["limits"]["memory"] == str(DEFAULTS.head_memory)
    assert container_of(found["Deployment/demo-worker"])["resources"]["limits"]["memory"] == str(DEFAULTS.worker_memory)


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_default_sizes_fit_on_a_node_of_two_processors(engine: str) -> None:
    """The head, its helper and three workers; a tenth of a processor remains for the node. None is limited to less than
    a processor."""
    found = rendered(engine=engine, workers=3)
    pods = [container_of(found["Deployment/demo-head"]), *3 * [container_of(found["Deployment/demo-worker"])]]
    requests = [each["resources"]["requests"]["cpu"] for each in pods]
    assert requests == ["250m", "500m", "500m", "500m"]
    assert float(quantity("10m")) + sum(float(quantity(each)) for each in requests) <= 1.9
    assert all(quantity(each["resources"].get("limits", {}).get("cpu", "1")) >= 1 for each in pods)


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
    assert "publishNotReadyAddresses" not in service["spec"], "a head on a lost node would get connections"


HOST = {"host": "demo.example.org"}


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_ingress_uses_the_port_that_the_policy_opens(engine: str) -> None:
    made = cluster(engine, expose=HOST)
    path = objects.ingress(made)["spec"]["rules"][0]["http"]["paths"][0]
    assert {"ports": [{"port": path["backend"]["service"]["port"]["number"], "protocol": "TCP"}]} in (
        objects.network_policy(made)["spec"]["ingress"]
    )


@pytest.mark.parametrize("eviction", ["block", "allow"])
def test_disruption_budget_blocks_the_eviction_of_a_ready_head(eviction: str) -> None:
    found = rendered(head={"eviction": eviction})
    assert ("PodDisruptionBudget/demo-head" in found) == (eviction == "block")
    if eviction == "block":
        budget = found["PodDisruptionBudget/demo-head"]
        assert budget["spec"]["maxUnavailable"] == 0
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert "spec.head.eviction" in budget["metadata"]["annotations"][names.HINT]


def test_eviction_does_not_affect_the_head_s_pod() -> None:
    block, allow = cluster(), cluster(head={"eviction": "allow"})
    assert block.shape.head.fingerprint == allow.shape.head.fingerprint
    assert objects.head_deployment(block) == objects.head_deployment(allow)


def test_host_name_creates_an_ingress() -> None:
    expose = {"host": "demo.example.org", "ingressClass": "nginx", "tlsSecret": "cert"}
    ingress = rendered(expose=expose)["Ingress/demo-head"]
    assert ingress["spec"]["rules"][0]["host"] == "demo.example.org"
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["demo.example.org"], "secretName": "cert"}]


def test_created_namespace_comes_first_and_is_not_marked_as_ours() -> None:
    """It may exist and be shared: `oars down` must not delete it."""
    found = rendered(namespace={"create": True})
    assert next(iter(found)) == "Namespace/lab"
    assert found["Namespace/lab"]["metadata"] == {"name": "lab"}


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


@pytest.mark.parametrize(
    ("engine", "variable"),
    [("dask", "OARS_HAND_OVER"), ("ray", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"), ("mars", "OARS_HAND_OVER")],
)
def test_workers_have_time_to_hand_over_what_they_hold(engine: str, variable: str) -> None:
    """A head has nothing that another pod could take."""
    found = rendered(engine=engine, env={"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "7"} if engine == "ray" else {})
    head, worker = found["Deployment/demo-head"], found["Deployment/demo-worker"]
    assert pod_of(worker)["terminationGracePeriodSeconds"] == 120
    assert pod_of(head)["terminationGracePeriodSeconds"] < 10
    assert variables_of(worker)[variable] == ("7" if engine == "ray" else "1"), "the user's own value counts"
    assert engine == "ray" or variable not in variables_of(head)


@pytest.mark.parametrize(
    ("fields", "grace"),
    [
        ({}, 120),
        ({"drain": {"timeout": "30s"}}, 120),
        ({"drain": {"timeout": "5m"}}, 305),
        ({"drain": {"timeout": "1h"}}, 600),
        ({"workers": [{"replicas": 1, "pod": {"spec": {"terminationGracePeriodSeconds": 60}}}]}, 60),
        ({"workers": [{"replicas": 1, "pod": {"spec": {"terminationGracePeriodSeconds": 900}}}]}, 900),
    ],
)
def test_grace_period_fits_the_drain_and_ray_ends_its_own_before(fields: dict[str, Any], grace: int) -> None:
    worker = rendered(engine="ray", **fields)["Deployment/demo-worker"]
    assert pod_of(worker)["terminationGracePeriodSeconds"] == grace
    assert variables_of(worker)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == str(grace - 5)
