"""The operator in simulated histories of users and faults. One seed is one history; a failing one is printed whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = 30


def replay(first: int, last: int) -> tuple[int, str]:
    """In a process of its own: the order of sets, and so the history, depends on PYTHONHASHSEED."""
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/toy'}"}
    words = [sys.executable, "-m", "tests.simulation.history", str(first), str(last)]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode not in (0, 1) else "")


@pytest.mark.parametrize("first", range(1, 120, STEP))
def test_invariants_hold_in_every_history(first: int) -> None:
    code, text = replay(first, first + STEP - 1)
    assert code == 0, text
    assert f"{STEP} histories, 0 violations" in text


def test_seed_replays_exactly() -> None:
    assert replay(7, 7) == replay(7, 7)
