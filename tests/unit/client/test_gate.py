"""The readiness gate: when whoever starts a cluster goes on."""

from __future__ import annotations

import asyncio

import pytest

from oars.base.errors import SpecError
from oars.client.cluster import AsyncCluster, _settled
from oars.spec.load import build
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status


def seen(head: Phase | None, *workers: Phase, wanted: int = 3) -> Status:
    ready = sum(phase is Phase.READY for phase in workers)
    members = [MemberStatus("head", "head", "head", head)] if head else []
    members += [MemberStatus(f"w{n}", "worker", "default", phase) for n, phase in enumerate(workers)]
    done = head is Phase.READY and ready >= wanted
    phase = Phase.READY if done else Phase.STARTING
    groups = (GroupStatus("default", wanted, ready),)
    return Status("demo", "toy", "local", phase, groups=groups, members=tuple(members))


READY, STARTING, STOPPING = Phase.READY, Phase.STARTING, Phase.STOPPING


@pytest.mark.parametrize(
    ("status", "workers", "settled"),
    [
        (seen(None), 0, False),
        (seen(STARTING), 0, False),
        (seen(READY), 0, True),
        (seen(READY, STARTING), 1, False),
        (seen(READY, READY, STARTING), 1, True),
        (seen(STARTING, READY, READY), 1, False),
        (seen(READY, READY, READY, STARTING), None, False),
        (seen(READY, READY, READY, READY), None, True),
        (seen(READY, READY, READY, READY, STOPPING), None, False),
        (seen(READY, READY, READY, READY, STOPPING), 3, True),
        (seen(READY, wanted=0), None, True),
    ],
)
def test_as_many_as_asked_and_never_without_a_head(status: Status, workers: int | None, settled: bool) -> None:
    assert _settled(status, workers) is settled


@pytest.mark.parametrize("wanted", [3, 4])
def test_waiting_for_more_than_there_will_be_is_a_mistake(wanted: int) -> None:
    spec = build({"engine": "toy", "workers": [{"name": "a", "replicas": 1}, {"name": "b"}], "minReady": wanted}).spec
    with pytest.raises(SpecError, match=f"minReady waits for {wanted} workers, and the cluster has 2"):
        asyncio.run(AsyncCluster(spec, name="demo").start())


def test_a_running_cluster_may_be_scaled_below_it() -> None:
    spec = build({"engine": "toy", "workers": 3, "minReady": 2}).spec
    assert spec.with_replicas("default", 1).min_ready == 2
