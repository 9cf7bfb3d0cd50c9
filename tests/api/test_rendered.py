"""Rendered manifests and the API server: what it takes, what it keeps, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.api import Object
from lab.errors import LabError
from lab.kube import Kube

OARS = str(Path(sys.executable).with_name("oars"))
OVERLAY = {
    "metadata": {"annotations": {"team": "a"}},
    "spec": {
        "serviceAccount": "default",
        "containers": [{"name": "head", "securityContext": {"capabilities": {"drop": []}}}],
    },
}


def rendered(kube: Kube, engine: str, *more: str, kubeconfig: str = "/dev/null", **spec: Any) -> str:
    """By default without access to the cluster, as in CI."""
    described = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeCluster", "metadata": {"name": "demo"}}
    text = yaml.safe_dump({**described, "spec": {"engine": engine, "image": "team/it:1", **spec}})
    words = [OARS, "render", "-f", "-", "-n", kube.namespace, *more]
    env = {**os.environ, "KUBECONFIG": kubeconfig}
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60, input=text, env=env).stdout


def deployment(kube: Kube, name: str) -> Object:
    return kube.api.get(f"{kube.path('deployments', 'apis/apps/v1')}/{name}")


def secret(kube: Kube) -> Object:
    return kube.api.get(f"{kube.path('secrets')}/demo-oars")


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_overlay_reaches_the_pods_and_a_second_apply_changes_none(kube_api: Kube, engine: str) -> None:
    env = {"PATH_X": "$(HOME)/bin", "TEXT": "$$(host)"}
    text = rendered(kube_api, engine, "--secrets", "inline", env=env, head={"pod": OVERLAY})
    kube_api.kubectl("apply", "-f", "-", text=text)
    template = deployment(kube_api, "demo-head")["spec"]["template"]
    container = template["spec"]["containers"][0]
    assert env.items() <= {entry["name"]: entry.get("value") for entry in container["env"]}.items()
    assert not container["securityContext"]["capabilities"].get("drop")
    assert template["spec"]["serviceAccountName"] == "default"
    before = [deployment(kube_api, name)["metadata"]["generation"] for name in ("demo-head", "demo-worker")]
    kube_api.kubectl("apply", "-f", "-", text=text)
    after = [deployment(kube_api, name)["metadata"]["generation"] for name in ("demo-head", "demo-worker")]
    assert before == after


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
@pytest.mark.parametrize(
    "spill",
    [
        {"paths": ["/mnt/a", "/mnt/b"]},
        {"size": "1Gi"},
        {"size": "1Gi", "medium": "memory"},
        {"size": "1Gi", "medium": "fast-ssd"},
    ],
    ids=["paths", "disk", "memory", "claim"],
)
def test_spill_volumes_are_accepted_and_a_second_apply_changes_none(
    kube_api: Kube, engine: str, spill: dict[str, Any]
) -> None:
    text = rendered(
        kube_api, engine, "--secrets", "inline", workers=[{"memory": "2Gi", "cache": "30%", "spill": spill}]
    )
    kube_api.kubectl("apply", "-f", "-", text=text)
    pod = deployment(kube_api, "demo-worker")["spec"]["template"]["spec"]
    volumes = [volume for volume in pod["volumes"] if volume["name"].startswith("spill-")]
    assert len(volumes) == max(1, len(spill.get("paths", ())))
    before = deployment(kube_api, "demo-worker")["metadata"]["generation"]
    kube_api.kubectl("apply", "-f", "-", text=text)
    assert deployment(kube_api, "demo-worker")["metadata"]["generation"] == before


@pytest.mark.parametrize("secrets", ["inline", "only"])
def test_render_refuses_new_secrets_for_a_running_cluster(kube_api: Kube, secrets: str) -> None:
    kube_api.kubectl("apply", "-f", "-", text=rendered(kube_api, "ray", "--secrets", secrets))
    before = secret(kube_api)["data"]
    with pytest.raises(LabError, match="immutable"):
        kube_api.kubectl("apply", "-f", "-", text=rendered(kube_api, "ray", "--secrets", secrets))
    assert secret(kube_api)["data"] == before
    kube_api.kubectl("apply", "-f", "-", text=rendered(kube_api, "ray", "--secrets", "reference", workers=5))
    assert deployment(kube_api, "demo-worker")["spec"]["replicas"] == 5


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_second_rendering_keeps_the_secret_of_the_cluster(kube_api: Kube, engine: str) -> None:
    """`oars render … | kubectl apply -f -`, twice, as a person types it."""
    access = str(kube_api.kubeconfig)
    kube_api.kubectl("apply", "-f", "-", text=rendered(kube_api, engine, kubeconfig=access, workers=1))
    before = secret(kube_api)["data"]
    said = kube_api.kubectl("apply", "-f", "-", text=rendered(kube_api, engine, kubeconfig=access, workers=5))
    assert "secret/demo-oars unchanged" in said and "deployment.apps/demo-worker configured" in said
    assert secret(kube_api)["data"] == before
    assert deployment(kube_api, "demo-worker")["spec"]["replicas"] == 5
    kube_api.kubectl("delete", "-f", "-", text=rendered(kube_api, engine, kubeconfig=access))
    assert kube_api.kubectl("get", "secrets", "-o", "name") == ""


def test_changed_file_changes_the_pod_template(kube_api: Kube) -> None:
    for number, word in ((1, "created"), (1, "unchanged"), (2, "configured")):
        text = rendered(kube_api, "mars", kubeconfig=str(kube_api.kubeconfig), mars={"config": {"a": number}})
        said = kube_api.kubectl("apply", "-f", "-", text=text)
        for name in ("demo-head", "demo-worker"):
            assert f"deployment.apps/{name} {word}" in said, said
