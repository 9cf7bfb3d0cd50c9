"""What every test gets: a state directory of its own, the toy engine, and a check that nothing is left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars.places.local import process

TOY = Path(__file__).parent / "toy"
LEAK_SECONDS = 10.0

# Keepers and members find the toy engine the way a third party's would be found: installed, with an entry point.
os.environ["PYTHONPATH"] = os.pathsep.join([str(TOY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
sys.path.insert(0, str(TOY))
# Engine environments are built once and kept, whatever the tests do to the rest.
CACHE = os.environ.get("OARS_CACHE_DIR") or str(Path.home() / ".cache/oars")


@pytest.fixture(autouse=True)
def own_state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own, and afterwards no process, shared memory or temporary file of its making.

    Unit tests start nothing, so nothing is searched for."""
    state = tmp_path / "state"
    monkeypatch.setenv("OARS_STATE_DIR", str(state))
    monkeypatch.setenv("OARS_CACHE_DIR", CACHE)
    if "unit" in Path(request.node.path).parts:
        yield state
        return
    before = _files()
    yield state
    _assert_nothing_left(state, before)


def _assert_nothing_left(state: Path, before: set[str]) -> None:
    deadline = time.monotonic() + LEAK_SECONDS
    while (left := _processes(state)) and time.monotonic() < deadline:
        time.sleep(0.05)  # processes of strangers to us: there is nothing to await but their absence
    assert not left, f"processes left behind: {left}"
    files = _files() - before
    assert not files, f"files left behind: {sorted(files)}"


def _processes(state: Path) -> list[str]:
    """Every process whose environment names this test's state directory: keepers, zygotes, members, their children."""
    found = []
    for pid in process.all_pids():
        environment = process.environment_of(pid)
        ours = environment.get("OARS_STATE_DIR", "") == str(state) or str(state) in environment.get("TMPDIR", "")
        if pid != os.getpid() and ours and process.start_of(pid) is not None:
            found.append(f"{pid} {(process.PROC / str(pid) / 'cmdline').read_bytes()[:200]!r}")
    return found


def _files() -> set[str]:
    """Shared memory and temporary files. Others who work on the same machine are told apart by asking them to say so."""
    if os.environ.get("OARS_TEST_SHARED_MACHINE"):
        return set()
    temporary = {f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(("oars", "ray", "mars", "xorbits"))}
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} | temporary
