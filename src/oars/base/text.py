"""Text helpers for messages and logs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_NAMES = 10


def join_names(names: Sequence[str]) -> str:
    """'a,b,c', shortened to MAX_NAMES names and the number of the others."""
    more = len(names) - MAX_NAMES
    return ",".join(names) if more <= 0 else f"{','.join(names[:MAX_NAMES])} and {more} more"


def suggest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean …?' with the closest choice, or '' if none is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def command(verb: str, cluster: str, *arguments: str, namespace: str = "") -> str:
    """A complete command line `oars VERB CLUSTER …`, for hints."""
    return " ".join(["oars", verb, cluster, *arguments, *(["-n", namespace] if namespace else [])])
