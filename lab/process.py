"""Processes the lab started, known by pid and time of birth.

A pid alone may have passed to somebody else's process since it was written down; a pid with
the time it was born, on the same boot, may not.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab import files
from lab.errors import LabError, Timeout
from lab.wait import until


@dataclass(frozen=True)
class Process:
    """One process, alive or not."""

    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _born(self.pid) == self.born

    def signal(self, number: int) -> None:
        """Send a signal, if it is still the process we mean."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Checked after opening: the handle now stays with the process we compared.
            if self.alive:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        until(f"process {self.pid} ends", lambda: not self.alive, 90, 0.01)

    def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL for what is left after `seconds`."""
        self.signal(signal.SIGTERM)
        with suppress(Timeout):
            until(f"process {self.pid} stops", lambda: not self.alive, seconds, 0.01)
        self.kill()

    def older_than(self, other: "Process") -> bool:
        """Of two that live, so on the same boot."""
        return self._ticks < other._ticks

    @property
    def _ticks(self) -> int:
        return int(self.born.rpartition(":")[2])

    def save(self, path: Path) -> None:
        """Write it down."""
        files.write_whole(path, f"{self.pid} {self.born}\n")


def caged(words: Sequence[str | Path], record: Path) -> Process:
    """Start something with lab/cage.py; it runs only after `record` holds its pid."""
    argv = [sys.executable, "-I", str(Path(__file__).with_name("cage.py")), *map(str, words)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdin and maker.stdout and maker.stderr
        pid = maker.stdout.readline()
        if not pid:
            raise LabError(f"{words[-1]} could not be started: {maker.stderr.read().strip()[-500:]}")
        found = of(int(pid))
        found.save(record)
        maker.stdin.write("keep\n")
        maker.stdin.close()
        maker.wait(60)
    return found


def of(pid: int) -> Process:
    """The process that has this pid now."""
    return Process(pid, _born(pid) or "gone")


def saved(path: Path) -> Process | None:
    """The process written down at `path`, if any."""
    try:
        pid, born = path.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return Process(int(pid), born)


def _born(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in brackets, and may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{fields[19]}"
