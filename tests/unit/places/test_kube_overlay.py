"""A user's PodTemplateSpec is merged into ours as Kubernetes merges; conflicts are errors."""

from __future__ import annotations

from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.places.kube.render.overlay import merged

Object = dict[str, Any]


def ours() -> Object:
    """A template like those of pod.py."""
    container = {
        "name": "worker",
        "image": "dask:1",
        "command": ["dask", "worker"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": "client", "containerPort": 8786}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 1}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"labels": {"oars.dev/cluster": "demo"}, "annotations": {"ours": "1"}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1000, "runAsNonRoot": True},
            "serviceAccountName": "demo",
            "terminationGracePeriodSeconds": 30,
        },
    }


def worker(**fields: Any) -> Object:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


def at(template: Object, path: str) -> Any:
    """A value by a path such as spec.containers.0.env."""
    found: Any = template
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    return found


MERGES: list[tuple[Object, str, Any]] = [
    ({"metadata": {"labels": {"team": "a"}}}, "metadata.labels", {"oars.dev/cluster": "demo", "team": "a"}),
    ({"metadata": {"annotations": {"ours": "2"}}}, "metadata.annotations", {"ours": "2"}),
    ({"spec": {"nodeSelector": {"disk": "ssd"}}}, "spec.nodeSelector", {"disk": "ssd"}),
    ({"spec": {"tolerations": [{"key": "gpu"}]}}, "spec.tolerations", [{"key": "gpu"}]),
    ({"spec": {"terminationGracePeriodSeconds": 90}}, "spec.terminationGracePeriodSeconds", 90),
    ({"spec": {"securityContext": {"runAsUser": 5}}}, "spec.securityContext", {"runAsUser": 5, "runAsNonRoot": True}),
    (
        {"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}},
        "spec.volumes",
        [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
    ),
    (
        {"spec": {"containers": [{"name": "log", "image": "log:1"}]}},
        "spec.containers.1",
        {"name": "log", "image": "log:1"},
    ),
    (worker(image="mine:2"), "spec.containers.0.image", "mine:2"),
    (
        worker(env=[{"name": "A", "value": "1"}]),
        "spec.containers.0.env",
        [{"name": "HOME", "value": "/tmp"}, {"name": "A", "value": "1"}],
    ),
    (worker(envFrom=[{"secretRef": {"name": "s"}}]), "spec.containers.0.envFrom", [{"secretRef": {"name": "s"}}]),
    (
        worker(resources={"requests": {"example.org/card": "1"}, "limits": {"example.org/card": "1"}}),
        "spec.containers.0.resources.limits",
        {"cpu": "1", "example.org/card": "1"},
    ),
    # Lists without a merge key are replaced, as in Kubernetes.
    (worker(securityContext={"capabilities": {"drop": []}}), "spec.containers.0.securityContext.capabilities.drop", []),
    (
        worker(securityContext={"capabilities": {"drop": ["NET_RAW"]}}),
        "spec.containers.0.securityContext",
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["NET_RAW"]}},
    ),
    (
        worker(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}}),
        "spec.containers.0.securityContext.capabilities",
        {"drop": ["ALL"], "add": ["SYS_PTRACE"]},
    ),
    ({"spec": {"serviceAccountName": "mine"}}, "spec.serviceAccountName", "mine"),
    ({"spec": {"serviceAccount": "mine"}}, "spec.serviceAccountName", "mine"),  # its deprecated name
    ({"spec": {"serviceAccount": "old", "serviceAccountName": "new"}}, "spec.serviceAccountName", "new"),
    (worker(volumeMounts=[{"name": "d", "mountPath": "/d"}]), "spec.containers.0.volumeMounts.1.mountPath", "/d"),
    # Probes are replaced: a mix of both would be invalid.
    (worker(readinessProbe={"tcpSocket": {"port": 2}}), "spec.containers.0.readinessProbe", {"tcpSocket": {"port": 2}}),
    # YAML has numbers as keys, JSON does not.
    ({"metadata": {"labels": {1: "a"}}}, "metadata.labels", {"oars.dev/cluster": "demo", "1": "a"}),
    ({"metadata": {"labels": {"env": "prod"}}}, "metadata.labels", {"oars.dev/cluster": "demo", "env": "prod"}),
    (
        worker(command=["dask", "worker"]),
        "spec.containers.0.command",
        ["dask", "worker"],
    ),  # the same value is no conflict
]


@pytest.mark.parametrize(("theirs", "path", "value"), MERGES)
def test_merges(theirs: Object, path: str, value: Any) -> None:
    assert at(merged(ours(), theirs, "head.pod"), path) == value


def test_deprecated_name_of_the_account_is_not_rendered() -> None:
    """Kubernetes would set both, and kubectl would show a difference at every apply."""
    assert "serviceAccount" not in merged(ours(), {"spec": {"serviceAccount": "mine"}}, "head.pod")["spec"]


NULLS: list[Object] = [
    {"metadata": None},
    {"spec": None},
    {"metadata": {"labels": None, "annotations": None}},
    {"spec": {"containers": None, "volumes": None, "securityContext": None, "terminationGracePeriodSeconds": None}},
    {"spec": {"nodeSelector": None, "restartPolicy": None}},
    worker(env=None, volumeMounts=None, resources=None, securityContext=None, readinessProbe=None, command=None),
    worker(resources={"requests": None, "limits": {"cpu": None}}, args=None),
    worker(env=[{"name": "HOME", "value": None}], ports=[{"containerPort": 8786, "name": None}]),
]


