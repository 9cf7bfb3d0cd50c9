"""Words for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MOST_NAMES = 10


def listed(names: Sequence[str]) -> str:
    """For a line of a log: a thousand names would hide the rest."""
    more = len(names) - MOST_NAMES
    return ",".join(names) if more <= 0 else f"{','.join(names[:MOST_NAMES])} and {more} more"


def suggest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest of the choices, or nothing when none is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
