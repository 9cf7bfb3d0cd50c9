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


def progress_of(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(program, "QUIET_SECONDS", 0.2)
    uv = tmp_path / "uv"
    uv.write_text(output)
    uv.chmod(0o755)
    said: list[str] = []
    watch = program.Watch("the environment", time.monotonic() + 60, said.append, threading.Event())
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    try:
        program.run([str(uv)], tmp_path, lock, watch, "resolving")
    finally:
        os.close(lock)
    return said


def test_silence_after_the_installation_is_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = progress_of(UV, tmp_path, monkeypatch)
    quiet = [line for line in said if "still" in line]
    assert quiet and all("still compiling bytecode" in line for line in quiet), said
    assert said[-1] == "the environment: bytecode compiled 9 files in 1s"


def test_long_compilation_is_named_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_source = "#!/bin/sh\necho '   Building pymars==0.10.0'\nsleep 2\n"
    quiet = progress_of(compile_source, tmp_path, monkeypatch)[1:]
    assert 1 <= len(quiet) <= 3, "after 0.2, 0.6 and 1.4 s"
    assert all("still compiling pymars==0.10.0, which can take minutes, " in line for line in quiet)
