"""python -m bench.before_after REVISION: start times of this checkout (ours) and of a revision (theirs), in turns.

The other revision gets a worktree and an environment of its own in a temporary directory.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import programs
from bench.__main__ import PAIRS, ROUNDS, cpu_seconds, report, row, run, say

ROOT = Path(__file__).parent.parent
LIMIT = 1.1  # what the machine's noise may make of equal programs


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A worktree of that revision with its environment."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), revision], cwd=ROOT, check=True)
        try:
            subprocess.run(["make", "setup"], cwd=tree, check=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def compare(before: Path, after: Path) -> Iterator[dict[str, Any]]:
    """Each: the directory with the programs of one revision."""
    for pair in PAIRS:
        times: dict[Path, list[float]] = {before: [], after: []}
        for number in range(ROUNDS):
            for side in (before, after):
                times[side].append(run(str(side / "python"), programs.START_OARS, *pair.ours)["start"])
            say(f"{pair.ours} {number + 1}/{ROUNDS}: before {times[before][-1]:.2f} s, after {times[after][-1]:.2f} s")
        yield row(f"{pair.engine}: head + {pair.ours[1]}, seconds to ready", times[after], times[before], LIMIT)
    seconds = {side: [cpu_seconds([str(side / "oars"), "--help"]) for _ in range(ROUNDS)] for side in (before, after)}
    yield row("oars --help, CPU seconds", seconds[after], seconds[before], LIMIT)


def main(revision: str) -> None:
    with checkout(revision) as tree:
        rows = list(compare(tree / ".venv/bin", Path(sys.executable).parent))
    report("before_after", rows, before=revision)


if __name__ == "__main__":
    main(sys.argv[1])
