"""Share one lab between test runs.

A run holds a shared file lock while it uses the lab. At its end it stops the lab if tests started it and no other run
holds the lock. The kernel releases locks with their process: after a killed run the lab stays up, and the next run uses
and stops it.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from lab.cluster import STARTED_BY_TESTS, Lab


@contextmanager
def borrowed(lab: Lab, with_node: bool = True) -> Iterator[Lab]:
    """Use the lab; start it if it is not running."""
    lab.claim()
    ours = lab.dir / STARTED_BY_TESTS
    with (lab.dir / "in-use").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        if not lab.running():
            ours.touch()
        try:
            lab.up(with_node)
            yield lab
        finally:
            if ours.exists() and _last(handle):
                lab.down()


def _last(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
