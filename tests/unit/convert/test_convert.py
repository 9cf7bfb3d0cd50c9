"""Golden files: each manifest of manifests/ as ours, with what is not honoured. OARS_GOLDEN=1 writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars import engines
from oars.base.errors import SpecError
from oars.cli.output import as_yaml
from oars.convert import Converted
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.driver import Attempted, driver_job
from oars.places.kube.render.objects import manifests
from oars.plan.desired import build
from oars.service import foreign
from oars.service.manifests import render
from oars.spec import load
from oars.spec.load_job import build_job

FOLDER = Path(__file__).parent
MANIFESTS = sorted((FOLDER / "manifests").glob("*.yaml"))


def converted(content: str) -> Converted:
    return foreign.convert_text(content, "x.yaml")


def changed(name: str, **spec: Any) -> str:
    """A manifest of manifests/ with other fields in the spec of its first document."""
    documents = list(yaml.safe_load_all((FOLDER / "manifests" / f"{name}.yaml").read_text()))
    documents[0]["spec"] |= spec
    return yaml.safe_dump_all(documents)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_becomes_ours(path: Path) -> None:
    found = converted(path.read_text())
    text = "\n---\n".join(map(as_yaml, found.objects)) + "\n" + "".join(f"# {each}\n" for each in found.unmet)
    golden = FOLDER / "golden" / path.name
    if os.environ.get("OARS_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_printed_needs_no_further_conversion(path: Path) -> None:
    found = converted(path.read_text())
    again = converted("\n---\n".join(map(as_yaml, found.objects)) + "\n")
    assert again.objects == found.objects and not again.unmet


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_converted_can_be_rendered(path: Path) -> None:
    found = converted(path.read_text())
    for data in found.ours("ComputeCluster"):
        render("x", load.build(data).spec, None, secrets="reference")
    for data in found.ours("ComputeJob"):
        spec = build_job({}, manifest=data).spec
        if spec.cluster is not None:
            cluster = build("x", spec.cluster, engines.get(spec.cluster.engine), DEFAULTS, namespace="n")
            driver_job(Attempted("x", {"uid": "u"}, 1, cluster), spec)


@pytest.mark.parametrize("kind", ["APT", "CONDA", "PIP"])
def test_packages_that_only_an_entry_point_installs_are_reported(kind: str) -> None:
    """Those of Dask's images. Oars' pods have a command of their own."""
    container = {"name": "x", "image": "i", "env": [{"name": f"EXTRA_{kind}_PACKAGES", "value": "s3fs"}]}
    pod = {"spec": {"containers": [container]}}
    found = converted(changed("dask-cluster", worker=pod, scheduler=pod))
    reasons = [each.reason for each in found.unmet if each.path.endswith("env[0].name")]
    assert len(reasons) == 2 and all("`oars image build --engine dask --package PACKAGE`" in each for each in reasons)
    (spec,) = [each["spec"] for each in found.objects]
    rendered = manifests(build("x", load.build(spec).spec, engines.get("dask"), DEFAULTS, namespace="n"))
    containers = [
        each["spec"]["template"]["spec"]["containers"][0] for each in rendered if each["kind"] == "Deployment"
    ]
    assert len(containers) >= 2 and all(each["command"] for each in containers)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_ADDRESS"])
def test_variable_that_oars_sets_is_reported(name: str) -> None:
    container = {"name": "x", "image": "i", "env": [{"name": name, "valueFrom": {"fieldRef": {}}}]}
    head = {"template": {"spec": {"containers": [container]}}}
    found = converted(changed("ray-cluster", headGroupSpec=head, workerGroupSpecs=[]))
    assert [each.reason for each in found.unmet if each.path.endswith("env[0].name")] == [f"Oars sets {name} itself"]


def test_old_group_of_kubedl_and_a_list_are_read() -> None:
    job = (FOLDER / "manifests/mars-job.yaml").read_text().replace("training.kubedl.io", "kubedl.io")
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(job)]})
    assert converted(listed).objects == converted(job).objects


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("ray-job", submissionMode="InteractiveMode"), r"spec.submissionMode is InteractiveMode"),
        (changed("ray-job", entrypoint=None), r"spec.entrypoint is missing"),
        (changed("ray-job", backoffLimit="two"), r"spec.backoffLimit must be a whole number"),
        (changed("ray-job", runtimeEnvYAML="- x"), r"spec.runtimeEnvYAML must be a mapping"),
        (changed("ray-cluster", workerGroupSpecs=[{"numOfHosts": 4}]), r"numOfHosts is more than 1"),
        (changed("ray-cluster", headGroupSpec={}), r"spec.headGroupSpec.template.spec.containers is missing"),
        (changed("dask-cluster", worker={"replicas": -1, "spec": {"containers": [{}]}}),
         r"Converted ComputeCluster simple: .*replicas must be at least 0"),
        (changed("mars-job", marsReplicaSpecs={}), r"spec.marsReplicaSpecs must be a mapping of roles"),
        ("{apiVersion: ray.io/v1, kind: RayCluster}", r"metadata.name is missing"),
        ("{apiVersion: kubernetes.dask.org/v1, kind: DaskWorkerGroup, metadata: {name: a}, spec: {cluster: b}}",
         r"spec.cluster is 'b', which is not a DaskCluster of this file"),
        ("{apiVersion: v1, kind: Pod}", r"has no manifest that Oars converts"),
        ("[1]\n---\n{}", r"a document is not a mapping"),
    ],
)  # fmt: skip
def test_what_oars_cannot_run_is_refused_with_a_sentence(content: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        converted(content)


def test_error_names_the_position_in_the_file() -> None:
    content = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: a}\nspec:\n  enableInTreeAutoscaling: x\n"
    with pytest.raises(SpecError, match=r"^x.yaml:5:3: spec.enableInTreeAutoscaling must be true or false"):
        converted(content)


def test_unknown_field_is_reported() -> None:
    (found,) = [each for each in converted(changed("ray-job", entrypiont="x")).unmet if "entrypiont" in each.path]
    assert str(found) == "RayJob rayjob-demo: spec.entrypiont: is not a known field of RayJob."


def test_values_without_effect_are_not_reported() -> None:
    spec = {"suspend": False, "managedBy": "ray.io/kuberay-operator", "upgradeStrategy": {"type": "None"}}
    before, after = converted(changed("ray-cluster")), converted(changed("ray-cluster", **spec))
    assert before == after


@pytest.mark.parametrize(
    ("rules", "cleanup", "ttl"),
    [
        ({}, {"policy": "none"}, None),
        ({"shutdownAfterJobFinishes": True}, {"policy": "running"}, None),
        (
            {"deletionStrategy": {"onSuccess": {"policy": "DeleteCluster"}, "onFailure": {"policy": "DeleteNone"}}},
            {"policy": "none"},
            None,
        ),
        (
            {"deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}, "onFailure": {"policy": "DeleteSelf"}}},
            {"policy": "none"},
            0,
        ),
    ],
)
def test_deletion_of_a_ray_job(rules: dict[str, Any], cleanup: dict[str, Any], ttl: int | None) -> None:
    given = {"shutdownAfterJobFinishes": False, "ttlSecondsAfterFinished": 0, **rules}
    (job,) = converted(changed("ray-job", **given)).ours("ComputeJob")
    assert (job["spec"].get("cleanup"), job["spec"].get("ttlAfterFinished")) == (cleanup, ttl)


def test_two_clusters_are_refused_where_one_is_needed() -> None:
    content = (FOLDER / "manifests/mars-job.yaml").read_text()
    found = converted(f"{content}---\n{content.replace('mars-test-demo', 'other')}")
    with pytest.raises(SpecError, match="must have one ComputeCluster; it has mars-test-demo, other"):
        foreign.one(found, ("ComputeCluster",), "x.yaml")


def test_objects_that_a_command_does_not_create_are_reported() -> None:
    found = converted((FOLDER / "manifests/ray-job.yaml").read_text())
    job, unmet = foreign.one(found, ("ComputeJob",), "x.yaml")
    assert job["kind"] == "ComputeJob" and str(unmet[-1]).startswith("ConfigMap code: this command does not create it")


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        ({"schedule": "@daily"}, {"cron": "@daily", "timeZone": "UTC"}),
        ({"schedule": "CRON_TZ=Europe/Berlin 0 3 * * *", "timeZone": ""}, {"timeZone": "Europe/Berlin"}),
        ({"schedule": "TZ=Europe/Berlin 0 3 * * *", "timeZone": "Asia/Tokyo"}, {"timeZone": "Asia/Tokyo"}),
        ({"suspend": True}, {"suspend": True, "cron": "0 3 * * *", "concurrency": "Allow"}),
    ],
)
def test_schedule_of_a_cron_job_is_kept(spec: dict[str, Any], schedule: dict[str, Any]) -> None:
    found = converted(changed("ray-cron-job", **spec))
    (job,) = found.ours("ComputeJob")
    made = build_job({}, manifest=job).spec.schedule
    assert made is not None
    assert not found.unmet
    assert schedule.items() <= made.model_dump(by_alias=True).items()


@pytest.mark.parametrize("cron", ["@every 1h", "", "0 3 * * * *", "TZ=Nowhere/City 0 3 * * *"])
def test_schedule_that_oars_does_not_have_is_refused(cron: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.schedule"):
        converted(changed("ray-cron-job", schedule=cron, timeZone=""))


def test_run_that_is_created_suspended_is_reported() -> None:
    documents = yaml.safe_load((FOLDER / "manifests/ray-cron-job.yaml").read_text())
    documents["spec"]["jobTemplate"]["suspend"] = True
    found = converted(yaml.safe_dump(documents))
    assert [each.path for each in found.unmet] == ["spec.jobTemplate.suspend"]
    assert "suspend" not in found.objects[0]["spec"]


def ray_head(**container: Any) -> str:
    """A RayCluster without workers, with these fields in the container of its head."""
    ports = [{"name": "dashboard", "containerPort": 8265}, {"name": "own", "containerPort": 9000}]
    head = {"template": {"spec": {"containers": [{"name": "x", "image": "i", "ports": ports, **container}]}}}
    return changed("ray-cluster", headGroupSpec=head, workerGroupSpecs=[])


@pytest.mark.parametrize("kind", ["readinessProbe", "livenessProbe", "startupProbe"])
@pytest.mark.parametrize(
    ("probe", "is_reported"),
    [
        ({"httpGet": {"port": 8265, "path": "/"}, "initialDelaySeconds": 5}, False),
        ({"httpGet": {"port": "dashboard"}}, False),
        ({"tcpSocket": {"port": 6379}}, False),
        ({"exec": {"command": ["bash", "-c", "wget -q http://localhost:52365/api/local_raylet_healthz"]}}, False),
        ({}, False),
        ({"exec": {"command": ["cat", "/tmp/alive"]}}, True),
        ({"httpGet": {"port": "own"}}, True),
        ({"httpGet": {"port": 9000}}, True),
        ({"grpc": {"port": 9000}}, True),
        ({"httpGet": {"port": ["x"]}}, True),
    ],
)
def test_probe_is_reported_unless_it_is_of_the_engine(kind: str, probe: dict[str, Any], *, is_reported: bool) -> None:
    found = [each.path for each in converted(ray_head(**{kind: probe})).unmet if each.path.endswith("Probe")]
    assert found == ([f"spec.headGroupSpec.template.spec.containers[0].{kind}"] if is_reported else [])


@pytest.mark.parametrize(
    ("port", "reported"),
    [
        ({"port": 6379, "targetPort": 6379}, []),
        ({"port": 8265, "targetPort": "dashboard"}, []),
        ({"port": 8265, "nodePort": 30007}, ["spec.ports[0].nodePort"]),
        ({"port": 80, "targetPort": 8265}, ["spec.ports[0]"]),
        ({"port": 8265, "targetPort": 9000}, ["spec.ports[0]"]),
        ({"port": 8080}, ["spec.ports[0]"]),
    ],
)
def test_port_that_the_service_of_oars_lacks_is_reported(port: dict[str, Any], reported: list[str]) -> None:
    documents = list(yaml.safe_load_all((FOLDER / "manifests/ray-deployments.yaml").read_text()))
    (service,) = [each for each in documents if each["kind"] == "Service"]
    service["spec"]["ports"] = [port]
    found = converted(yaml.safe_dump_all(documents)).unmet
    assert [each.path for each in found if each.document.startswith("Service")] == reported


@pytest.mark.parametrize(
    ("environment", "packages"),
    [
        ({"pip": ["requests==2.26.0", "numpy"]}, "requests==2.26.0, numpy"),
        ({"pip": {"packages": ["requests"], "pip_check": False}}, "requests"),
        ({"pip": "./requirements.txt"}, "./requirements.txt"),
        ({"uv": ["requests"]}, "requests"),
        ({"conda": {"dependencies": ["scipy"]}}, "scipy"),
    ],
)
def test_packages_that_the_image_must_have_are_named(environment: dict[str, Any], packages: str) -> None:
    found = converted(changed("ray-job", runtimeEnvYAML=yaml.safe_dump(environment))).unmet
    (reason,) = [each.reason for each in found if each.path.startswith("spec.runtimeEnvYAML")]
    assert reason.endswith(f"must have them; see --image. It needs {packages}")


def submitted(*command: str, **spec: Any) -> Converted:
    container = {"name": "submitter", "image": "rayproject/ray:2.52.0", "command": list(command)}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return converted(changed("ray-job", **{"entrypoint": None, "submitterPodTemplate": template, **spec}))


def test_command_of_a_submitter_is_the_entrypoint() -> None:
    line = "ray job submit --address=http://$RAY_DASHBOARD_ADDRESS --submission-id $ID -- python x.py --n 3; true"
    found = submitted("sh", "-c", line)
    assert found.ours("ComputeJob")[0]["spec"]["entrypoint"] == ["python", "x.py", "--n", "3"]
    assert not [each for each in found.unmet if "submitterPodTemplate" in each.path]


def test_command_of_a_submitter_beside_an_entrypoint_is_reported() -> None:
    found = submitted("/submitter", "--", "python", "x.py", entrypoint="python y.py")
    assert found.ours("ComputeJob")[0]["spec"]["entrypoint"] == "python y.py"
    assert [each.path for each in found.unmet if "submitterPodTemplate" in each.path] == [
        "spec.submitterPodTemplate.spec.containers[0].command"
    ]


def test_submitter_without_a_command_for_ray_has_no_entrypoint() -> None:
    with pytest.raises(SpecError, match=r"spec\.entrypoint is missing"):
        submitted("/submitter", "--verbose")
