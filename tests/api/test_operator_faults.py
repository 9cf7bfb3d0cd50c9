"""The operator when things go wrong: it dies, another takes over, the API server refuses, breaks off, or goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from lab.faultproxy import FaultProxy
from lab.faults import Answer, Drop, EndWatch, Pass, Rule, die_after
from lab.wait import until
from tests.api.stage import SHORT_LEASE, Operator, Stage, group, holder, resource

from oars.kube import config
from oars.kube.client import Client
from oars.operator import RunOptions
from oars.operator.main import Operator as InProcess

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]

WEATHER = {
    "conflicts": [Rule(Answer(409), verb="write", chance=0.4, times=12)],
    "too many requests": [Rule(Answer(429), verb="write", chance=0.4, times=8)],
    "errors of the server": [Rule(Answer(500), verb="write", chance=0.4, times=12)],
    "answers that get lost": [Rule(Drop(applied=True), verb="write", chance=0.4, times=12)],
    "watches that are cut": [Rule(EndWatch(2, "cut"), verb="watch", times=8)],
    "watches that expire": [Rule(EndWatch(2, "expired"), verb="watch", times=8)],
}


@pytest.mark.parametrize("weather", WEATHER)
def test_api_errors_only_delay_the_life_cycle(
    weather: str, stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    # The Lease is left in peace: losing the lead is another test.
    spared = Rule(Pass(), resource="leases")
    proxy = fault_proxy([spared, *WEATHER[weather]], seed=7)
    operator = operators(proxy.kubeconfig)
    stage.create(resource("demo"))
    stage.await_ready("demo", 90)
    stage.edit("demo", {"replicas": 1})
    stage.await_ready("demo", 90)
    stage.until("demo", "has one worker", lambda: len(stage.pods("demo", "worker")) == 1, 90)
    assert set(stage.deployments("demo")) == {"demo-head", "demo-worker"}
    assert not operator.says("Traceback")


@pytest.mark.parametrize("write", [*(pytest.param(number, marks=pytest.mark.long) for number in (1, 4, 6)), 7])
def test_operator_killed_at_a_write_recovers(
    write: int, stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    """The fault matrix does this at every single write; here at a few."""
    proxy = fault_proxy()
    first = operators(proxy.kubeconfig, "first", lease=SHORT_LEASE)
    proxy.script.rules = [*proxy.script.rules, die_after(write)]
    stage.create(resource("demo"))
    until("it died", lambda: proxy.dead, 60)
    first.kill()
    proxy.revive()
    operators(proxy.kubeconfig, "second")
    assert stage.await_ready("demo", 60)["ready"] == "3/3"
    assert set(stage.deployments("demo")) == {"demo-head", "demo-worker"}
    assert len(stage.pods("demo")) == 4


def test_scale_down_interrupted_by_a_kill_removes_the_same_workers(
    stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    # It gets no further than to write down whom it chose.
    proxy = fault_proxy([Rule(Drop(), verb="patch", resource="pods")])
    first = operators(proxy.kubeconfig, "first", lease=SHORT_LEASE)
    stage.create(resource("demo", group(replicas=6)))
    stage.await_ready("demo")
    before = stage.workers("demo")
    stage.edit("demo", {"replicas": 2})
    chosen = stage.until("demo", "has chosen", lambda: _retiring(stage))
    first.kill()
    operators(identity="second")
    stage.await_ready("demo")
    stage.until("demo", "has two workers", lambda: len(stage.pods("demo", "worker")) == 2)
    assert stage.workers("demo") == before - set(chosen)


def _retiring(stage: Stage) -> dict[str, object]:
    """Those chosen to go, as the operator has written them down before it acts."""
    found: dict[str, object] = stage.get("demo")["status"].get("retiring") or {}
    return found


def test_second_replica_takes_over(stage: Stage, operators: Operators) -> None:
    leader = operators(identity="leader")
    spare = operators(identity="spare", leads=False)
    stage.create(resource("demo"))
    stage.await_ready("demo")
    assert not spare.says("apply")
    leader.kill()
    until("the spare leads", lambda: holder(stage.kube).startswith("spare-"), 60)
    stage.edit("demo", {"replicas": 5})
    assert stage.await_ready("demo")["ready"] == "5/5"


def test_stopping_leader_releases_the_lease(stage: Stage, operators: Operators) -> None:
    leader = operators(identity="leader", lease="60s")
    operators(identity="spare", leads=False, lease="60s")
    stage.create(resource("demo"))
    stage.await_ready("demo")
    assert leader.stop() == 128 + 15
    until("the spare leads", lambda: holder(stage.kube).startswith("spare-"), 40)  # before the lease would run out


def test_operator_survives_an_api_server_restart(
    stage: Stage, operators: Operators, outage: Callable[[str], AbstractContextManager[None]]
) -> None:
    operator = operators()
    stage.create(resource("demo"))
    stage.await_ready("demo")
    with outage("kube-apiserver"):
        pass
    stage.edit("demo", {"replicas": 5})
    assert stage.await_ready("demo", 90)["ready"] == "5/5"
    assert operator.process.poll() is None
    assert not operator.says("Traceback")


def test_silent_watches_are_restarted(stage: Stage, fault_proxy: Proxies) -> None:
    """In this process, so that silence need not last the usual minute and a half."""
    proxy = fault_proxy([Rule(EndWatch(1, "silent"), verb="watch", times=6)])
    namespace = stage.kube.namespace
    options = RunOptions(namespaces=(namespace,), lease_namespace=namespace, metrics_port=0, health_port=0)

    async def story() -> None:
        async with Client(config.load({}, kubeconfig=proxy.kubeconfig), watch_idle_timeout=3) as client:
            working = asyncio.create_task(InProcess(client, options).run())
            try:
                await asyncio.to_thread(stage.create, resource("demo"))
                await asyncio.to_thread(stage.await_ready, "demo", 60)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    asyncio.run(story())
