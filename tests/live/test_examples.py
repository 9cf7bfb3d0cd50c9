"""Run every example as its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OARS = str(Path(sys.executable).with_name("oars"))
SMALL = ("--workers", "2", "--memory", "1Gi", "--timeout", "5m", "-q")

# folder → the options that `oars run` needs for it, and what it prints
RUN: dict[str, tuple[tuple[str, ...], str]] = {
    "cluster-file": (("-f", str(EXAMPLES / "cluster-file/cluster.yaml"), "-q"), "big tasks ran on big-0"),
    "executor": (("--engine", "dask", *SMALL), "306 in all"),
    "mars-inner": (("--engine", "mars", *SMALL), "2000x2000 of 2000"),
}
ALONE = ("demo", "notebook")
BY_DEMO = ("dask-array-mean", "ray-two-hops")  # which runs them over and over


def outcome(*command: str, seconds: float = 360.0) -> str:
    """Run a program that must succeed and return its standard output."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_has_a_test() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    assert folders == {*RUN, *ALONE, *BY_DEMO}


@pytest.mark.parametrize("folder", sorted(RUN))
def test_example(folder: str) -> None:
    options, result = RUN[folder]
    printed = outcome(OARS, "run", *options, str(EXAMPLES / folder / "main.py"))
    assert printed.splitlines()[-1] == result


def test_notebook_example() -> None:
    assert outcome(sys.executable, str(EXAMPLES / "notebook/main.py")).splitlines()[-1] == "sum 328350 workers 1"


@pytest.mark.timeout(900)
def test_demo() -> None:
    header, *rows = outcome(sys.executable, str(EXAMPLES / "demo/demo.py"), seconds=880).splitlines()
    assert header.split()[0] == "engine"
    assert [row.split()[0] for row in rows] == ["dask", "ray", "mars"]
    for row, result in zip(rows, ("mean 1.0", "100 values over 1 path(s)", "2000x2000 of 2000"), strict=True):
        assert result in row
    assert [row.split()[-1] for row in rows] == ["0", "0", "0"], "processes were left behind"
