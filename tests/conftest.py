"""Fixtures for every test: its own state directory, the toy engine, and a check for leaked processes and files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars.testing import assert_nothing_left, files

# `make test` runs some suites as background jobs of a shell, which makes them ignore Ctrl-C. Tests need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LEAK_CHECKED = ("live", "contract")
TOY = Path(__file__).parent / "toy"

# Keepers and members find the toy engine the same way as any third-party engine: on the path, with an entry point.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TOY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
sys.path.insert(0, str(TOY))
# All tests share one cache of engine environments: each is built once.
CACHE = os.environ.get("OARS_CACHE_DIR") or str(Path.home() / ".cache/oars")


@pytest.fixture(autouse=True)
def own_state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test its own state directory; afterwards assert that it left no process, shared memory or file behind.

    There is no check for unit tests, which start nothing, and for the lab, which has its own checks. A class that
    shares one cluster among its tests has a fixture `state` that checks once at the end."""
    state = tmp_path / "state"
    monkeypatch.setenv("OARS_STATE_DIR", str(state))
    monkeypatch.setenv("OARS_CACHE_DIR", CACHE)
    if request.node.path.parent.name not in LEAK_CHECKED or "state" in request.fixturenames:
        yield state
        return
    before = files()
    yield state
    assert_nothing_left(state, before)
