"""What is said while uv works."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from oars.envs import program

UV = """#!/bin/sh
echo 'Resolved 3 packages in 1ms'
echo 'Installed 3 packages in 2ms'
sleep 1
echo 'Bytecode compiled 9 files in 1s'
"""


def test_silence_after_the_installation_is_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "QUIET_SECONDS", 0.2)
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    said: list[str] = []
    watch = program.Watch("the environment", time.monotonic() + 60, said.append, threading.Event())
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    try:
        program.run([str(uv)], tmp_path, lock, watch, "resolving")
    finally:
        os.close(lock)
    quiet = [line for line in said if "still" in line]
    assert quiet and all("still compiling bytecode" in line for line in quiet), said
    assert said[-1] == "the environment: bytecode compiled 9 files in 1s"
