"""Each way of using Oars with exactly the rights that `oars rbac` prints for it, and nothing more."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.wait import until
from tests.api.stage import Operator, Stage, group, resource
from tests.api.test_direct import at_home, make, play, ready, stage_is_empty

from oars.operator import NAME, rbac
from oars.operator.rbac import Subject

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
    return (command.communicate(timeout=30)[0] or "").strip().startswith("yes")


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


@pytest.mark.parametrize("minimal", [False, True])
@pytest.mark.parametrize("tied", [False, True])
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
            await home.scale("demo", 4, None)
            await ready(home, 4)
            await home.scale("demo", 1, None)
            await ready(home, 1)
            assert await home.names() == ["demo"]
            assert await home.stop("demo", wait=30)
        stage_is_empty(stage)

    with caplog.at_level(logging.INFO, "oars"):
        play(story())
    if not (minimal and tied):  # there it says what the client may not do
        assert "orbidden" not in caplog.text
