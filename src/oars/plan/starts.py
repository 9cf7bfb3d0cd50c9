"""How long the members of a group take to become ready, measured while they start. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

LAST = 5  # starts of a group that count
LONGEST = 300.0  # seconds that a start counts at most: a pod may wait for hours until a node has room
UNKNOWN = 12.0  # seconds, as long as no member has started


@dataclass(frozen=True)
class Starts:
    """What the looks so far have seen."""

    since: Mapping[Hashable, float | None] = field(default_factory=dict)  # member → first look; None: it was ready
    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # group → of the last starts

    def typical(self, group: str) -> float:
        """Seconds that a member takes to become ready."""
        known = self.seconds.get(group)
        return statistics.median(known) if known else UNKNOWN


def observe(before: Starts, members: Iterable[tuple[Hashable, str, bool]], now: float) -> Starts:
    """After a look at all members: id, group, and whether it is ready. Members that were ready at their first look have
    started unseen; one that was ready before and is so again has not started."""
    since: dict[Hashable, float | None] = {}
    seconds = dict(before.seconds)
    for member, group, is_ready in members:
        first = before.since.get(member, now)
        if first is not None and is_ready:
            if first < now:
                seconds[group] = (*seconds.get(group, ()), min(now - first, LONGEST))[-LAST:]
            first = None
        since[member] = first
    return Starts(since, seconds)
