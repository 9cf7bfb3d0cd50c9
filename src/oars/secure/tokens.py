"""Tokens, and files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def new_token() -> str:
    """256 random bits as hexadecimal digits: safe in headers, URLs, files and shells."""
    return secrets.token_hex(32)


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 at once: readers see the old content or the new, and nobody else sees any."""
    _make_private(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _make_private(directory: Path) -> None:
    """Directories that are missing get mode 0700, every one of them; mkdir(parents=True) does that to the last only."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
