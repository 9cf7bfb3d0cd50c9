"""Fixtures for tests with real engines as processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Imported by every Python that finds it; only a keeper is changed.
IMPATIENT_KEEPER = """
import sys
if any("oars.keeper" in word for word in sys.orig_argv):
    from oars.plan import decide, why
    decide.JOIN_TIMEOUT, why.LATE_SECONDS = 4.0, 1.0
"""


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers that start from now on report and replace a worker that does not join within seconds."""
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT_KEEPER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
