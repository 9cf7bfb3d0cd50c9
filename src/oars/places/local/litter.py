"""Removes what members leave outside their directories (Process.litter): links, shared memory."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterable
from pathlib import Path

from oars.plan.fill import fill


def remove_litter(patterns: Iterable[str], tag: str) -> None:
    """Remove the files that match the patterns with this tag. The processes with the tag must have ended."""
    for pattern in patterns:
        for found in map(Path, glob.glob(fill(pattern, {"tag": tag}))):
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)