@pytest.mark.parametrize("theirs", NULLS)
def test_null_counts_as_not_set(theirs: Object) -> None:
    assert merged(ours(), theirs, "head.pod") == ours()


def test_null_in_an_added_entry_is_not_rendered() -> None:
    theirs = {"spec": {"volumes": [{"name": "d", "emptyDir": {"medium": None}}]}}
    assert at(merged(ours(), theirs, "head.pod"), "spec.volumes.1") == {"name": "d", "emptyDir": {}}


KINDS: list[tuple[Object, str]] = [
    ({"spec": {"containers": {"name": "worker"}}}, "spec.containers: must be a list"),
    ({"spec": {"containers": "worker"}}, "spec.containers: must be a list"),
    ({"spec": {"volumes": {"name": "d"}}}, "spec.volumes: must be a list"),
    (worker(env={"A": "1"}), "spec.containers[worker].env: must be a list"),
    (worker(ports=8786), "spec.containers[worker].ports: must be a list"),
    ({"spec": []}, "spec: must be a map"),
    ({"metadata": "x"}, "metadata: must be a map"),
    ({"metadata": {"labels": [{"team": "a"}]}}, "metadata.labels: must be a map"),
    (worker(resources=[{"limits": {}}]), "spec.containers[worker].resources: must be a map"),
    (worker(readinessProbe="/health"), "spec.containers[worker].readinessProbe: must be a map"),
]


@pytest.mark.parametrize(("theirs", "words"), KINDS)
def test_list_for_a_map_or_map_for_a_list_is_an_error(theirs: Object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        merged(ours(), theirs, "head.pod")
    assert f"head.pod.{words}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("theirs", "words"), [(["a"], r": must be a map"), ({"oars.dev/head": "1"}, r"\[oars\.dev/head\] cannot be set")]
)
def test_annotations_are_checked_even_if_our_template_has_none(theirs: Any, words: str) -> None:
    """Oars may add some later."""
    mine = ours()
    del mine["metadata"]["annotations"]
    with pytest.raises(SpecError, match=rf"head\.pod\.metadata\.annotations{words}"):
        merged(mine, {"metadata": {"annotations": theirs}}, "head.pod")


def test_gpus_of_the_container_must_match_the_group() -> None:
    mine, theirs = ours(), worker(resources={"limits": {"nvidia.com/gpu": "2"}})
    with pytest.raises(SpecError) as caught:
        merged(mine, theirs, "workers[default].pod")
    assert caught.value.hint == "Set gpu of the worker group instead."
    mine["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    assert merged(mine, theirs, "workers[default].pod") == mine
    with pytest.raises(SpecError, match=r"limits\[nvidia\.com/gpu\] cannot be set"):
        merged(mine, worker(resources={"limits": {"nvidia.com/gpu": "1"}}), "workers[default].pod")


CONFLICTS: list[tuple[Object, str]] = [
    ({"metadata": {"labels": {"oars.dev/cluster": "x"}}}, "metadata.labels[oars.dev/cluster]"),
    (worker(command=["sh"]), "spec.containers[worker].command"),
    (worker(resources={"limits": {"cpu": "4"}}), "spec.containers[worker].resources.limits[cpu]"),
    (worker(resources={"limits": {"nvidia.com/gpu": "4"}}), "spec.containers[worker].resources.limits[nvidia.com/gpu]"),
    (worker(env=[{"name": "HOME", "value": "/x"}]), "spec.containers[worker].env[HOME].value"),
    (worker(ports=[{"containerPort": 8786, "name": "mine"}]), "spec.containers[worker].ports[8786].name"),
    (worker(args=["--more"]), "spec.containers[worker].args"),
    (worker(env=[{"name": "HOME", "valueFrom": {}}]), "spec.containers[worker].env[HOME].valueFrom"),
    ({"metadata": {"labels": {"oars.dev/mine": "x"}}}, "metadata.labels[oars.dev/mine]"),
    ({"metadata": {"annotations": {"oars.dev/files": "x"}}}, "metadata.annotations[oars.dev/files]"),
    ({"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]}}, "spec.volumes[tmp].hostPath"),
    ({"spec": {"volumes": [{"name": "oars-files", "emptyDir": {}}]}}, "spec.volumes[oars-files]"),
    ({"spec": {"containers": [{"name": "oars", "image": "x"}]}}, "spec.containers[oars]"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
]


@pytest.mark.parametrize(("theirs", "path"), CONFLICTS)
def test_conflict_is_an_error_that_names_the_field(theirs: Object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        merged(ours(), theirs, "workers[default].pod")
    assert f"workers[default].pod.{path}" in caught.value.message
    assert "cannot be set" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"nodeSelector": {}}, "head.pod.nodeSelector: a PodTemplateSpec has only metadata and spec"),
        ({"spec": {"containers": [{"image": "x"}]}}, "head.pod.spec.containers: each entry needs its name"),
        ({"spec": {"volumes": ["x"]}}, "head.pod.spec.volumes: each entry needs its name"),
        ({"spec": {"containers": [{"name": None}]}}, "head.pod.spec.containers: each entry needs its name"),
        ({"spec": {"containers": [{"name": ["x"]}]}}, "head.pod.spec.containers: each entry needs its name"),
    ],
)
def test_invalid_template_is_an_error(theirs: Object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        merged(ours(), theirs, "head.pod")
    assert words in caught.value.message


def test_arguments_are_not_modified() -> None:
    mine, theirs = ours(), worker(env=[{"name": "A", "value": "1"}])
    merged(mine, theirs, "head.pod")
    assert mine == ours() and theirs == worker(env=[{"name": "A", "value": "1"}])
