"""Volumes of pods for data that does not fit in memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.operator.safe_fields import DEPLOYMENTS, restricted_fields
from oars.places.kube.render.pod import CHOOSE_SPILL
from tests.unit.places.test_kube_render import Object, container_of, pod_of, rendered, shared_memory_of, with_margin

GIB = 2**30


def worker(engine: str = "dask", **group: Any) -> Object:
    return rendered(engine=engine, workers=[{"memory": "4Gi", **group}])["Deployment/demo-worker"]


def volumes(deployment: Object) -> dict[str, Object]:
    return {each["name"]: each for each in pod_of(deployment)["volumes"] if each["name"].startswith("spill")}


def mounts(deployment: Object) -> list[Object]:
    return [each for each in container_of(deployment)["volumeMounts"] if each["name"].startswith("spill")]


def test_without_spill_there_is_no_volume() -> None:
    found = worker()
    assert not volumes(found) and not mounts(found)
    command = container_of(found)["command"]
    assert command[command.index("--local-directory") + 1] == "/tmp"


@pytest.mark.parametrize(
    ("spill", "volume"),
    [
        ({}, {"emptyDir": {}}),
        ({"size": "10Gi"}, {"emptyDir": {"sizeLimit": str(10 * GIB)}}),
        ({"size": "1Gi", "medium": "memory"}, {"emptyDir": {"medium": "Memory", "sizeLimit": str(GIB)}}),
        (
            {"size": "10Gi", "medium": "fast-ssd"},
            {"ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(10 * GIB)}},
                "storageClassName": "fast-ssd",
            }}}},
        ),
    ],
)  # fmt: skip
def test_volume_of_each_medium(spill: Object, volume: Object) -> None:
    found = worker(spill=spill)
    assert volumes(found) == {"spill-0": {"name": "spill-0", **volume}}
    assert mounts(found) == [{"name": "spill-0", "mountPath": "/var/oars/spill-0"}]
    command = container_of(found)["command"]
    assert command[command.index("--local-directory") + 1] == "/var/oars/spill-0"
    assert not volumes(rendered(workers=[{"spill": spill}])["Deployment/demo-head"])


def test_node_must_have_room_for_the_volume() -> None:
    amounts = container_of(worker(spill={"size": "10Gi"}))["resources"]
    assert amounts["requests"]["ephemeral-storage"] == str(10 * GIB)
    assert "ephemeral-storage" not in amounts["limits"], "logs and the image's own files would count too"
    assert (
        "ephemeral-storage" not in container_of(worker(spill={"size": "1Gi", "medium": "ssd"}))["resources"]["requests"]
    )


def test_pods_of_a_node_have_directories_of_their_own() -> None:
    found = worker(spill={"paths": ["/mnt/disk"]})
    assert volumes(found)["spill-0"]["hostPath"] == {"path": "/mnt/disk", "type": "Directory"}
    assert mounts(found) == [
        {"name": "spill-0", "mountPath": "/var/oars/spill-0", "subPathExpr": "$(POD_NAME)"}
    ]  # fmt: skip
    assert "POD_NAME" in {each["name"] for each in container_of(found)["env"]}, "the kubelet expands it"
    assert container_of(found)["command"][0] == "dask"


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_pod_chooses_one_of_several_paths(engine: str) -> None:
    found = worker(engine, spill={"paths": ["/mnt/a", "/mnt/b"]})
    command = container_of(found)["command"]
    assert command[:7] == ["sh", "-c", CHOOSE_SPILL, "sh", "/tmp/oars-spill", "/var/oars/spill", "2"]
    assert command[7] == engine and any("/tmp/oars-spill" in word for word in command[8:])


def test_mars_uses_all_paths() -> None:
    found = container_of(worker("mars", spill={"paths": ["/mnt/a", "/mnt/b"]}))
    env = {each["name"]: each.get("value") for each in found["env"]}
    assert found["command"][0] == "python3"
    assert env["XORBITS_SPILL_DIRS"] == env["MARS_SPILL_DIRS"] == "/var/oars/spill-0:/var/oars/spill-1"


@pytest.mark.parametrize("count", [2, 3])
def test_choice_depends_on_the_name_of_the_pod_only(count: int, tmp_path: Path) -> None:
    chosen: dict[str, int] = {}
    for name in [f"demo-worker-{number}" for number in range(12)] * 2:
        link = tmp_path / "link"
        command = ["sh", "-c", CHOOSE_SPILL, "sh", str(link), "/var/oars/spill", str(count), "readlink", str(link)]
        env = {"HOSTNAME": name, "PATH": os.environ["PATH"]}
        output = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        assert output.startswith("/var/oars/spill-")
        number = int(output.rpartition("-")[2])
        assert chosen.setdefault(name, number) == number
    assert set(chosen.values()) == set(range(count))


@pytest.mark.parametrize("engine", ["ray", "mars"])
def test_shared_memory_is_a_little_larger_than_the_cache(engine: str) -> None:
    assert shared_memory_of(worker(engine, cache="1Gi")) == with_margin(GIB)


def test_users_cannot_replace_the_volumes() -> None:
    volume = {"spec": {"volumes": [{"name": "spill-0", "emptyDir": {"medium": "Memory"}}]}}
    with pytest.raises(SpecError, match="reserved for a volume of Oars"):
        worker(spill={}, pod=volume)


def test_paths_of_the_node_need_the_right_to_create_deployments() -> None:
    safe = [{"cache": "40%", "spill": {"size": "1Gi", "medium": "ssd"}}]
    assert restricted_fields({"workers": safe}) == {}
    assert restricted_fields({"workers": [*safe, {"spill": {"paths": ["/etc"]}}]}) == {
        DEPLOYMENTS: ["workers[].spill.paths"]
    }
