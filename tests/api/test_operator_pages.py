"""What an operator says of itself on its pages: whether it is well, whether it leads, and how its passes go."""

from __future__ import annotations

import time
from collections.abc import Callable

from lab.faultproxy import FaultProxy
from lab.faults import Answer, Pass, Rule
from lab.wait import until
from tests.api.stage import Operator, Stage, holder, resource

Operators = Callable[..., Operator]
Proxies = Callable[..., FaultProxy]
PASSES = 'oars_reconcile_total{result="ok"}'
FAILED = 'oars_reconcile_total{result="error"}'


def test_operator_without_list_permission_is_live_but_not_ready(
    stage: Stage, operators: Operators, fault_proxy: Proxies
) -> None:
    """Though it holds the Lease: it works when everything has been listed once."""
    proxy = fault_proxy([Rule(Pass(), resource="leases"), Rule(Answer(500), verb="list", resource="deployments")])
    operator = operators(proxy.kubeconfig)
    assert operator.page("/healthz") == (200, "ok\n")
    until("the errors are counted", lambda: operator.metrics().get('oars_api_errors_total{code="500"}', 0) >= 2)
    assert operator.page("/readyz") == (503, "not ready\n")
    assert operator.metrics()["oars_leading"] == 0
    proxy.script.rules = []
    until("it is ready", lambda: operator.page("/readyz")[0] == 200, 60)
    until("it leads", lambda: operator.metrics()["oars_leading"] == 1)
    assert operator.page("/healthz")[0] == 200
    assert operator.page("/elsewhere")[0] == 404


def elections(stage: Stage) -> set[str]:
    """The replicas that became leader, as the Events of the Lease say."""
    found = stage.kube.api.get(stage.kube.path("events"))["items"]
    ours = [each for each in found if each["involvedObject"]["kind"] == "Lease" and each["reason"] == "LeaderElection"]
    return {each["message"].partition("-")[0] for each in ours}


def test_metrics_count_and_time_passes(stage: Stage, operators: Operators) -> None:
    began = time.monotonic()
    leader = operators(identity="leader")
    spare = operators(identity="spare", leads=False)
    stage.create(resource("demo"))
    stage.await_ready("demo")
    until("its last pass is over", lambda: leader.metrics()["oars_queue_depth"] == 0)
    found = leader.metrics()
    assert found["oars_leading"] == 1
    space = stage.kube.namespace
    assert found[f'oars_cluster_info{{namespace="{space}",cluster="demo",engine="simulated",phase="Ready"}}'] == 1
    assert found['oars_clusters{engine="simulated",phase="Ready"}'] == 1
    assert 1 <= found[PASSES] < 200, "many changes are one pass"
    assert found[FAILED] == 0
    assert found["oars_reconcile_duration_seconds_count"] == found[PASSES]
    assert 0 < found["oars_reconcile_duration_seconds_sum"] < time.monotonic() - began
    buckets = [count for name, count in found.items() if name.startswith("oars_reconcile_duration_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == found["oars_reconcile_duration_seconds_count"]
    assert found["process_resident_memory_bytes"] > 2**20 and found["process_cpu_seconds_total"] > 0

    until("the other knows all", lambda: spare.page("/readyz")[0] == 200)
    waiting = spare.metrics()
    assert (waiting["oars_leading"], waiting[PASSES], waiting["oars_queue_depth"]) == (0, 0, 0)
    leader.stop()
    until("the other leads", lambda: holder(stage.kube).startswith("spare-"))
    until("it has reconciled the cluster", lambda: spare.metrics()[PASSES] > 0)
    until("its election is an Event", lambda: elections(stage) == {"leader", "spare"})
    assert spare.metrics()["oars_leading"] == 1
    assert leader.page("/healthz") == (0, "")
