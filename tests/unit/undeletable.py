"""Directories that cannot be removed, as those with files in use on NFS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def undeletable(path: Path) -> Iterator[None]:
    """Make a mount point of a new directory. It can be renamed with its parent, but not removed."""
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr}")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield
    finally:
        now = os.readlink(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
        subprocess.run(["umount", now], check=True)
