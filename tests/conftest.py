"""What every test gets: a state directory of its own, the toy engine, and a check that nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars.testing import assert_nothing_left, files

# Make runs one half of the tests in the background, where a shell has its children ignore Ctrl-C: ours must heed it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHECKED = ("live", "contract")
TOY = Path(__file__).parent / "toy"

# Keepers and members find the toy engine the way a third party's would be found: installed, with an entry point.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TOY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
sys.path.insert(0, str(TOY))
# Engine environments are built once and kept, whatever the tests do to the rest.
CACHE = os.environ.get("OARS_CACHE_DIR") or str(Path.home() / ".cache/oars")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run of all tests while one works shall take less than 20 minutes on two cores; CI has the time."""
    if os.environ.get("CI") or os.environ.get("OARS_TEST_ALL"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="long; CI runs it, and OARS_TEST_ALL=1"))


@pytest.fixture(autouse=True)
def own_state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own, and afterwards no process, shared memory or temporary file of its making.

    Unit tests start nothing, the lab has checks of its own, and so have classes with one cluster for all their tests:
    their fixture `state` looks when the class is done."""
    state = tmp_path / "state"
    monkeypatch.setenv("OARS_STATE_DIR", str(state))
    monkeypatch.setenv("OARS_CACHE_DIR", CACHE)
    if request.node.path.parent.name not in CHECKED or "state" in request.fixturenames:
        yield state
        return
    before = files()
    yield state
    assert_nothing_left(state, before)
