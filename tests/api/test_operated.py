"""Clusters of an operator as clients see them: found, changed as described, forced, and removed with nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.wait import until
from tests.api.stage import Operator, Stage, group, oars, resource
from tests.api.test_direct import at_home as any_home
from tests.api.test_direct import ready, run_scenario
from tests.api.test_rbac_modes import account, kubeconfig_of, may

from oars.base.errors import UsageError
from oars.client import operator_client
from oars.client.handles import scale
from oars.operator import crd, rbac
from oars.operator.rbac import Subject
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.names import FORCE
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build

Operators = Callable[..., Operator]
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"


at_home = partial(any_home, mode="operator")


def described(replicas: int = 2, **spec: Any) -> ClusterSpec:
    return build({**resource("demo", group(replicas=replicas))["spec"], **spec, "place": "kubernetes"}).spec


def test_user_with_the_printed_role_can_use_the_operator(
    stage: Stage, operators: Operators, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operators()
    account(stage, "ann")
    namespace = stage.kube.namespace
    stage.kube.apply(*rbac.user_role(namespace, Subject("ServiceAccount", "ann", namespace)))
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    assert not may(stage, "ann", "list", "configmaps")

    async def scenario() -> None:
        async with at_home(stage, kubeconfig_of(stage, "ann", tmp_path / "config")) as home:
            assert await home.names() == []
            await home.create(described())
            await ready(home, 2)
            await scale(home.demo, 3)
            await ready(home, 3)
            assert await home.names() == ["demo"]
            # Kubernetes looks for new kinds to collect once in half a minute, and she may not end pods herself.
            assert await home.demo.stop(150)

    with caplog.at_level(logging.INFO, "oars"):
        run_scenario(scenario())
    until("nothing is left", lambda: not stage.left("demo"))


def test_fields_removed_from_a_file_are_removed_at_any_depth(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            head = {**resource("demo")["spec"]["head"], "env": {"A": "1", "B": "2"}}
            before = described(head=head, expose={"host": "a.example.org"}, env={"C": "3"})
            await home.create(before)
            after = described(head={**head, "env": {"B": "2"}})
            await home.demo.apply(after)
            found = await home.demo.spec()
            assert found.model_copy(update={"replicas": None}) == after

    run_scenario(scenario())


def test_force_applies_to_the_repeated_change_only(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            await home.create(described(3))
            await scale(home.demo, 1)
            generation = await home.demo.generation()
            await scale(home.demo, 1, force=True)
            resource_now = await home.backend.client.get(COMPUTE_CLUSTER, "demo", home.backend.namespace)
            assert await home.demo.generation() == generation
            assert resource_now["metadata"]["annotations"][FORCE] == str(generation)
            await scale(home.demo, 0)
            later = await home.backend.client.get(COMPUTE_CLUSTER, "demo", home.backend.namespace)
            assert FORCE not in later["metadata"].get("annotations", {})

    run_scenario(scenario())


def test_scale_subresource_works_for_kubectl_and_autoscalers(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            await home.create(described(3))
            assert stage.kube.kubectl(
                "get", "--raw", f"{stage.kube.path(crd.PLURAL, 'apis/oars.dev/v1alpha1')}/demo/scale"
            )
            stage.kube.kubectl("scale", "computecluster/demo", "--replicas=5")
            assert (await home.demo.spec()).workers[0].replicas == 5
            await scale(home.demo, 2)
            assert (await home.demo.spec()).workers[0].replicas == 2

    run_scenario(scenario())


def test_namespace_with_other_objects_is_not_deleted(stage: Stage) -> None:
    """Even if a description that says otherwise was written into it."""
    stage.create(resource("demo", namespace={"create": True}))

    async def scenario() -> None:
        async with at_home(stage) as home:
            assert await home.demo.stop(10)

    run_scenario(scenario())
    found = stage.kube.api.get(f"/api/v1/namespaces/{stage.kube.namespace}")
    assert not found["metadata"].get("deletionTimestamp")


@pytest.fixture
def home_of_operator(stage: Stage) -> Iterator[Callable[[str | None], None]]:
    """Set what the definition says of where its operator lives."""

    def say(namespace: str | None) -> None:
        stage.kube.api.patch(DEFINITION, {"metadata": {"annotations": {names.OPERATOR_NAMESPACE: namespace}}})

    yield say
    say(None)


def test_operator_is_found_in_any_namespace(
    stage: Stage, operators: Operators, home_of_operator: Callable[[str | None], None]
) -> None:
    operators()

    async def mode() -> str:
        async with at_home(stage) as home:
            return await operator_client.find_mode(home.backend.client, home.backend.namespace)

    home_of_operator(None)
    assert asyncio.run(mode()) == "direct"  # it leads in a namespace where nobody looks
    home_of_operator(stage.kube.namespace)
    assert asyncio.run(mode()) == "operator"

    async def elsewhere() -> str:
        async with at_home(stage) as home:
            with pytest.raises(
                UsageError, match=f"does not watch the namespace 'default': only {home.backend.namespace}"
            ):
                await operator_client.check_watched(home.backend.client, "default")
            return await operator_client.find_mode(home.backend.client, "default")

    assert asyncio.run(elsewhere()) == "direct"  # it watches one namespace


def test_operator_that_is_not_at_work_is_reported(stage: Stage, operators: Operators) -> None:
    operator = operators()
    stage.create(resource("demo", group(replicas=1)))
    stage.await_ready("demo")
    where = ("-n", stage.kube.namespace)
    assert "Nothing is wrong." in oars(stage, "why", "demo", *where)
    operator.stop()
    sentence = "No operator is running: changes and repairs are delayed until one is."
    for command in ("status", "why"):
        shown = oars(stage, command, "demo", *where)
        assert "Ready" in shown and "NoOperator" in shown and sentence in shown
    refused = oars(stage, "scale", "demo", "2", *where, "--timeout", "5s", code=4)
    assert sentence in refused and "oars operator status" in refused
    operators(identity="two")
    assert stage.await_ready("demo")["ready"] == "2/2", "the change was kept"
    assert "Nothing is wrong." in oars(stage, "why", "demo", *where)


def test_kustomize_renames_a_cluster_with_all_its_objects(stage: Stage, operators: Operators, tmp_path: Path) -> None:
    operators()
    (tmp_path / "cluster.json").write_text(json.dumps(resource("demo", group(replicas=1))))
    changes = {"resources": ["cluster.json"], "namePrefix": "blue-", "nameSuffix": "-1"}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(changes))
    stage.kube.kubectl("apply", "-f", "-", text=stage.kube.kubectl("kustomize", str(tmp_path)))
    stage.await_ready("blue-demo-1")
    assert set(stage.deployments("blue-demo-1")) == {"blue-demo-1-head", "blue-demo-1-worker"}
    assert all(left.partition("/")[2].startswith("blue-demo-1") for left in stage.left("blue-demo-1"))
    assert not stage.left("demo")
