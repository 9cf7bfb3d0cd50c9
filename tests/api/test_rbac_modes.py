"""Each mode of Oars works with exactly the permissions that `oars rbac` prints for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.wait import until
from tests.api.stage import OARS, Operator, Stage, group, quiet_for, resource, sized
from tests.api.test_direct import DemoClient, at_home, make, ready, run_scenario, stage_is_empty

from oars.base.errors import Denied
from oars.client.backend import Location
from oars.client.handles import scale
from oars.operator import NAME, rbac
from oars.operator.rbac import Subject
from oars.spec.load import build

Operators = Callable[..., Operator]


def refusals(lines: Iterable[str]) -> list[str]:
    """Log lines about a missing right. The right to read nodes is optional, and is tried."""
    return [line for line in lines if "orbidden" in line and "nodes is forbidden" not in line]


def kubeconfig_of(stage: Stage, account: str, path: Path) -> Path:
    """The kubeconfig of a ServiceAccount."""
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
    output = command.communicate(timeout=90)[0] or ""  # "yes", after a warning for kinds that are not namespaced
    return any(line.startswith("yes") for line in output.splitlines())


def test_operator_works_with_role_in_one_namespace(stage: Stage, operators: Operators, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, NAME)
    stage.kube.apply(*rbac.operator_roles(namespace, [namespace], nodes=False))
    until("the role is effective", lambda: may(stage, NAME, "list", "pods"))
    assert not may(stage, NAME, "list", "secrets")
    operator = operators(kubeconfig_of(stage, NAME, tmp_path / "config"))
    stage.create(resource("demo"))
    stage.await_ready("demo")
    stage.edit("demo", {"replicas": 5})
    stage.await_ready("demo")
    stage.edit("demo", sized(group(replicas=2, env={"A": "1"})))
    stage.until("demo", "has other workers", lambda: len(stage.workers("demo")) == 2)
    stage.await_ready("demo")
    stage.edit("demo", {"options": {"wrong": True}})
    stage.until("demo", "is rejected", lambda: stage.get("demo")["status"]["reason"] == "InvalidSpec")
    stage.edit("demo", {"options": None, **sized(group(pod={"spec": {"nodeSelector": {"type": "moon"}}}))})
    stage.until("demo", "says why", lambda: [e for e in stage.events("demo") if "node" in e["message"]])
    assert not refusals(operator.lines)


@pytest.mark.parametrize(
    ("tied", "minimal"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.long),
        pytest.param(True, False, marks=pytest.mark.long),
        (True, True),
    ],
)
def test_direct_mode_works_with_its_role(
    tied: bool, minimal: bool, stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    subject = Subject("ServiceAccount", "ann", namespace)
    stage.kube.apply(*rbac.direct_role(namespace, subject, minimal=minimal))
    until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def scenario() -> None:
        async with at_home(stage, config) as home:
            await make(home, 2, tied=tied)
            await ready(home, 2)
            remarks = [cause.reason for cause in (await home.demo.report()).causes]
            assert remarks == (["Unwatched"] if tied and minimal else []), "reported as long as it applies"
            await scale(home.demo, 4)
            await ready(home, 4)
            await scale(home.demo, 1)
            await ready(home, 1)
            assert await home.names() == ["demo"]
            assert await home.demo.stop(90)
        stage_is_empty(stage)

    with caplog.at_level(logging.INFO, "oars"):
        run_scenario(scenario())
    if not (minimal and tied):  # then a remark names the missing permission
        assert not refusals(caplog.text.splitlines())


@contextmanager
def cluster_wide(stage: Stage, objects: list[dict[str, Any]]) -> Iterator[None]:
    """Apply ClusterRoles, and delete them afterwards: they are not deleted with the test's namespace."""
    stage.kube.apply(*objects)
    try:
        yield
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        stage.kube.kubectl("delete", "-f", "-", text=json.dumps(listed))


