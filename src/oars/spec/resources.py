"""Parse quantities: memory, processors, durations."""

from __future__ import annotations

import re

_MEMORY_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")

MAX_LENGTH = 64  # of a quantity as text
MAX_CACHE_PERCENT = 90
MAX_MEMORY = 2**50  # a larger value has a wrong unit
MAX_CPU = 4096
MAX_SECONDS = 365 * 86400.0


def _text(value: object) -> str:
    text = str(value)
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a text of {len(text)} characters is no quantity; use at most {MAX_LENGTH}")
    return text.strip()


def memory(value: object) -> int:
    """'1Gi', '512MB', '2g' or a number of bytes → bytes."""
    is_text_or_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    match = _NUMBER_AND_UNIT.fullmatch(_text(value)) if is_text_or_number else None
    unit = _MEMORY_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{value!r} is not an amount of memory; write it like 512Mi or 4Gi")
    amount = float(match[1]) * unit
    if not 2**20 <= amount <= MAX_MEMORY:
        raise ValueError(f"{value!r} is not between 1Mi and 1024Ti of memory (is the unit missing?)")
    return int(amount)


def cache(value: object) -> int | str:
    """'40%' of the memory, or an amount such as '4Gi' → '40%', or bytes."""
    match = _PERCENT.fullmatch(_text(value))
    if match is None:
        try:
            return memory(value)
        except ValueError as error:
            raise ValueError(str(error).replace("write it like", "write it like 40%,")) from None
    if not 1 <= float(match[1]) <= MAX_CACHE_PERCENT:
        raise ValueError(f"{value!r} is not between 1% and {MAX_CACHE_PERCENT}% of the memory; tasks need the rest")
    return f"{float(match[1]):g}%"


def cache_size(value: int | str, of_memory: int) -> int:
    """The bytes of a cache, for a member with that much memory."""
    return value if isinstance(value, int) else int(of_memory * float(value.rstrip("%")) / 100)


def cpu(value: object) -> float:
    """2, 0.5, '500m' → processors."""
    text = _text(value)
    try:
        amount = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        raise ValueError(f"{value!r} is not a number of processors; write it like 2, 0.5 or 500m") from None
    if isinstance(value, bool) or not 0 < amount <= MAX_CPU:
        raise ValueError(f"{value!r} processors: must be more than 0 and at most {MAX_CPU}")
    return amount


def duration(value: object) -> float:
    """90, '90s', '2m', '1h30m' → seconds."""
    text = _text(value)
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text))
    else:
        try:
            seconds = float(text)
        except ValueError:
            raise ValueError(f"{value!r} is not a duration; write it like 30s, 2m or 1h30m") from None
    if isinstance(value, bool) or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{value!r} is not a duration between 0 and a year")
    return seconds


def limit(value: object) -> float:
    """A duration of at least a second, or 0 for none."""
    seconds = duration(value)
    if 0 < seconds < 1:
        raise ValueError(f"{value!r} is too short; use at least 1s, or 0 for no limit")
    return seconds


def show_duration(seconds: float) -> str:
    """Seconds → the two largest units: 5400 → '1h30m', 1.4 → '1s'."""
    left, parts = max(0, int(seconds)), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2]) or "0s"


def exact_memory(amount: int) -> int | str:
    """Bytes → the largest unit that is exact: 209715200 → '200Mi'; else the bytes."""
    sizes = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"))
    return next((f"{amount // size}{unit}" for size, unit in sizes if amount % size == 0), amount)


def show_memory(amount: int) -> str:
    """Bytes → a short, rounded form: 1610612736 → '1.5Gi'."""
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if amount >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + unit
    return str(amount)
