"""What a new spec changes in a running cluster: the types that every place reports, and a diff of plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_LINES = 20
_LONG = 60
_MISSING = object()


class Effect(StrEnum):
    """The effect of a change, the least severe first."""

    IN_PLACE = "in place"
    ADDED = "added"
    DRAINED = "drained"  # workers are removed; they hand over their data first unless the head is replaced too
    ROLLED = "rolled"  # workers are replaced; they hand over their data first unless the head is replaced too
    HEAD = "head replaced"  # all data of the cluster is lost
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """One difference: its effect, a sentence for users, and the fields that differ."""

    effect: Effect
    message: str
    lines: tuple[str, ...] = ()


def lines_between(before: Any, after: Any) -> tuple[str, ...]:
    """The fields that differ, as `path: old → new`."""
    found = list(_between(before, after, ""))
    more = len(found) - MOST_LINES
    return (*found[:MOST_LINES], f"… and {more} more") if more > 0 else tuple(found)


def _between(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        yield difference(path, before, after)
        return
    for key in {**old, **new}:
        below = f"{path}[{key}]" if isinstance(before, list) else f"{path}.{key}" if path else str(key)
        yield from _between(old.get(key, _MISSING), new.get(key, _MISSING), below)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """The value as a mapping: a mapping itself, or a list whose entries all have names. None for others."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        return {str(entry["name"]): entry for entry in value}
    return None


def difference(path: str, old: Any, new: Any) -> str:
    """One line for a field that differs."""
    before, after = _short(old), _short(new)
    return f"{path} differs" if before == after else f"{path}: {before} → {after}"


def _short(value: Any) -> str:
    if value is _MISSING or value is None:
        return "nothing"
    if isinstance(value, Mapping) and set(value) == {"name", "value"}:
        value = value["value"]
    if isinstance(value, float):
        value = f"{value:.10g}"  # cpu: 2, not 2.0
    text = " ".join(str(value).split())
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
