"""What pods use, as the metrics API says. Its objects are those of a CRD here, which the API server serves in the same
way as metrics-server does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from lab.wait import until
from tests.api.stage import OARS, Stage
from tests.api.test_direct import at_home, make, ready, run_scenario

DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    # Groups of Kubernetes itself need this annotation.
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "metrics.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "pods", "singular": "podmetrics", "kind": "PodMetrics", "listKind": "PodMetricsList"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
WHERE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def top(stage: Stage) -> dict[str, Any]:
    env = {**os.environ, "KUBECONFIG": str(stage.kube.kubeconfig)}
    argv = [OARS, "top", "demo", "-n", stage.kube.namespace, "-o", "json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90, check=True)
    group: dict[str, Any] = json.loads(done.stdout)["groups"][0]
    return group


@pytest.fixture
def metrics(stage: Stage) -> Iterator[str]:
    """The path of metrics objects, once they are served."""
    stage.kube.api.create(WHERE, DEFINITION)
    path = stage.kube.path("pods", "apis/metrics.k8s.io/v1beta1")
    try:
        until("the metrics API is served", lambda: stage.kube.api.raw("GET", path)[0] == 200)
        yield path
    finally:
        stage.kube.api.delete(f"{WHERE}/{DEFINITION['metadata']['name']}")


def test_top_has_no_figures_without_the_metrics_api(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            await make(home, 1)
            await ready(home, 1)
            assert await home.demo.usage() is None

    run_scenario(scenario())
    found = top(stage)
    assert (found["cpu"], found["memory"], found["ready"]) == (None, None, 1)


def test_top_shows_what_the_metrics_api_says(stage: Stage, metrics: str) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            await make(home, 2)
            await ready(home, 2)
            assert await home.demo.usage() == {}, "nothing was measured yet"
            for pod in stage.kube.pods():
                usage = {"cpu": "250m", "memory": "64Mi"}
                metadata = {"name": pod["metadata"]["name"], "labels": pod["metadata"]["labels"]}
                body = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": metadata}
                containers = [{"name": each["name"], "usage": usage} for each in pod["spec"]["containers"][:1]]
                stage.kube.api.create(metrics, {**body, "containers": containers})
            found = await home.demo.usage()
            assert found is not None and len(found) == 3 and "head" in found
            status = (await home.demo.report()).status
            assert status.created is not None

    run_scenario(scenario())
    found = top(stage)
    assert (found["cpu"], found["memory"]) == (0.5, 2 * 64 * 2**20), "of the two workers"
