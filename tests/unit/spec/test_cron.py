"""Cron expressions."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from oars.spec.cron import find_zone, last_time, next_time, parse_cron


def seconds(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=find_zone(zone)).timestamp()


def shown(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("cron", "following", "last"),
    [
        ("* * * * *", "2026-03-04T10:31", "2026-03-04T10:30"),
        ("*/15 * * * *", "2026-03-04T10:45", "2026-03-04T10:30"),
        ("0 3 * * *", "2026-03-05T03:00", "2026-03-04T03:00"),
        ("@daily", "2026-03-05T00:00", "2026-03-04T00:00"),
        ("30 9-17/4 * * mon-fri", "2026-03-04T13:30", "2026-03-04T09:30"),
        ("0 0 1 jan,jul *", "2026-07-01T00:00", "2026-01-01T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00", "2024-02-29T00:00"),
        ("0 0 13 * 5", "2026-03-06T00:00", "2026-02-27T00:00"),  # either of the days
        ("0 0 * * 7", "2026-03-08T00:00", "2026-03-01T00:00"),  # Sunday
        ("0 0 31 2 *", "", ""),
    ],
)
def test_times(cron: str, following: str, last: str) -> None:
    now = seconds("2026-03-04T10:30:20")  # a Wednesday
    parsed = parse_cron(cron)
    assert (shown(next_time(parsed, UTC, now)), shown(last_time(parsed, UTC, now))) == (following, last)


def test_time_that_is_due_now_is_the_last_one() -> None:
    now = seconds("2026-03-04T10:30:00")
    assert last_time(parse_cron("30 * * * *"), UTC, now) == now
    assert shown(next_time(parse_cron("30 * * * *"), UTC, now)) == "2026-03-04T11:30"


def test_clocks_that_change() -> None:
    """In Berlin, 2:30 does not exist on 29 March 2026, and comes twice on 25 October."""
    cron, zone = parse_cron("30 2 * * *"), find_zone("Europe/Berlin")
    spring = next_time(cron, zone, seconds("2026-03-28T12:00"))
    assert shown(spring) == "2026-03-30T00:30"
    first = next_time(cron, zone, seconds("2026-10-24T12:00"))
    assert shown(first) == "2026-10-25T00:30"
    assert first is not None
    assert shown(next_time(cron, zone, first)) == "2026-10-26T01:30"


@pytest.mark.parametrize(("cron", "pause"), [("* * * * *", 60), ("*/5 * * * *", 300)])
def test_frequent_schedule_also_runs_in_the_hour_that_is_repeated(cron: str, pause: int) -> None:
    parsed, zone = parse_cron(cron), find_zone("Europe/Berlin")
    at = seconds("2026-10-24T23:40")
    for _ in range(2 * 3600 // pause):
        following = next_time(parsed, zone, at)
        assert following == at + pause
        assert last_time(parsed, zone, following - 1) == at
        at = following


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *",
             "*/0 * * * *", "a * * * *", "1,,2 * * * *", "*-5 * * * *", "@reboot", "٣ * * * *"],
)  # fmt: skip
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        parse_cron(text)


@pytest.mark.parametrize("name", ["../etc/passwd", "localtime", "posixrules", "Nowhere/City"])
def test_unknown_time_zone(name: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        find_zone(name)


@pytest.mark.parametrize("text", ["0," * 500_000 + "0 3 * * *", "0 3 * * " + "1" * 1_000_000])
def test_long_schedule_is_rejected_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match=r"a schedule of \d+ characters is too long; use at most 1000"):
        parse_cron(text)
    assert time.process_time() - start < 0.2


def test_schedule_may_list_all_values() -> None:
    fields = (range(60), range(24), range(1, 32), range(1, 13), range(7))
    assert parse_cron(" ".join(",".join(map(str, field)) for field in fields)).minutes == frozenset(range(60))
