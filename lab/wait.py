"""Waiting for a condition, always with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from lab.errors import Timeout

T = TypeVar("T")


def until(what: str, check: Callable[[], T], seconds: float = 90, every: float = 0.05) -> T:
    """Call `check` until it answers something true, and return that."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Timeout(f"{what}: not so after {seconds:g} s")
        time.sleep(every)
