"""Things that are slow to make, kept outside the checkout under the hash of what they are made of."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def digest(parts: Iterable[bytes]) -> str:
    """A name for content: the same parts, the same name."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a file lock; it ends with the process, so a crash leaves none behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def kept(cache: Path, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """The directory `name/key`, made by `make` if nobody has yet.

    Two at once: the second waits and finds it done. Half-made: it never has the final name.
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
