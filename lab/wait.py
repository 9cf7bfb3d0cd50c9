"""Wait for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from lab.errors import Timeout

T = TypeVar("T")


def until(what: str, check: Callable[[], T], seconds: float = 90, every: float = 0.05) -> T:
    """Call `check` until it returns a true value, and return that value."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Timeout(f"Timed out after {seconds:g} s waiting until {what}.")
        time.sleep(every)
