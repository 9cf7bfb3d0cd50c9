"""The operator and direct clients in simulated histories of users and faults. One seed is one history; a failing one is
printed whole.

OARS_SEEDS sets the number of seeds. `make test` has 1,000, `make test-all` 10,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("OARS_SEEDS", "200"))
STEP = 100
AT_ONCE = 2
PATHS = (ROOT / "src", ROOT, ROOT / "tests/toy")
ENV = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, PATHS))}


def replay(first: int, last: int, *kind: str) -> tuple[int, str]:
    """In a process of its own: the order of sets, and so the history, depends on PYTHONHASHSEED."""
    words = [sys.executable, "-m", "tests.simulation", *kind, str(first), str(last)]
    done = subprocess.run(words, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode not in (0, 1) else "")


@pytest.mark.timeout(3600)
def test_invariants_hold_in_every_history() -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(pool.map(lambda first: replay(first, min(first + STEP - 1, SEEDS)), range(1, SEEDS + 1, STEP)))
    assert not any(code for code, _ in ends), "\n".join(text for code, text in ends if code)
    assert sum(json.loads(text.splitlines()[-1])["histories"] for _, text in ends) == SEEDS


@pytest.mark.timeout(3600)
def test_every_history_of_jobs_has_one_driver_per_attempt_and_ends_with_one_verdict() -> None:
    count = max(20, SEEDS // 5)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(pool.map(lambda first: replay(first, min(first + 9, count), "jobs"), range(1, count + 1, 10)))
    assert all(code == 0 for code, _ in ends), "\n".join(text for code, text in ends if code)


@pytest.mark.parametrize(("seed", "kind"), [(7, ()), (8, ()), (7, ("jobs",))], ids=["operator", "direct", "jobs"])
def test_seed_replays_exactly(seed: int, kind: tuple[str, ...]) -> None:
    code, text = replay(seed, seed, *kind)
    assert (code, text) == replay(seed, seed, *kind)
    assert len(text.splitlines()) > 20
