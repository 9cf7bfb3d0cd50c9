"""A content-addressed cache outside the checkout for things that are slow to build."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash of the parts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock. The kernel releases it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def kept(cache: Path, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the directory `name/key`; call `make` to fill it if it does not exist.

    Of two concurrent callers the second waits for the first. An incomplete directory never gets the final name.
    """
    final = cache / name / key
    if final.exists():
        return final
    with lock(cache / "locks" / name):
        if not final.exists():
            draft = cache / name / "draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            make(draft)
            draft.rename(final)
    return final
