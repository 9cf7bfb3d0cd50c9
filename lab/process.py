"""Processes that the lab started, identified by pid, start time and boot.

The kernel reuses pids; the combination with start time and boot is unique.
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
    """A process, identified by pid and start time."""

    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """True if this process still runs; a zombie does not."""
        return _born(self.pid) == self.born

    def signal(self, number: int) -> None:
        """Send a signal if the pid still belongs to this process."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Checked after opening: from here on the pidfd refers to the process that we compared.
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
        """Send SIGTERM; send SIGKILL if the process still runs after `seconds`."""
        self.signal(signal.SIGTERM)
        with suppress(Timeout):
            until(f"process {self.pid} stops", lambda: not self.alive, seconds, 0.01)
        self.kill()

    def older_than(self, other: "Process") -> bool:
        """True if this process started before the other. Both must be running."""
        return self._ticks < other._ticks

    @property
    def _ticks(self) -> int:
        return int(self.born.rpartition(":")[2])

    def save(self, path: Path) -> None:
        """Write pid and start time to a file."""
        files.write_whole(path, f"{self.pid} {self.born}\n")


def caged(words: Sequence[str | Path], record: Path) -> Process:
    """Start a process with lab/cage.py. It runs only after its pid was written to `record`."""
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
    """Return the process that has this pid now."""
    return Process(pid, _born(pid) or "gone")


def saved(path: Path) -> Process | None:
    """Return the process recorded in a file, if any."""
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
    # The second field is the name in parentheses; it may contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{fields[19]}"
