"""Files that only their owner can read."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_private(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file of mode 0600 atomically: readers see the old content or the new. Creates parents of mode 0700.
    `durable`: after a power cut, too."""
    for parent in reversed([path.parent, *path.parent.parents]):
        if not parent.exists():  # mkdir(parents=True) would apply the mode to the last one only
            parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Store the names in a directory. Without it a renamed file may have its old content after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # some network file systems cannot do this
            raise
    finally:
        os.close(descriptor)
