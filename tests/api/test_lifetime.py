"""Lifetimes on a real control plane with simulated pods: clusters end by themselves, as announced, and say why."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.api import Object
from lab.wait import until
from tests.api.stage import OARS, Operator, Stage, group, resource
from tests.api.test_direct import at_home, ready, run_scenario

from oars.base.settings import Settings
from oars.client.backend import CreateOptions, Location
from oars.client.kubernetes import KubeBackend
from oars.spec.load import build

pytestmark = pytest.mark.timeout(300)

Operators = Callable[..., Operator]
Unused = Callable[..., None]


@pytest.fixture
def unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unused:
    """Sets for how long every cluster has been without work and without a client."""
    file = tmp_path / "unused.json"

    def set_seconds(**seconds: float) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({"idle": 0.0, "no_client": 0.0, **seconds}))
        fresh.replace(file)

    set_seconds()
    monkeypatch.setenv("SIMULATED_UNUSED", str(file))
    return set_seconds


def oars(stage: Stage, *arguments: str) -> str:
    where = ["-n", stage.kube.namespace, "--kubeconfig", str(stage.kube.kubeconfig)]
    done = subprocess.run([OARS, *arguments, *where], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def gone(stage: Stage) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(oars(stage, "ls", "--gone", "-o", "json"))}


def expires(stage: Stage, name: str) -> Object | None:
    found: Object | None = (stage.get(name).get("status") or {}).get("expires")
    return found


def exists(stage: Stage, name: str) -> bool:
    status, _ = stage.kube.api.raw("GET", stage._path(name))
    return bool(status == 200)


def endings(stage: Stage, name: str) -> list[dict[str, Any]]:
    return [event for event in stage.events(name) if event["reason"] in ("Expires", "Expired")]


def test_operator_announces_the_end_and_deletes_the_cluster(stage: Stage, operators: Operators, unused: Unused) -> None:
    first = operators()
    stage.create(resource("demo", group(replicas=1), lifetime={"idle": "30m", "noClient": "5m"}))
    stage.create(resource("other", group(replicas=1)))
    stage.await_ready("demo")
    assert expires(stage, "demo") is None and "EXPIRES" not in oars(stage, "ls")

    unused(no_client=200.0)
    found = stage.until("demo", "is announced", lambda: expires(stage, "demo"))
    assert (found["reason"], found["message"]) == ("NoClient", "5m without a client (lifetime.noClient)")
    assert "(NoClient)" in oars(stage, "ls")
    assert json.loads(oars(stage, "status", "demo", "-o", "json"))["expires"]["reason"] == "NoClient"
    unused()
    stage.until("demo", "stays, as a client came", lambda: expires(stage, "demo") is None)
    assert endings(stage, "demo") == []

    first.kill()  # the next one counts from where the engine does
    operators(identity="two")
    unused(idle=1790.0)
    (event,) = stage.until("demo", "has an event", lambda: endings(stage, "demo"))
    assert (event["type"], event["reason"]) == ("Normal", "Expires")
    assert event["message"].startswith("The cluster ends at ") and event["message"].endswith("(lifetime.idle).")

    unused(idle=1801.0)
    until("demo is deleted", lambda: not exists(stage, "demo"), 60)
    until("nothing of it is left", lambda: not stage.left("demo"), 60)
    assert {each["reason"] for each in endings(stage, "demo")} == {"Expires", "Expired"}
    note = gone(stage)["demo"]
    assert (note["reason"], note["engine"], note["mode"]) == ("Idle", "simulated", "operator")
    assert note["namespace"] == stage.kube.namespace
    assert exists(stage, "other")  # it has no limits


def test_cluster_that_never_gets_ready_does_not_outlive_its_limit(stage: Stage, operators: Operators) -> None:
    operators()
    nowhere = {"spec": {"nodeSelector": {"type": "there-is-none"}}}
    stage.create(resource("stuck", group(replicas=1, pod=nowhere), lifetime={"max": "4s"}))
    until("it is deleted", lambda: not exists(stage, "stuck"), 60)
    until("nothing of it is left", lambda: not stage.left("stuck"), 60)
    assert gone(stage)["stuck"]["reason"] == "MaxLifetime"


def test_operator_ends_a_cluster_whose_program_was_killed(stage: Stage, operators: Operators, unused: Unused) -> None:
    """It stays as long as the program runs, although the operator is replaced meanwhile."""
    first = operators()
    made = resource("tied", group(replicas=1), lifetime={"orphaned": "10s"})

    async def create() -> KubeBackend:
        location = Location("kubernetes", mode="operator", namespace=stage.kube.namespace)
        backend = KubeBackend(Settings.from_environ({}), {"KUBECONFIG": str(stage.kube.kubeconfig)}, location)
        spec = build({**made["spec"], "place": "kubernetes"}).spec
        await backend.create("tied", spec, CreateOptions(tied=True))
        return backend

    async def scenario() -> None:
        backend = await create()
        try:
            await asyncio.to_thread(stage.await_ready, "tied")
            first.kill()
            await asyncio.to_thread(operators, identity="two")
            await asyncio.sleep(15)  # longer than lifetime.orphaned: there is nothing to wait for
            assert exists(stage, "tied")
        finally:
            await backend.close()  # as if the program was killed: nobody renews any more

    run_scenario(asyncio.wait_for(scenario(), 200))
    assert exists(stage, "tied")
    until("it is deleted", lambda: not exists(stage, "tied"), 60)
    until("nothing of it is left", lambda: not stage.left("tied"), 60)
    note = gone(stage)["tied"]
    assert (note["reason"], note["message"]) == (
        "OwnerGone", "its program has been gone for 10s (lifetime.orphaned)"
    )  # fmt: skip


def test_client_in_direct_mode_ends_the_cluster_too(stage: Stage, unused: Unused) -> None:
    """The helper next to the head does it while no client runs the loop; simulated pods have none."""
    spec = build({**resource("demo", group(replicas=1))["spec"], "place": "kubernetes", "lifetime": {"idle": "10m"}})

    async def scenario() -> None:
        async with at_home(stage) as home:
            await home.create(spec.spec)
            assert (await ready(home, 1)).expires is None
            unused(idle=400.0)
            async for report in home.demo.watch():
                if report.status.expires is not None:
                    break
            unused(idle=601.0)
            async for _ in home.demo.watch():
                pass  # until it is gone
            (note,) = await home.backend.gone()
            assert (note.name, note.reason, note.mode) == ("demo", "Idle", "direct")

    run_scenario(asyncio.wait_for(scenario(), 120))
    until("nothing of it is left", lambda: not stage.left("demo"), 60)
