"""What a client makes of the status that the operator wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oars.client.operator_client import report_of
from oars.model import Cause, LoopState, MemberId, Retiring
from oars.places.kube.state import status_codec
from oars.spec.status import GroupStatus, Phase, Status

CRASH = Cause("CrashLoop", "The head died again and again.", "Read its log: `oars logs NAME head`.", ("Traceback", "x"))
WORSE = Cause("Unschedulable", "Worker pod w found no node.", "Add a node.")
STATUS = Status(
    "demo", "dask", "kubernetes", Phase.DEGRADED, CRASH.reason, CRASH.message, groups=(GroupStatus("default", 3, 1),)
)


def resource(status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "namespace": "lab"}, "spec": {"engine": "dask"}, "status": status}


def written(status: Status, *causes: Cause) -> dict[str, Any]:
    return status_codec.cr_status(replace(status, generation=1), causes, {}, "now")


def test_causes_arrive_with_what_to_do_and_their_lines() -> None:
    report = report_of(resource(written(STATUS, CRASH, WORSE)), [])
    assert report.causes == (CRASH, WORSE)
    assert report.status.message == CRASH.message, "what to do is said by the cause"


def test_what_takes_its_course_comes_before_what_is_wrong() -> None:
    course = Cause("Loading", "Starting head: loading.")
    status = replace(STATUS, reason=course.reason, message=course.message)
    assert report_of(resource(written(status, WORSE)), []).causes == (course, WORSE)


def test_an_older_operator_tells_one_cause() -> None:
    status = written(STATUS, CRASH)
    del status["causes"]
    (cause,) = report_of(resource(status), []).causes
    assert (cause.reason, cause.message) == (CRASH.reason, f"{CRASH.message} {CRASH.hint}")


def test_nothing_is_wrong() -> None:
    ready = replace(STATUS, phase=Phase.READY, reason="", message="")
    assert report_of(resource(written(ready)), []).causes == ()
    assert report_of(resource({"phase": "Pending"}), []).status.message == "The operator has not seen it yet."


def test_draining_is_told_once() -> None:
    notes = LoopState(retiring={MemberId("w"): Retiring(since=0.0, waits_for="a result")})
    leaving = Cause("Draining", "w is kept until it is safe to remove: a result.", "It goes.")
    status = replace(STATUS, phase=Phase.READY, reason="Draining", message=leaving.message)
    told = {**written(status, leaving), "notes": status_codec.dump_notes(notes)}
    assert [cause.reason for cause in report_of(resource(told), []).causes] == ["Draining"]
