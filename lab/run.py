"""Run a program and report its error output."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError


def run(argv: Sequence[object], seconds: float = 60, text: str | None = None, folder: Path | None = None) -> str:
    """Run a program and return its output. Raise LabError with its error output if it fails."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=text, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(words)[:300]} timed out after {seconds:g} s") from late
    except FileNotFoundError as missing:
        raise LabError(f"{words[0]} is not installed: `python -m lab doctor` lists what is missing.") from missing
    if done.returncode:
        raise LabError(f"{' '.join(words)[:300]} failed ({done.returncode}): {(done.stderr or done.stdout).strip()}")
    return done.stdout
