"""Run uv: its words passed on as progress, a deadline, and nothing of it left when we go."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oars.base.errors import Interrupted, TimedOut

QUIET = 5.0  # seconds without a word before we say how long it has taken
_TICK = 0.2
_PATIENCE = 2.0  # between asking uv to end and making it
_TOLD = re.compile(r"(Resolved|Downloading|Downloaded|Building|Built|Prepared|Installed|Bytecode compiled|Updating)\b")
_DOING = {"Resolved": "downloading", "Prepared": "installing", "Building": "building", "Built": "downloading"}
_CREDENTIALS = re.compile(r"://[^/@\s]+@")

# uv dies with us even when we are killed, and does not see what would lead it to another Python than the one named.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
for name in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_PREFIX", "UV_PYTHON"):
    os.environ.pop(name, None)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Watch:
    """What a long piece of work is tied to: its deadline, who is told, what calls it off."""

    what: str
    deadline: float
    progress: Callable[[str], None]
    cancelled: threading.Event
    started: float = field(default_factory=time.monotonic)

    def check(self, doing: str, lines: Sequence[str] = ()) -> None:
        """Raise if it was called off or takes too long."""
        if self.cancelled.is_set():
            raise Interrupted(f"{self.title} was called off.")
        if time.monotonic() > self.deadline:
            raise TimedOut(
                f"{self.title} was not ready after {self.elapsed():.0f} s; it was still {doing}.",
                "Try again: what was downloaded is kept. Give a longer --timeout if the network is slow.",
                tuple(lines[-8:]),
            )

    @property
    def title(self) -> str:
        """For the start of a sentence."""
        return self.what[0].upper() + self.what[1:]

    def elapsed(self) -> float:
        return time.monotonic() - self.started


class Failed(Exception):
    """uv ended with an error; its lines say which."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(lines[-1] if lines else "uv failed without a word")
        self.lines = lines


def run(
    argv: Sequence[str],
    directory: Path,
    lock: int,
    watch: Watch,
    doing: str,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run uv to its end and return its lines. `lock` is handed on: as long as uv lives, it is held."""
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
        while not _over(process):  # it may have closed its output before
            watch.check(doing, lines)
            time.sleep(_TICK)
        if process.wait() != 0:
            raise Failed(lines)
        return lines
    finally:
        _end(process)


def _lines(process: subprocess.Popen[bytes], watch: Watch, doing: str, so_far: Sequence[str]) -> Iterator[str]:
    """Lines as they come; in between, the deadline and a sign of life."""
    assert process.stdout is not None
    rest, heard = b"", time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            watch.check(doing, so_far)
            if selector.select(_TICK):
                chunk = os.read(process.stdout.fileno(), 65536)
                *whole, rest = (rest + chunk).split(b"\n")
                for line in (raw.decode("utf-8", "replace").rstrip() for raw in whole):
                    doing = _tell(line, watch, doing)
                    yield line
                heard = time.monotonic()
                if not chunk:
                    break
            elif _over(process):  # something it started may hold the pipe open for ever
                break
            elif time.monotonic() - heard > QUIET:
                watch.progress(f"{watch.what}: still {doing}, {watch.elapsed():.0f} s")
                heard = time.monotonic()
    if rest:
        yield rest.decode("utf-8", "replace")


def _tell(line: str, watch: Watch, doing: str) -> str:
    told = _TOLD.match(line.strip())
    if not told:
        return doing
    text = line.strip()
    watch.progress(f"{watch.what}: {text[0].lower()}{text[1:]}")
    return _DOING.get(told[1], doing)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole group: uv, and the compilers it may have started. Not reaped yet, so the number is its own."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        while not _over(process) and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _over(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, without reaping it."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
