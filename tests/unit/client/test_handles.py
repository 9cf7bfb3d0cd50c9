"""Waiting until a cluster is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from oars.base.errors import SpecError, TimedOut
from oars.client.backend import WHOLE_LOG, ClusterHandle, LogOptions, ignore
from oars.client.cluster import AsyncCluster
from oars.client.handles import is_ready, wait_ready
from oars.model import Cause
from oars.places.report import Report
from oars.spec.load import build
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status


def status_of(head: Phase | None, *workers: Phase, wanted: int = 3) -> Status:
    ready = sum(phase is Phase.READY for phase in workers)
    members = [MemberStatus("head", "head", "head", head)] if head else []
    members += [MemberStatus(f"w{n}", "worker", "default", phase) for n, phase in enumerate(workers)]
    done = head is Phase.READY and ready >= wanted
    phase = Phase.READY if done else Phase.STARTING
    groups = (GroupStatus("default", wanted, ready),)
    return Status("demo", "toy", "local", phase, groups=groups, members=tuple(members))


READY, STARTING, STOPPING = Phase.READY, Phase.STARTING, Phase.STOPPING


@pytest.mark.parametrize(
    ("status", "workers", "ready"),
    [
        (status_of(None), 0, False),
        (status_of(STARTING), 0, False),
        (status_of(READY), 0, True),
        (status_of(READY, STARTING), 1, False),
        (status_of(READY, READY, STARTING), 1, True),
        (status_of(STARTING, READY, READY), 1, False),
        (status_of(READY, READY, READY, STARTING), None, False),
        (status_of(READY, READY, READY, READY), None, True),
        (status_of(READY, READY, READY, READY, STOPPING), None, False),
        (status_of(READY, READY, READY, READY, STOPPING), 3, True),
        (status_of(READY, wanted=0), None, True),
    ],
)
def test_is_ready_needs_the_head_and_enough_workers(status: Status, workers: int | None, ready: bool) -> None:
    assert is_ready(status, workers) is ready


@pytest.mark.parametrize("wanted", [3, 4])
def test_min_ready_above_the_number_of_workers_is_refused(wanted: int) -> None:
    spec = build({"engine": "toy", "workers": [{"name": "a", "replicas": 1}, {"name": "b"}], "minReady": wanted}).spec
    with pytest.raises(SpecError, match=f"minReady is {wanted}, but the cluster has only 2 workers"):
        asyncio.run(AsyncCluster(spec, name="demo").start())


def test_running_cluster_can_be_scaled_below_min_ready() -> None:
    spec = build({"engine": "toy", "workers": 3, "minReady": 2}).spec
    assert spec.with_replicas("default", 1).min_ready == 2


class Unready:
    """A cluster that never becomes ready; without a report it never reports either."""

    name, namespace = "demo", "team"

    def __init__(self, report: Report | None) -> None:
        self._report = report

    async def generation(self) -> int:
        return 0

    async def watch(self) -> AsyncIterator[Report]:
        if self._report is not None:
            yield self._report
        await asyncio.Event().wait()

    async def members(self) -> Sequence[str]:
        return ["head"]

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        yield f"a line of {member}"


CAUSE = Cause("ImagePull", "The head cannot pull image x:1.", "Check the image name.")


@pytest.mark.parametrize(
    ("report", "message", "hint"),
    [
        (
            Report(status_of(STARTING), (CAUSE,)),
            "Timed out after 0 s waiting for cluster 'demo': 0 of 3 workers ready. The head cannot pull image x:1.",
            "Check the image name.",
        ),
        (
            Report(status_of(STARTING)),
            "Timed out after 0 s waiting for cluster 'demo': 0 of 3 workers ready.",
            "Increase the timeout, or run `oars why demo -n team`.",
        ),
        (
            None,
            "Timed out after 0 s waiting for cluster 'demo': it has not reported its status.",
            "Increase the timeout, or run `oars why demo -n team`.",
        ),
    ],
)
def test_timeout_names_the_cause_and_the_last_log_lines(report: Report | None, message: str, hint: str) -> None:
    handle = cast(ClusterHandle, Unready(report))
    with pytest.raises(TimedOut) as raised:
        asyncio.run(wait_ready(handle, None, 0.05, ignore))
    assert (raised.value.message, raised.value.hint) == (message, hint)
    assert raised.value.details == ("[head] a line of head",)
