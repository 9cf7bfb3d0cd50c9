"""decide_schedule as tables."""

from __future__ import annotations

from typing import Any

import pytest

from oars.plan.schedule import (
    MOST_MISSED,
    RunSeen,
    ScheduleDecision,
    decide_schedule,
    due_of,
    is_template,
    refused_edit,
    run_name,
    shown,
)
from oars.spec.job import Schedule
from oars.spec.job_status import JobState, JobStatus, ScheduleStatus

HOUR = 3600.0
START = 1000 * HOUR  # a full hour
NEW = ScheduleStatus()
HOURLY = "0 * * * * UTC"


def since(hours: float, **fields: Any) -> ScheduleStatus:
    """The schedule has started the runs that were due until then."""
    at = START + hours * HOUR
    return ScheduleStatus(**{"last": at, "since": at, "cron": HOURLY, **fields})


def decide(now: float, status: ScheduleStatus = NEW, *runs: RunSeen, **fields: Any) -> ScheduleDecision:
    schedule = Schedule.model_validate({"cron": "0 * * * *", **fields})
    return decide_schedule("nightly", schedule, START + 1, status, runs, now)


def run(hours: float, *, is_final: bool = False) -> RunSeen:
    return RunSeen(run_name("nightly", START + hours * HOUR), START + hours * HOUR, is_final)


def test_nothing_is_due_before_the_first_time() -> None:
    decision = decide(START + 60)
    assert (decision.start, decision.status.next, decision.pause) == ("", START + HOUR, 600.0)
    assert decide(START + HOUR - 5).pause == 5.0


def test_run_is_started_once_and_named_after_its_minute() -> None:
    decision = decide(START + HOUR + 3)
    assert decision.start == run(1).name == f"nightly-{int(START + HOUR) // 60}"
    assert (decision.status.last, decision.status.missed, decision.status.active) == (START + HOUR, 0, (run(1).name,))
    assert decide(START + HOUR + 4, decision.status, run(1)).start == ""
    assert decide(START + HOUR + 4, decision.status, run(1, is_final=True), history=0).start == ""


def test_missed_runs_are_counted_and_only_the_last_one_is_made_up_for() -> None:
    decision = decide(START + 5 * HOUR + 30)
    assert (decision.start, decision.status.missed) == (run(5).name, 4)
    assert decide(START + 1e5 * HOUR).status.missed == MOST_MISSED


@pytest.mark.parametrize(
    ("concurrency", "start", "cancel", "missed"),
    [
        ("Forbid", "", (), 1),
        ("Allow", run(2).name, (), 0),
        ("Replace", "", (run(1).name,), 0),
    ],
)
def test_concurrency(concurrency: str, start: str, cancel: tuple[str, ...], missed: int) -> None:
    decision = decide(START + 2 * HOUR, since(1), run(1), concurrency=concurrency)
    assert (decision.start, decision.cancel, decision.status.missed) == (start, cancel, missed)
    ended = run(1, is_final=True)
    assert decide(START + 2 * HOUR + 1, decision.status, ended, concurrency="Replace").start == (
        run(2).name if concurrency == "Replace" else ""
    )


@pytest.mark.parametrize("status", [NEW, since(0)])
def test_suspended_schedule_misses_nothing(status: ScheduleStatus) -> None:
    """No pass happens between the one that sees the suspension and the one that sees its end."""
    decision = decide(START + 60, status, suspend=True)
    assert (decision.start, decision.status.next, decision.pause) == ("", None, None)
    resumed = decide(START + 5 * HOUR + 60, decision.status)
    assert (resumed.start, resumed.status.missed, resumed.status.last) == ("", 0, status.last)
    assert decide(START + 6 * HOUR, resumed.status).start == run(6).name


@pytest.mark.parametrize("fields", [{"cron": "0 4 * * *"}, {"timeZone": "Europe/Berlin"}])
def test_changed_schedule_begins_anew(fields: dict[str, Any]) -> None:
    decision = decide(START + 24 * 30 * HOUR + 60, since(0), **fields)
    assert (decision.start, decision.status.missed, decision.status.last) == ("", 0, START)
    again = decide(START + 24 * 31 * HOUR + 60, decision.status, **fields)
    assert (again.start != "", again.status.missed) == (True, 0 if "cron" in fields else 23)


@pytest.mark.parametrize(
    ("status", "has_schedule", "is_template_", "refused"),
    [
        (JobStatus(), False, False, ""),
        (JobStatus(), True, True, ""),
        (JobStatus(schedule=NEW), True, True, ""),
        (JobStatus(schedule=NEW), False, True, "cannot be removed"),
        (JobStatus(attempt=1), True, False, "cannot get one"),
        (JobStatus(attempt=1), False, False, ""),
    ],
)
def test_job_stays_what_it_was_at_first(
    status: JobStatus, has_schedule: bool, is_template_: bool, refused: str
) -> None:
    hold = refused_edit(status, has_schedule=has_schedule)
    assert is_template(status, has_schedule=has_schedule) is is_template_
    assert (refused in hold.message) if hold is not None else not refused


def test_clock_that_was_set_back_starts_nothing() -> None:
    assert decide(START + 2 * HOUR, since(1000)).start == ""


def test_history_keeps_the_newest_runs_that_have_ended() -> None:
    runs = [run(hours, is_final=True) for hours in (1, 2, 3, 4)]
    status = since(5)
    decision = decide(START + 5 * HOUR + 1, status, *runs, run(0), history=2)
    assert set(decision.remove) == {run(1).name, run(2).name}
    assert decide(START + 5 * HOUR + 1, status, *runs, history=0).remove == tuple(
        run(hours).name for hours in (4, 3, 2, 1)
    )


@pytest.mark.parametrize(("zone", "time"), [("Europe/Berlin", "1970-02-11 18:00"), ("UTC", "1970-02-11 17:00")])
def test_time_of_the_next_run_has_the_zone_of_the_schedule(zone: str, time: str) -> None:
    schedule = Schedule.model_validate({"cron": "0 * * * *", "timeZone": zone})
    status = JobStatus(schedule=ScheduleStatus(next=START + HOUR))
    assert shown(status, schedule).message == f"The next run is due at {time} ({zone})."
    assert shown(status, schedule.model_copy(update={"suspend": True})).state is JobState.SUSPENDED


def test_name_of_a_run_has_its_time() -> None:
    assert due_of(run_name("nightly", START)) == START
    assert due_of("nightly") is None
    assert due_of(f"nightly-{'9' * 40}") is None
