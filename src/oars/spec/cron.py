"""Cron expressions: minute, hour, day of the month, month, day of the week. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MAX_LENGTH = 1000  # lists of all values have 400 characters
FAR = 8 * 366  # days: 29 February may be eight years away
NOT_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")  # files that differ between machines
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?")


@dataclass(frozen=True)
class Cron:
    """The times of a schedule. A day matches by either of its fields if both are restricted, as cron has it."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    either: bool
    is_frequent: bool = False  # it runs in every hour, or at every minute: also while an hour is repeated

    def includes(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        matches = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return any(matches) if self.either else all(matches)


def find_zone(name: str) -> tzinfo:
    """Raises ValueError. UTC needs no time zone data, which small images lack."""
    try:
        if name.startswith(NOT_ZONES):
            raise ValueError(name)
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; write it like Europe/Berlin") from None


def parse_cron(text: str) -> Cron:
    """Raises ValueError."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a schedule of {len(text)} characters is too long; use at most {MAX_LENGTH}")
    fields = MACROS.get(text.strip().lower(), text).lower().split()
    if len(fields) != 5:
        raise ValueError(f"{text!r} is not a schedule; write minute, hour, day, month and weekday, such as '0 3 * * *'")
    minutes, hours, days, months = (
        _field(fields[0], 0, 59), _field(fields[1], 0, 23), _field(fields[2], 1, 31), _field(fields[3], 1, 12, MONTHS),
    )  # fmt: skip
    weekdays = frozenset(each % 7 for each in _field(fields[4], 0, 7, DAYS))
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    is_frequent = fields[0].startswith("*") or fields[1].startswith("*")
    return Cron(minutes, hours, days, months, weekdays, either, is_frequent)


def _field(text: str, lowest: int, highest: int, names: tuple[str, ...] = ()) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        step = int(match["step"] or 1) if match else 0
        if match is None or step == 0:
            raise ValueError(f"{part!r} is not a part of a schedule")
        if match["first"] is None:
            first, last = lowest, highest
        else:
            first = _number(match["first"], names, lowest)
            last = _number(match["last"], names, lowest) if match["last"] else highest if match["step"] else first
        if not lowest <= first <= last <= highest:
            raise ValueError(f"{part!r} is not within {lowest}-{highest}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: tuple[str, ...], lowest: int) -> int:
    if text in names:
        return names.index(text) + lowest
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def next_time(cron: Cron, zone: tzinfo, after: float) -> float | None:
    """The first time of the schedule after this one, in seconds since the epoch; None: there is none."""
    first = datetime.fromtimestamp(after, zone).date()
    days = (first + timedelta(days=number) for number in range(FAR))
    return next((at for day in days for at in _times(cron, zone, day) if at > after), None)


def last_time(cron: Cron, zone: tzinfo, until: float) -> float | None:
    """The last time of the schedule that is not after this one."""
    first = datetime.fromtimestamp(until, zone).date()
    days = (first - timedelta(days=number) for number in range(FAR))
    return next((at for day in days for at in reversed(list(_times(cron, zone, day))) if at <= until), None)


def _times(cron: Cron, zone: tzinfo, day: date) -> Iterator[float]:
    """The times of a day, in order. A local time that is skipped when clocks go forward has none; one that is repeated
    counts once, unless the schedule is frequent."""
    if not cron.includes(day):
        return
    clock = (time(hour, minute) for hour in sorted(cron.hours) for minute in sorted(cron.minutes))
    local_times = (datetime.combine(day, each, zone) for each in clock)
    midnight = datetime.combine(day, time(), zone)
    if midnight.utcoffset() == (midnight + timedelta(days=1)).utcoffset():
        yield from (local.timestamp() for local in local_times)
        return
    exist = [local for local in local_times if local.astimezone(UTC).astimezone(zone).replace(fold=0) == local]
    folds = range(1 + cron.is_frequent)
    yield from sorted({local.replace(fold=fold).timestamp() for local in exist for fold in folds})
