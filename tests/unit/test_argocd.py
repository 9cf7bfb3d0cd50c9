"""deploy/argocd/health.lua, run by Lua with statuses as Oars writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lupa.lua51  # Argo CD's interpreter follows Lua 5.1
import pytest

from oars.model import Cause
from oars.places.kube.state.job_codec import dump_status
from oars.places.kube.state.status_codec import COMPUTE_CLUSTER_STATUS
from oars.places.report import Report
from oars.plan.jobs import JobPolicy
from oars.spec.job_status import JobState, JobStatus
from oars.spec.status import GroupStatus, Phase, Status

SCRIPT = (Path(__file__).parents[2] / "deploy/argocd/health.lua").read_text()


def health(status: dict[str, Any] | None, generation: int = 1) -> tuple[str, str]:
    lua = lupa.lua51.LuaRuntime(unpack_returned_tuples=True)
    resource = {"metadata": {"generation": generation}, "status": status}
    lua.globals().obj = lua.table_from(resource, recursive=True)
    found = lua.execute(SCRIPT)
    return found["status"], found["message"] or ""


def cluster(phase: Phase) -> dict[str, Any]:
    status = Status("demo", "dask", "kubernetes", phase, groups=(GroupStatus("default", 3, 3),), generation=1)
    return COMPUTE_CLUSTER_STATUS.dump_report(Report(status), {}, "now")


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PENDING, "Progressing"),
        (Phase.STARTING, "Progressing"),
        (Phase.READY, "Healthy"),
        (Phase.DEGRADED, "Progressing"),
        (Phase.FAILED, "Degraded"),
    ],
)
def test_health_of_a_cluster(phase: Phase, expected: str) -> None:
    assert health(cluster(phase))[0] == expected
    assert health(cluster(phase), generation=2)[0] == "Progressing", "the operator has not seen the newest spec"


def test_invalid_spec_is_degraded_with_the_reason() -> None:
    cause = Cause("InvalidSpec", "There is no engine 'spark'.")
    status = COMPUTE_CLUSTER_STATUS.dump_failure(cause, Phase.FAILED, 1, {}, "now")
    assert health(status) == ("Degraded", "There is no engine 'spark'.")


def test_resource_without_a_status_is_progressing() -> None:
    assert health(None)[0] == "Progressing"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.QUEUED, "Progressing"),
        (JobState.RUNNING, "Progressing"),
        (JobState.SUSPENDED, "Suspended"),
        (JobState.SUCCEEDED, "Healthy"),
        (JobState.FAILED, "Degraded"),
        (JobState.CANCELLED, "Degraded"),
    ],
)
def test_health_of_a_job(state: JobState, expected: str) -> None:
    assert health(dump_status(JobStatus(state=state, ended=1.0), 1, JobPolicy()))[0] == expected
