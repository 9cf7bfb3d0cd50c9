"""A user's PodTemplateSpec over ours: merged as Kubernetes merges, and nobody loses silently."""

from __future__ import annotations

from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.places.kube.overlay import merged

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
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    return {
        "metadata": {"labels": {"oars.dev/cluster": "demo"}, "annotations": {"ours": "1"}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1000, "runAsNonRoot": True},
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
        worker(resources={"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}),
        "spec.containers.0.resources.limits",
        {"cpu": "1", "nvidia.com/gpu": "1"},
    ),
    (worker(volumeMounts=[{"name": "d", "mountPath": "/d"}]), "spec.containers.0.volumeMounts.1.mountPath", "/d"),
    # A probe is one thing: half of ours and half of theirs would be neither.
    (worker(readinessProbe={"tcpSocket": {"port": 2}}), "spec.containers.0.readinessProbe", {"tcpSocket": {"port": 2}}),
    (worker(command=["dask", "worker"]), "spec.containers.0.command", ["dask", "worker"]),  # the same is no clash
]


@pytest.mark.parametrize(("theirs", "path", "value"), MERGES)
def test_merges(theirs: Object, path: str, value: Any) -> None:
    assert at(merged(ours(), theirs, "head.pod"), path) == value


CLASHES: list[tuple[Object, str]] = [
    ({"metadata": {"labels": {"oars.dev/cluster": "x"}}}, "metadata.labels[oars.dev/cluster]"),
    (worker(command=["sh"]), "spec.containers[worker].command"),
    (worker(resources={"limits": {"cpu": "4"}}), "spec.containers[worker].resources.limits[cpu]"),
    (worker(env=[{"name": "HOME", "value": "/x"}]), "spec.containers[worker].env[HOME].value"),
    (worker(ports=[{"containerPort": 8786, "name": "mine"}]), "spec.containers[worker].ports[8786].name"),
    (worker(args=["--more"]), "spec.containers[worker].args"),
    (worker(env=[{"name": "HOME", "valueFrom": {}}]), "spec.containers[worker].env[HOME].valueFrom"),
    ({"metadata": {"labels": {"oars.dev/mine": "x"}}}, "metadata.labels[oars.dev/mine]"),
    ({"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]}}, "spec.volumes[tmp].hostPath"),
    ({"spec": {"volumes": [{"name": "oars-files", "emptyDir": {}}]}}, "spec.volumes[oars-files]"),
    ({"spec": {"containers": [{"name": "oars", "image": "x"}]}}, "spec.containers[oars]"),
    ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
]


@pytest.mark.parametrize(("theirs", "path"), CLASHES)
def test_a_clash_is_an_error_that_says_which_field(theirs: Object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        merged(ours(), theirs, "workers[default].pod")
    assert f"workers[default].pod.{path}" in caught.value.message
    assert "clashes" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"nodeSelector": {}}, "head.pod.nodeSelector: a PodTemplateSpec has only metadata and spec"),
        ({"spec": {"containers": [{"image": "x"}]}}, "head.pod.spec.containers: each entry needs its name"),
        ({"spec": {"volumes": ["x"]}}, "head.pod.spec.volumes: each entry needs its name"),
    ],
)
def test_what_is_no_template_is_an_error(theirs: Object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        merged(ours(), theirs, "head.pod")
    assert words in caught.value.message


def test_neither_side_is_changed() -> None:
    mine, theirs = ours(), worker(env=[{"name": "A", "value": "1"}])
    merged(mine, theirs, "head.pod")
    assert mine == ours() and theirs == worker(env=[{"name": "A", "value": "1"}])
