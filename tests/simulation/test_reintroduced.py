"""The simulator catches faults that were reintroduced: M1, M3 and M8 of the audit, and others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.reintroduced import FAULTS
from tests.simulation.test_histories import ENV, ROOT

MOST_SEEDS = 150
# Only some of the histories provoke these, so that finding one takes minutes.
RARE = ("lost_node_that_is_waited_for", "shared_cluster_that_is_used_twice")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=pytest.mark.long) if each in RARE else each for each in FAULTS]
)
def test_reintroduced_fault_is_caught(fault: str) -> None:
    words = [sys.executable, "-m", "tests.simulation.reintroduced", fault, "1", str(MOST_SEEDS)]
    done = subprocess.run(words, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