def test_client_that_creates_namespaces_works_with_its_role(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    account(stage, "ann")
    own = Stage(replace(stage.kube, namespace=f"{stage.kube.namespace}-own"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def scenario() -> None:
        wanted = {"create": True, "name": own.kube.namespace}
        spec = build({**resource("demo", group(replicas=2), namespace=wanted)["spec"], "place": "kubernetes"}).spec
        async with at_home(stage, config) as home:
            await home.create(spec, tied=True)
            await ready(home, 2)
            assert len(own.workers("demo")) == 2
            await scale(home.demo, 1)
            await ready(home, 1)
            assert await home.demo.stop(90)
        until("it is deleted", lambda: not stage.kube.api.exists(f"/api/v1/namespaces/{own.kube.namespace}"), 180)

    with cluster_wide(stage, rbac.namespaces_role(Subject("ServiceAccount", "ann", stage.kube.namespace))):
        until("the role is effective", lambda: may(stage, "ann", "create", "namespaces"))
        assert not may(stage, "ann", "list", "nodes") and not may(stage, "ann", "list", "secrets")
        with caplog.at_level(logging.INFO, "oars"):
            run_scenario(scenario())
    assert not refusals(caplog.text.splitlines())


def test_client_that_may_list_nodes_reports_the_largest_one(stage: Stage, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    subject = Subject("ServiceAccount", "ann", namespace)
    stage.kube.apply(*rbac.direct_role(namespace, subject))
    until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
    assert not may(stage, "ann", "list", "nodes")
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def reported(home: DemoClient, text: str) -> None:
        async with asyncio.timeout(90):
            async for report in home.demo.watch():
                if any(text in cause.message for cause in report.causes):
                    return

    async def scenario() -> None:
        spec = build({**resource("demo", group(replicas=1, cpu="99"))["spec"], "place": "kubernetes"}).spec
        async with at_home(stage, config) as home:
            await home.create(spec)
            await reported(home, "too little cpu is free")
            with cluster_wide(stage, rbac.nodes_role(subject)):
                await reported(home, "no usable node has so much cpu (most: 32")
            assert await home.demo.stop(90)

    run_scenario(scenario())
    assert not may(stage, "ann", "list", "nodes")


# missing permissions


def without(objects: list[dict[str, Any]], resource: str, verbs: set[str]) -> list[dict[str, Any]]:
    """The roles without these verbs on the resource."""
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


ALL_VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


@pytest.mark.parametrize(
    ("resource", "verbs", "rule"),
    [
        ("deployments", {"list", "watch"}, '{apiGroups: ["apps"], resources: ["deployments"], verbs: ["list"]}'),
        (
            "leases",
            ALL_VERBS,
            '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}',
        ),
    ],
)
def test_direct_mode_without_permission_names_the_rule_and_leaves_nothing(
    resource: str, verbs: set[str], rule: str, stage: Stage, tmp_path: Path
) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    whole = rbac.direct_role(namespace, Subject("ServiceAccount", "ann", namespace))
    stage.kube.apply(*without(whole, resource, verbs))
    until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def scenario() -> None:
        async with at_home(stage, config) as home:
            with pytest.raises(Denied, match=f"ann may not .* {resource}") as caught:
                await make(home)
            assert rule in caught.value.hint
            assert await home.names() == []
        stage_is_empty(stage)
        until("the Lease is deleted", lambda: not leases(stage))

    run_scenario(scenario())


@pytest.mark.parametrize(
    ("resource", "verb"),
    [
        ("secrets", "create"),
        pytest.param("leases", "get", marks=pytest.mark.long),
        pytest.param("configmaps", "patch", marks=pytest.mark.long),
    ],
)
def test_direct_mode_reports_permission_that_its_loop_lacks(
    resource: str, verb: str, stage: Stage, tmp_path: Path
) -> None:
    namespace = stage.kube.namespace
    account(stage, "ann")
    whole = rbac.direct_role(namespace, Subject("ServiceAccount", "ann", namespace))
    stage.kube.apply(*without(whole, resource, {verb}))
    until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
    config = kubeconfig_of(stage, "ann", tmp_path / "config")

    async def scenario() -> None:
        async with at_home(stage, config) as home:
            await make(home, tied=True)
            report = await home.demo.report()
            assert report.status.reason == "RightMissing"
            assert f'resources: ["{resource}"], verbs: ["{verb}"]' in report.causes[0].hint
            assert await home.demo.stop(90)

    run_scenario(scenario())


def test_operator_reports_missing_permission(stage: Stage, operators: Operators, tmp_path: Path) -> None:
    namespace = stage.kube.namespace
    account(stage, NAME)
    roles = rbac.operator_roles(namespace, [namespace], nodes=False)
    stage.kube.apply(*without(rbac.operator_roles(namespace, [namespace], nodes=False), "secrets", {"create"}))
    until("the role is effective", lambda: may(stage, NAME, "list", "pods"))
    operators(kubeconfig_of(stage, NAME, tmp_path / "config"))
    stage.create(resource("demo", engine="dask", image="example.org/none:1"))
    stage.until("demo", "is rejected", lambda: stage.get("demo").get("status", {}).get("reason") == "RightMissing")
    rejected = stage.get("demo")
    assert 'resources: ["secrets"], verbs: ["create"]' in rejected["status"]["conditions"][0]["message"]
    assert quiet_for(4, lambda: int(stage.get("demo")["metadata"]["resourceVersion"])) == 0, "reported once"

    async def scenario() -> None:
        location = Location("kubernetes", namespace=namespace, kubeconfig=str(stage.kube.kubeconfig), mode="operator")
        home = DemoClient(location)
        try:
            (cause,) = (await home.demo.report()).causes
            assert cause.message.endswith(f"may not create secrets in namespace {namespace}.")
            assert cause.hint.startswith("Add this rule")
            stage.kube.apply(*roles)
            async for report in home.demo.watch():
                if report.status.reason == "HeadStarting":  # no engine runs in a simulated pod
                    assert any(each.lines for each in report.causes)
                    break
        finally:
            await home.backend.close()

    run_scenario(scenario())


class Ann:
    """The command line of somebody with the role of direct mode, without some of its rules."""

    def __init__(self, stage: Stage, folder: Path, *missing: str) -> None:
        namespace = stage.kube.namespace
        account(stage, "ann")
        role = rbac.direct_role(namespace, Subject("ServiceAccount", "ann", namespace))
        for what in missing:
            role = without(role, what, {"get", "create", "patch"})
        stage.kube.apply(*role)
        until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
        config = kubeconfig_of(stage, "ann", folder / "config")
        self._env = {**os.environ, "KUBECONFIG": str(config), "HOME": str(folder), "BROWSER": "true"}
        self.at = ("-n", namespace)
        self.file = folder / "cluster.json"

    def oars(self, *words: str, code: int) -> str:
        """What the command prints on stderr."""
        done = subprocess.run([OARS, *words], env=self._env, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr


@pytest.mark.parametrize("missing", ["secrets", "serviceaccounts", "networkpolicies"])
def test_missing_right_ends_up_at_once_with_the_rule_to_add(missing: str, stage: Stage, tmp_path: Path) -> None:
    ann = Ann(stage, tmp_path, missing)
    started = time.monotonic()
    ann.file.write_text(json.dumps(resource("demo", engine="dask", image="example.org/none:1")))
    error = ann.oars("up", "-f", str(ann.file), *ann.at, "--mode", "direct", "--timeout", "80s", "-q", code=5)
    assert time.monotonic() - started < 60
    assert f'resources: ["{missing}"]' in error and "Add this rule" in error and "was removed again" in error
    assert len(error.splitlines()) == 2, error  # what happened and what to do; no log lines
    stage_is_empty(stage)


def test_logs_and_dashboard_need_their_rights(stage: Stage, tmp_path: Path) -> None:
    ann = Ann(stage, tmp_path, "pods/log", "pods/portforward")
    ann.file.write_text(json.dumps(resource("demo", group(replicas=1))))
    ann.oars("up", "-f", str(ann.file), *ann.at, "--mode", "direct", "--timeout", "80s", "-q", code=0)
    for words in (["logs", "demo"], ["logs", "demo", "head"], ["logs", "demo", "-f"]):
        assert 'resources: ["pods/log"], verbs: ["get"]' in ann.oars(*words, *ann.at, code=5)
    assert 'resources: ["pods/portforward"]' in ann.oars("dashboard", "demo", *ann.at, code=5)
    ann.oars("down", "demo", *ann.at, "-q", code=0)


def test_listing_all_namespaces_needs_the_right(stage: Stage, tmp_path: Path) -> None:
    assert "ClusterRole" in Ann(stage, tmp_path).oars("ls", "-A", code=5)
