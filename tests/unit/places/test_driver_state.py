"""What a driver's pods and its batch/v1 Job say about the driver."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from oars.places.kube.names import Object
from oars.places.kube.state.drivers import LOST_SECONDS, see_driver
from oars.plan.jobs import DriverSeen, DriverState
from oars.spec.job_status import Attempt

NOW = 1_800_000_000.0
NEW = Attempt(1, "train-1", NOW - 50)
STARTED = Attempt(1, "train-1", NOW - 50, started=NOW - 40)
ENDED = Attempt(1, "train-1", NOW - 50, started=NOW - 40, ended=NOW - 1)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(phase: str, *, age: float = 10, deleted: float | None = None, node: str = "n1", code: int = 1) -> Object:
    state: Object = {"running": {"startedAt": at(-30)}} if phase == "Running" else {}
    if phase in ("Succeeded", "Failed"):
        state = {"terminated": {"exitCode": code, "startedAt": at(-30), "finishedAt": at(-5)}}
    metadata: Object = {"creationTimestamp": at(-age)}
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    status = {"phase": phase, "containerStatuses": [{"name": "driver", "state": state}]}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


def job(*conditions: str, reason: str = "", spec: Object | None = None, **status: Any) -> Object:
    listed = [{"type": each, "status": "True", "reason": reason, "lastTransitionTime": at(-4)} for each in conditions]
    return {"metadata": {}, "spec": spec or {}, "status": {"conditions": listed, **status}}


def stopped(*conditions: str, **status: Any) -> Object:
    return job(*conditions, spec={"suspend": True, "parallelism": 0}, **status)


def held(*conditions: str) -> Object:
    """Suspended by somebody else, such as Kueue."""
    return job(*conditions, spec={"suspend": True, "parallelism": 1})


@pytest.mark.parametrize(
    ("pods", "found", "attempt", "state"),
    [
        ([], None, NEW, DriverState.ABSENT),
        ([], None, STARTED, DriverState.ABSENT),  # somebody deleted the Job
        ([], job(), NEW, DriverState.STARTING),
        ([], job("Failed"), STARTED, DriverState.LOST),
        ([], job("Complete"), NEW, DriverState.ENDED),  # the pod is gone, its success is not
        ([], job("Failed"), ENDED, DriverState.ABSENT),  # removed
        ([], stopped(), NEW, DriverState.STARTING),  # the controller may just create a pod
        ([], stopped("Suspended"), NEW, DriverState.CLOSED),
        ([], stopped("Suspended"), STARTED, DriverState.LOST),
        ([], stopped("Suspended", terminating=1), NEW, DriverState.STARTING),  # a pod that is not known yet
        ([pod("Pending", deleted=-1, node="")], stopped("Suspended", terminating=1), NEW, DriverState.CLOSED),
        ([], held("Suspended"), NEW, DriverState.STARTING),  # it starts when it is resumed
        ([], held("Suspended"), STARTED, DriverState.ABSENT),  # it must be stopped, or another one starts
        ([], job(spec={"suspend": False, "parallelism": 0}), NEW, DriverState.STARTING),  # it must be stopped again
        ([pod("Running")], None, STARTED, DriverState.RUNNING),  # it outlives its Job
        ([pod("Running", deleted=-1)], stopped("Suspended"), STARTED, DriverState.RUNNING),
        ([pod("Running", deleted=5 - LOST_SECONDS)], job(), STARTED, DriverState.RUNNING),
        ([pod("Running", deleted=-5 - LOST_SECONDS)], job(), STARTED, DriverState.UNREACHABLE),
        ([pod("Pending", deleted=-5 - LOST_SECONDS)], job(), NEW, DriverState.UNREACHABLE),
        ([pod("Failed", deleted=-5 - LOST_SECONDS)], job(), STARTED, DriverState.ENDED),
        ([pod("Failed", age=5), pod("Running", age=9)], job(), STARTED, DriverState.RUNNING),
    ],
)  # fmt: skip
def test_driver(pods: list[Object], found: Object | None, attempt: Attempt, state: DriverState) -> None:
    assert see_driver(pods, found, attempt, NOW).state is state


def test_times_of_the_pod() -> None:
    assert see_driver([pod("Running")], job(), NEW, NOW).started == NOW - 30
    ended = see_driver([pod("Failed", code=3)], job(), NEW, NOW)
    assert ended == DriverSeen(DriverState.ENDED, 3, NOW - 5 + 0.999, started=NOW - 30)


def test_driver_that_kueue_holds_back_is_explained() -> None:
    assert "Kueue" in see_driver([], held("Suspended"), NEW, NOW).message


def test_lost_node_is_named() -> None:
    seen = see_driver([pod("Running", deleted=-60)], job(), STARTED, NOW)
    assert (seen.reason, seen.ended) == ("NodeLost", NOW - 60)
    assert "Node n1 does not answer" in seen.message


@pytest.mark.parametrize("pods", [[], [pod("Failed", code=143)]])
def test_driver_that_kubernetes_stopped_was_late(pods: list[Object]) -> None:
    assert see_driver(pods, job("Failed", reason="DeadlineExceeded"), STARTED, NOW).reason == "DeadlineExceeded"
    assert see_driver(pods, job("Failed", reason="BackoffLimitExceeded"), STARTED, NOW).reason == ""
