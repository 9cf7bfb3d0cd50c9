"""Run uv with progress reports and a deadline. uv and its children end with this process."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oars.base.errors import Interrupted, TimedOut

QUIET_SECONDS = 5.0  # without output, after which the elapsed time is reported; each time after twice as long
MAX_QUIET_SECONDS = 60.0
_TICK = 0.2
_GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
_PROGRESS = re.compile(
    r"(Resolved|Downloading|Downloaded|Building|Built|Prepared|Installed|Bytecode compiled|Updating)\b"
)
_DOING = {
    "Resolved": "downloading", "Prepared": "installing", "Installed": "compiling bytecode",
    "Building": "compiling {}, which can take minutes", "Built": "downloading",
}  # fmt: skip
_CREDENTIALS = re.compile(r"://[^/@\s]+@")

# uv ends with this process even if it is killed (on Linux), and does not see variables that select another Python.
_LAUNCHER = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
for name in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX", "UV_PYTHON"):
    os.environ.pop(name, None)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Watch:
    """The deadline, progress callback and cancellation of a long operation."""

    what: str
    deadline: float
    progress: Callable[[str], None]
    cancelled: threading.Event
    started: float = field(default_factory=time.monotonic)

    def check(self, doing: str, lines: Sequence[str] = ()) -> None:
        """Raise if the operation was cancelled or its deadline has passed."""
        if self.cancelled.is_set():
            raise Interrupted(f"{self.title} was cancelled.")
        if time.monotonic() > self.deadline:
            raise TimedOut(
                f"Timed out after {self.elapsed():.0f} s building {self.what}: it was still {doing}.",
                "Try again: downloads are kept. Use a longer timeout if the network is slow.",
                tuple(lines[-8:]),
            )

    @property
    def title(self) -> str:
        """`what`, capitalized."""
        return self.what[0].upper() + self.what[1:]

    def elapsed(self) -> float:
        return time.monotonic() - self.started


class Failed(Exception):
    """uv failed; `lines` is its output."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines[-1] if lines else "uv failed without output")
        self.lines = lines


def find_uv() -> str | None:
    """The uv of this Python's package, else the one on the PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


def run(
    argv: Sequence[str],
    directory: Path,
    lock: int,
    watch: Watch,
    doing: str,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run uv and return its output. uv inherits `lock`, so the lock is held as long as uv runs."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env=os.environ | dict(variables or {}),
        pass_fds=(lock,),
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        for line in _lines(process, watch, doing, lines):
            lines.append(_CREDENTIALS.sub("://***@", line))
        while not _has_ended(process):  # it may close its output earlier
            watch.check(doing, lines)
            time.sleep(_TICK)
        if process.wait() != 0:
            raise Failed(lines)
        return lines
    finally:
        _end(process)


def _lines(process: subprocess.Popen[bytes], watch: Watch, doing: str, so_far: Sequence[str]) -> Iterator[str]:
    """Yield lines of output; check the deadline and report progress in between."""
    assert process.stdout is not None
    rest, last_output, quiet = b"", time.monotonic(), QUIET_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            watch.check(doing, so_far)
            if selector.select(_TICK):
                chunk = os.read(process.stdout.fileno(), 65536)
                *whole, rest = (rest + chunk).split(b"\n")
                for line in (raw.decode("utf-8", "replace").rstrip() for raw in whole):
                    text = line.strip()
                    if found := _PROGRESS.match(text):
                        watch.progress(f"{watch.what}: {text[0].lower()}{text[1:]}")
                        doing = _DOING.get(found[1], doing).replace("{}", text.removeprefix(found[0]).strip())
                    yield line
                last_output, quiet = time.monotonic(), QUIET_SECONDS
                if not chunk:
                    break
            elif _has_ended(process):  # a child may hold the pipe open
                break
            elif time.monotonic() - last_output > quiet:
                watch.progress(f"{watch.what}: still {doing}, {watch.elapsed():.0f} s")
                last_output, quiet = time.monotonic(), min(2 * quiet, MAX_QUIET_SECONDS)
    if rest:
        yield rest.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group: uv and compilers it started. uv is not reaped yet, so its id is not reused."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + _GRACE_SECONDS
        while not _has_ended(process) and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True if it has ended; does not reap it, where that is possible."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):  # macOS
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
