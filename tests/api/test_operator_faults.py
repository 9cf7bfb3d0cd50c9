"""The operator when things go wrong: it dies, another takes over, the API server refuses, breaks off, or goes."""

from __future__ import annotations

import asyncio
import signal
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


def test_killed_operator_process_is_replaced_by_the_next(
    stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    """As processes, with a Lease that runs out; test_killed_after_writes.py does it after every single write."""
    proxy = fault_proxy()
    first = operators(proxy.kubeconfig, "first", lease=SHORT_LEASE)
    proxy.script.rules = [*proxy.script.rules, die_after(7)]
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


def test_suspended_leader_writes_nothing_after_another_leads(
    stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    proxy = fault_proxy()
    first = operators(proxy.kubeconfig, "first", lease=SHORT_LEASE)
    spare = operators(identity="spare", leads=False, lease=SHORT_LEASE)
    stage.create(resource("demo"))
    stage.await_ready("demo")
    first.process.send_signal(signal.SIGSTOP)
    try:
        until("the spare leads", lambda: holder(stage.kube).startswith("spare-"), 60)
        stage.edit("demo", {"replicas": 5})
        assert stage.await_ready("demo")["ready"] == "5/5"
        written = len(proxy.records)
        stage.edit("demo", {"replicas": 4})  # the first has yet to see it when it goes on
    finally:
        first.process.send_signal(signal.SIGCONT)
    stage.until("demo", "has four workers", lambda: len(stage.pods("demo", "worker")) == 4)
    until("the first has asked for the Lease again", lambda: _asks_for_lease(proxy, written), 60)
    late = [each.request for each in proxy.records[written:] if each.request.writes]
    assert {each.resource for each in late} <= {"leases"}, late
    assert holder(stage.kube).startswith("spare-") and not spare.says("Traceback") and not first.says("Traceback")


def _asks_for_lease(proxy: FaultProxy, since: int) -> bool:
    """Twice: it has noticed that it does not lead any more."""
    return sum(each.request.resource == "leases" for each in proxy.records[since:]) >= 2


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
    options = RunOptions(
        namespaces=(namespace,), lease_namespace=namespace, metrics_port=0, health_port=0, trust_authors=True
    )

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
