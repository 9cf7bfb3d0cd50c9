"""The report that a client derives from the status that the operator wrote."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from oars.client.operator_client import report_of
from oars.model import Cause, LoopState, MemberId, Retiring
from oars.places.kube.state import status_codec
from oars.places.kube.state.status_codec import MAX_UNREADY
from oars.places.report import Report
from oars.spec.status import Expires, GroupStatus, MemberStatus, Phase, Status
from tests.unit.places.test_kube_observe import pod

CRASH = Cause("CrashLoop", "The head keeps dying.", "Read its log: `oars logs demo head`.", ("Traceback", "x"))
WORSE = Cause("Unschedulable", "Worker pod w found no node.", "Add a node.")
STATUS = Status(
    "demo", "dask", "kubernetes", Phase.DEGRADED, CRASH.reason, CRASH.message, groups=(GroupStatus("default", 3, 1),)
)


def resource(status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "namespace": "lab"}, "spec": {"engine": "dask"}, "status": status}


def written(status: Status, *causes: Cause) -> dict[str, Any]:
    report = Report(replace(status, generation=1), causes)
    return status_codec.COMPUTE_CLUSTER_STATUS.dump_report(report, {}, "now")


def test_causes_keep_hints_and_lines() -> None:
    report = report_of(resource(written(STATUS, CRASH, WORSE)), [])
    assert report.causes == (CRASH, WORSE)
    assert report.status.message == CRASH.message, "the hint is part of the cause"


def test_current_phase_comes_before_other_causes() -> None:
    course = Cause("Loading", "Starting head: loading.")
    status = replace(STATUS, reason=course.reason, message=course.message)
    assert report_of(resource(written(status, WORSE)), []).causes == (course, WORSE)


def test_status_without_causes_yields_one_cause() -> None:
    status = written(STATUS, CRASH)
    del status["causes"]
    (cause,) = report_of(resource(status), []).causes
    assert (cause.reason, cause.message) == (CRASH.reason, f"{CRASH.message} {CRASH.hint}")


def test_ready_cluster_has_no_causes() -> None:
    ready = replace(STATUS, phase=Phase.READY, reason="", message="")
    assert report_of(resource(written(ready)), []).causes == ()
    assert report_of(resource({"phase": "Pending"}), []).status.message == "The operator has not processed it yet."


def test_draining_is_reported_once() -> None:
    notes = LoopState(retiring={MemberId("w"): Retiring(since=0.0, waits_for="a result")})
    leaving = Cause("Draining", "w is kept until it is safe to remove: a result.", "It goes.")
    status = replace(STATUS, phase=Phase.READY, reason="Draining", message=leaving.message)
    stored = {**written(status, leaving), **status_codec.dump_state(notes)}
    assert [cause.reason for cause in report_of(resource(stored), []).causes] == ["Draining"]


def test_hint_of_a_draining_worker_is_a_complete_command() -> None:
    state = LoopState(retiring={MemberId("w"): Retiring(since=0.0, waits_for="a result")})
    status = {**written(replace(STATUS, phase=Phase.READY, reason="", message="")), **status_codec.dump_state(state)}
    (cause,) = report_of(resource(status), []).causes
    assert "`oars scale demo 3 --force -n lab` removes it now" in cause.hint


def test_members_have_the_phases_of_the_loop() -> None:
    """The operator's client has no loop: it derives the phases with the same functions."""
    died = {"terminated": {"exitCode": 3, "finishedAt": datetime.now(UTC).isoformat()}}
    crashing = pod("w", state={"waiting": {"reason": "CrashLoopBackOff"}}, ready=False, container={
        "restartCount": 5, "lastState": died,
    })  # fmt: skip
    stored = {**written(replace(STATUS, members=(), groups=(GroupStatus("default", 2, 1),))), "headReady": True}
    pods = [pod("h", "head"), pod("ok"), crashing]
    phases = {member.id: member.phase for member in report_of(resource(stored), pods).status.members}
    assert phases == {"head": Phase.READY, "ok": Phase.READY, "w": Phase.FAILED}


def test_partly_ready_group_is_read_back() -> None:
    members = (
        MemberStatus("a", "worker", "default", Phase.READY),
        MemberStatus("b", "worker", "default", Phase.STARTING),
    )
    status = replace(STATUS, groups=(GroupStatus("default", 2, 1),), members=members)
    stored = status_codec.COMPUTE_CLUSTER_STATUS.dump_report(Report(status), {}, "now")
    assert stored["groups"] == [{"name": "default", "wanted": 2, "ready": 1, "unready": ["b"]}]
    assert report_of(resource(stored), []).status.groups == status.groups


def partly_ready(total: int, ready: int) -> Status:
    """The newest workers are ready; the engine does not list the older ones, although their probes succeed."""
    phases = [Phase.STARTING] * (total - ready) + [Phase.READY] * ready
    workers = (MemberStatus(f"w{number:04}", "worker", "default", phase) for number, phase in enumerate(phases))
    members = (MemberStatus("head", "head", "head", Phase.READY), *workers)
    return replace(STATUS, groups=(GroupStatus("default", total, ready),), members=members)


@pytest.mark.parametrize("unready", [70, MAX_UNREADY - 1])
def test_exactly_those_that_the_engine_lists_are_shown_as_ready(unready: int) -> None:
    status = partly_ready(unready + 30, 30)
    pods = [pod("head", "head"), *(pod(member.id) for member in status.members[1:])]
    shown = report_of(resource(written(status)), pods).status.members
    assert {each.id: each.phase for each in shown} == {each.id: each.phase for each in status.members}


def test_nobody_is_shown_as_ready_whose_name_may_have_been_cut_off() -> None:
    status = partly_ready(MAX_UNREADY + 80, 30)
    stored = written(status)
    assert len(stored["groups"][0]["unready"]) == MAX_UNREADY
    pods = [pod("head", "head"), *(pod(member.id) for member in status.members[1:])]
    report = report_of(resource(stored), pods).status
    head, *workers = report.members
    assert (head.phase, report.ready) == (Phase.READY, 30)
    assert {each.phase for each in workers} == {Phase.STARTING}
    listed, others = workers[:MAX_UNREADY], workers[MAX_UNREADY:]
    assert {each.reason for each in listed} == {""}
    assert {each.reason for each in others} == {"unknown; 30 of 80 such workers are ready"}
    stored["headReady"] = False
    assert {each.reason for each in report_of(resource(stored), pods).status.members} == {""}


def test_members_are_ready_if_no_more_can_be_than_the_status_counts() -> None:
    """The probes of all whose names were cut off fail, so that their pods show it."""
    status = partly_ready(MAX_UNREADY + 80, 30)
    pods = [pod("head", "head"), *(pod(m.id, ready=m.phase is Phase.READY) for m in status.members[1:])]
    shown = report_of(resource(written(status)), pods).status.members
    assert {each.id: each.phase for each in shown} == {each.id: each.phase for each in status.members}


def test_announced_end_survives_the_status() -> None:
    expires = Expires(1_800_000_000.0, "Idle", "30m without work (lifetime.idle)")
    stored = written(replace(STATUS, expires=expires))
    assert stored["expires"] == {"at": "2027-01-15T08:00:00Z", "reason": "Idle", "message": expires.message}
    assert report_of(resource(stored), []).status.expires == expires
    later = written(replace(STATUS, expires=None))
    assert later["expires"] is None and report_of(resource(later), []).status.expires is None
    codec = status_codec.COMPUTE_CLUSTER_STATUS
    assert not codec.is_progress(stored, later)  # the change is written at once
