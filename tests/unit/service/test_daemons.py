"""Programs in the background: their start ends when they report that they run, or that they have ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from oars.base.errors import StartFailed
from oars.service.daemons import READY_FD, Starter, start_daemon

RUNS = """
import os, subprocess, time
from oars.service.daemons import Starter
starter = Starter(os.environ)
subprocess.Popen(["sleep", "600"])
print("started", flush=True)
starter.notify()
starter.notify()
time.sleep(600)
"""
ENDS = """
import os, subprocess, sys
from oars.service.daemons import Starter
starter = Starter(os.environ)
child = subprocess.Popen(["sleep", "600"])  # which does not keep the pipe open
print("cannot start:", child.pid, flush=True)
sys.exit(3)
"""


def test_start_ends_when_the_daemon_reports(tmp_path: Path) -> None:
    log = tmp_path / "join" / "demo.log"
    daemon = start_daemon("head 'demo'", [sys.executable, "-c", RUNS], log, os.environ)
    try:
        assert daemon.is_ready and os.getsid(daemon.pid) == daemon.pid
        assert log.read_text() == "started\n" and log.stat().st_mode & 0o777 == 0o600
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.process.wait()


def test_start_that_takes_long_differs_from_a_daemon_that_runs(tmp_path: Path) -> None:
    daemon = start_daemon("head 'demo'", ["sleep", "600"], tmp_path / "demo.log", os.environ, seconds=0.1)
    try:
        assert not daemon.is_ready and daemon.process.poll() is None
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_daemon_that_ends_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    log.write_text("earlier\n")
    with pytest.raises(StartFailed, match="The head 'demo' ended with code 3") as caught:
        start_daemon("head 'demo'", [sys.executable, "-c", ENDS], log, os.environ)
    (line,) = caught.value.details
    assert line.startswith("cannot start: ")
    os.kill(int(line.split()[-1]), signal.SIGKILL)
    assert READY_FD not in os.environ


def test_daemon_that_is_ready_late_continues() -> None:
    """Its starter has stopped waiting, and has closed its end of the pipe."""
    reading, writing = os.pipe()
    starter = Starter({READY_FD: str(writing)})
    os.close(reading)
    starter.notify()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)
