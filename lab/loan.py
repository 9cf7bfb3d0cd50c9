"""Sharing one lab between test runs: the last one to leave puts out the light.

A run that uses the lab holds a shared lock on a file. A run that ends stops the lab if tests
started it and nobody else holds the lock. Locks end with their process, so a killed run
leaves at most a lab that the next run uses, and stops.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from lab.cluster import STARTED_BY_TESTS, Lab


@contextmanager
def borrowed(lab: Lab, with_node: bool = True) -> Iterator[Lab]:
    """Use the lab, starting it if need be."""
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
