"""Runs histories: `python -m tests.simulation [jobs] FIRST [LAST]`."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter

from tests.simulation.direct import DirectHistory
from tests.simulation.history import History, Violation
from tests.simulation.jobs import JobHistory
from tests.simulation.processes import LocalHistory


def history_of(seed: int) -> History | LocalHistory:
    """Of every eight histories two are of direct mode, and one is of a local cluster."""
    if seed % 8 == 5:
        return LocalHistory(seed)
    return DirectHistory(seed) if seed % 4 == 0 else History(seed)


def main(words: list[str]) -> int:
    """[jobs] FIRST [LAST]: run these seeds; print the history of each that violates an invariant, or of a single one.
    The last line is JSON: how many histories, violations, faults and kills."""
    logging.getLogger("oars").setLevel(logging.CRITICAL)
    is_jobs = words[0] == "jobs"
    first, last = int(words[is_jobs]), int(words[-1])
    counts: Counter[str] = Counter(histories=0, violations=0, kills=0)
    for seed in range(first, last + 1):
        history = JobHistory(seed) if is_jobs else history_of(seed)
        counts["histories"] += 1
        ending = f"seed {seed}: all invariants hold"
        try:
            history.run()
        except Violation as error:
            ending = f"seed {seed}: {error}"
            counts["violations"] += 1
        counts["kills"] += sum(line.endswith(": killed") for line in history.lines)
        counts.update(history.acts)
        if first == last or "all invariants" not in ending:
            sys.stdout.write("\n".join([*history.lines, ending, ""]))
    sys.stdout.write(json.dumps(counts) + "\n")
    return 1 if counts["violations"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
