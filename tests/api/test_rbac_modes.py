"""Each way of using Oars with exactly the rights that `oars rbac` prints for it, and nothing more."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.wait import until
from tests.api.stage import Operator, Stage, group, quiet_for, resource
from tests.api.test_direct import at_home, make, play, ready, stage_is_empty

from oars.base.errors import Denied
from oars.client.backend import Making
from oars.client.backends import Where, kube_backend
from oars.client.kubernetes import KubeBackend
from oars.operator import NAME, rbac
from oars.operator.rbac import Subject
from oars.spec.load import build

Operators = Callable[..., Operator]


def kubeconfig_of(stage: Stage, account: str, path: Path) -> Path:
    """Of a ServiceAccount: with its token in place of the administrator's credentials."""
    kube = stage.kube
    token = kube.kubectl("create", "token", account).strip()
    config = kube.cluster.config()
    user = {**config["users"][0], "user": {"token": token}}
    path.write_text(json.dumps({**config, "users": [user]}))
    return path


def account(stage: Stage, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    stage.kube.api.create(stage.kube.path("serviceaccounts"), body)


def may(stage: Stage, name: str, verb: str, what: str) -> bool:
    user = f"--as=system:serviceaccount:{stage.kube.namespace}:{name}"
    command = stage.kube.popen("auth", "can-i", verb, what, user)
    said = command.communicate(timeout=90)[0] or ""  # "yes", after a warning for what belongs to no namespace
    return any(line.startswith("yes") for line in said.splitlines())


def test_the_operator_with_its_rights_in_one_namespace(stage: Stage, operators: Operators, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, NAME)
    stage.kube.apply(*rbac.operator_roles(namespace, [namespace], nodes=False))
    until("it has its rights", lambda: may(stage, NAME, "list", "pods"))
    assert not may(stage, NAME, "list", "secrets")
    operator = operators(kubeconfig_of(stage, NAME, tmp_path / "config"))
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.edit("demo", {"replicas": 5})
    stage.await_ready("demo")
    stage.edit("demo", {"workers": [group(env={"A": "1"})], "replicas": 2})
    stage.until("demo", "has other workers", lambda: len(stage.workers("demo")) == 2)
    stage.await_ready("demo")
    stage.edit("demo", {"options": {"wrong": True}})
    stage.until("demo", "is refused", lambda: stage.get("demo")["status"]["reason"] == "InvalidSpec")
    stage.edit("demo", {"options": None, "workers": [group(pod={"spec": {"nodeSelector": {"type": "moon"}}})]})
    stage.until("demo", "says why", lambda: [e for e in stage.events("demo") if "node" in e["message"]])
    assert not operator.says("orbidden"), [line for line in operator.lines if "orbidden" in line]


@pytest.mark.parametrize(
    ("tied", "minimal"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.long),
        pytest.param(True, False, marks=pytest.mark.long),
        (True, True),
    ],
)
def test_direct_mode_with_its_rights(
    tied: bool, minimal: bool, stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    subject = Subject("ServiceAccount", "ann", namespace)
    stage.kube.apply(*rbac.direct_role(namespace, subject, minimal=minimal))
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def story() -> None:
        async with at_home(stage, config) as home:
            await make(home, 2, tied=tied)
            await ready(home, 2)
            remarks = [cause.reason for cause in (await home.report("demo")).causes]
            assert remarks == (["Unwatched"] if tied and minimal else []), "told for as long as it is so"
            await home.scale("demo", 4, None)
            await ready(home, 4)
            await home.scale("demo", 1, None)
            await ready(home, 1)
            assert await home.names() == ["demo"]
            assert await home.stop("demo", wait=90)
        stage_is_empty(stage)

    with caplog.at_level(logging.INFO, "oars"):
        play(story())
    if not (minimal and tied):  # there it says what the client may not do
        assert "orbidden" not in caplog.text


@contextmanager
def everywhere(stage: Stage, objects: list[dict[str, Any]]) -> Iterator[None]:
    """Roles that belong to no namespace, and so do not go with the test's."""
    stage.kube.apply(*objects)
    try:
        yield
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        stage.kube.kubectl("delete", "-f", "-", text=json.dumps(listed))


def test_a_namespace_for_each_cluster_with_the_rights_for_it(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    account(stage, "ann")
    own = Stage(replace(stage.kube, namespace=f"{stage.kube.namespace}-own"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def story() -> None:
        wanted = {"create": True, "name": own.kube.namespace}
        spec = build({**resource("demo", group(replicas=2), namespace=wanted)["spec"], "place": "kubernetes"}).spec
        async with at_home(stage, config) as home:
            await home.create("demo", spec, Making(True, lambda _: None))
            await ready(home, 2)
            assert len(own.workers("demo")) == 2
            await home.scale("demo", 1, None)
            await ready(home, 1)
            assert await home.stop("demo", wait=90)
        until("it is gone", lambda: not stage.kube.api.exists(f"/api/v1/namespaces/{own.kube.namespace}"), 180)

    with everywhere(stage, rbac.namespaces_role(Subject("ServiceAccount", "ann", stage.kube.namespace))):
        until("she has her rights", lambda: may(stage, "ann", "create", "namespaces"))
        assert not may(stage, "ann", "list", "nodes") and not may(stage, "ann", "list", "secrets")
        with caplog.at_level(logging.INFO, "oars"):
            play(story())
    assert "orbidden" not in caplog.text


def test_who_may_list_nodes_is_told_what_the_best_one_has(stage: Stage, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    subject = Subject("ServiceAccount", "ann", namespace)
    stage.kube.apply(*rbac.direct_role(namespace, subject))
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    assert not may(stage, "ann", "list", "nodes")
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def told(home: KubeBackend, words: str) -> None:
        async with asyncio.timeout(90):
            async for report in home.watch("demo"):
                if any(words in cause.message for cause in report.causes):
                    return

    async def story() -> None:
        spec = build({**resource("demo", group(replicas=1, cpu="99"))["spec"], "place": "kubernetes"}).spec
        async with at_home(stage, config) as home:
            await home.create("demo", spec, Making(False, lambda _: None))
            await told(home, "too little cpu is left")
            with everywhere(stage, rbac.nodes_role(subject)):
                await told(home, "no usable node has so much cpu (most: 32")
            assert await home.stop("demo", wait=90)

    play(story())
    assert not may(stage, "ann", "list", "nodes")


# rights that are missing


def without(objects: list[dict[str, Any]], resource: str, verbs: set[str]) -> list[dict[str, Any]]:
    """The same roles, in which nobody may do that."""
    roles = [each for each in objects if each["kind"].endswith("Role")]
    rules = [rule for role in roles for rule in role["rules"] if resource in rule["resources"]]
    for rule in rules:
        rule["verbs"] = [verb for verb in rule["verbs"] if verb not in verbs]
    for role in roles:
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    return objects


def leases(stage: Stage) -> list[str]:
    listed = stage.kube.api.get(stage.kube.path("leases", "apis/coordination.k8s.io/v1"))["items"]
    return [lease["metadata"]["name"] for lease in listed]


EVERYTHING = {"get", "list", "watch", "create", "update", "patch", "delete"}


@pytest.mark.parametrize(
    ("resource", "verbs", "rule"),
    [
        ("deployments", {"list", "watch"}, '{apiGroups: ["apps"], resources: ["deployments"], verbs: ["list"]}'),
        (
            "leases",
            EVERYTHING,
            '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}',
        ),
    ],
)
def test_direct_mode_without_a_right_says_the_rule_and_leaves_nothing(
    resource: str, verbs: set[str], rule: str, stage: Stage, tmp_path: Path
) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    whole = rbac.direct_role(namespace, Subject("ServiceAccount", "ann", namespace))
    stage.kube.apply(*without(whole, resource, verbs))
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def story() -> None:
        async with at_home(stage, config) as home:
            with pytest.raises(Denied, match=f"ann may not .* {resource}") as told:
                await make(home)
            assert rule in told.value.hint
            assert await home.names() == []
        stage_is_empty(stage)
        until("the Lease is gone", lambda: not leases(stage))

    play(story())


@pytest.mark.parametrize(
    ("resource", "verb"),
    [
        ("secrets", "create"),
        pytest.param("leases", "get", marks=pytest.mark.long),
        pytest.param("configmaps", "patch", marks=pytest.mark.long),
    ],
)
def test_direct_mode_tells_of_rights_that_it_finds_missing_later(
    resource: str, verb: str, stage: Stage, tmp_path: Path
) -> None:
    """By the loop, not by the call that made the cluster."""
    namespace = stage.kube.namespace
    account(stage, "ann")
    whole = rbac.direct_role(namespace, Subject("ServiceAccount", "ann", namespace))
    stage.kube.apply(*without(whole, resource, {verb}))
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def story() -> None:
        async with at_home(stage, config) as home:
            await make(home, tied=True)
            report = await home.report("demo")
            assert report.status.reason == "RightMissing"
            assert f'resources: ["{resource}"], verbs: ["{verb}"]' in report.causes[0].hint
            assert await home.stop("demo", wait=90)

    play(story())


def test_the_operator_tells_which_right_it_lacks(stage: Stage, operators: Operators, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, NAME)
    roles = rbac.operator_roles(namespace, [namespace], nodes=False)
    stage.kube.apply(*without(rbac.operator_roles(namespace, [namespace], nodes=False), "secrets", {"create"}))
    until("it has its rights", lambda: may(stage, NAME, "list", "pods"))
    operators(kubeconfig_of(stage, NAME, tmp_path / "config"))
    stage.create(resource("demo", engine="dask", image="example.org/none:1"))
    stage.until("demo", "is refused", lambda: stage.get("demo").get("status", {}).get("reason") == "RightMissing")
    refused = stage.get("demo")
    assert 'resources: ["secrets"], verbs: ["create"]' in refused["status"]["conditions"][0]["message"]
    assert quiet_for(4, lambda: int(stage.get("demo")["metadata"]["resourceVersion"])) == 0, "it is said once"

    async def story() -> None:
        where = Where("kubernetes", namespace=namespace, kubeconfig=str(stage.kube.kubeconfig), mode="operator")
        home = kube_backend(where, os.environ)
        try:
            (cause,) = (await home.report("demo")).causes
            assert cause.message.endswith(f"may not create secrets in namespace {namespace}.")
            assert cause.hint.startswith("Add this rule")
            stage.kube.apply(*roles)
            async for report in home.watch("demo"):
                if report.status.reason == "HeadStarting":  # nobody answers in a pod that is played
                    assert any(each.lines for each in report.causes)
                    break
        finally:
            await home.close()

    play(story())
