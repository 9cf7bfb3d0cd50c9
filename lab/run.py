"""Running a program to its end, with its words in the error."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError


def run(argv: Sequence[object], seconds: float = 60, text: str | None = None, folder: Path | None = None) -> str:
    """Run, and return what it printed; an error carries what it said."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=text, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(words)[:300]}: not done after {seconds:g} s") from late
    except FileNotFoundError as missing:
        raise LabError(f"{words[0]} is not installed: `python -m lab doctor` says what is needed.") from missing
    if done.returncode:
        raise LabError(f"{' '.join(words)[:300]} failed ({done.returncode}): {(done.stderr or done.stdout).strip()}")
    return done.stdout
