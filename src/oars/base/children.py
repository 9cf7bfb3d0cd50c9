"""Child processes that end with this one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def kill_with(parent: int) -> Callable[[], None] | None:
    """A function for the child to run before its program (preexec_fn): the kernel then kills the child when `parent`,
    the process that starts it, dies. None where no kernel can do that."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork

    def request_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return request_signal
