"""Installation of Debian packages."""

import os
import time
from collections.abc import Sequence

from lab.errors import LabError
from lab.run import run

LOCK_TIMEOUT = 300.0  # seconds that another apt-get may take
LOCKED = "Could not get lock"


def install(packages: Sequence[str], lock_timeout: float = LOCK_TIMEOUT) -> None:
    """Install packages. Raise LabError if that fails."""
    options = ["-qq", "-o", f"DPkg::Lock::Timeout={lock_timeout:g}"]
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    _update(["apt-get", *options, "update"], lock_timeout)
    run(["apt-get", *options, "install", "--no-install-recommends", "-y", *packages], 900)


def _update(command: Sequence[str], lock_timeout: float) -> None:
    """Update the package lists. apt-get has no timeout for their lock: try again while another process holds it."""
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            run(command, 600)
            return
        except LabError as failure:
            if LOCKED not in str(failure) or time.monotonic() > deadline:
                raise
        time.sleep(0.5)
