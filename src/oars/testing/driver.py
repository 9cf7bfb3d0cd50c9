"""A driver: a program in the engine's own environment that uses a cluster, and that a test can talk to line by line."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from types import TracebackType
from typing import Protocol, Self

from oars.client.backend import Driver
from oars.client.sync import Cluster


class HasDriver(Protocol):
    """A cluster, or anything else that names a Python and its environment."""

    def driver(self) -> Driver: ...


class DriverProgram:
    """Runs Python source with the cluster's driver environment; stdout and stderr are read as lines."""

    def __init__(self, cluster: HasDriver, source: str, *arguments: str) -> None:
        driver = cluster.driver()
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as stream:
            stream.write(source)
        self._path = stream.name
        self._lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._process = subprocess.Popen(
            [driver.python, self._path, *arguments], env={**driver.env, "PYTHONFAULTHANDLER": "1"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("(end)")

    def expect(self, text: str, seconds: float = 120.0) -> str:
        """The next line that holds `text`; fails at the program's end or when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {seconds} s:\n" + "\n".join(self._aborted())) from None
            self.seen.append(line)
            if text in line:
                return line
            assert line != "(end)", f"ended without {text!r}:\n" + "\n".join(self.seen)

    def _aborted(self) -> list[str]:
        """All lines; the last ones show what each thread of the program was doing."""
        self._process.send_signal(signal.SIGABRT)
        self._reader.join(10)
        while not self._lines.empty():
            self.seen.append(self._lines.get())
        return self.seen

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self, seconds: float = 60.0) -> int:
        return self._process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(60)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        os.unlink(self._path)


def run_driver(cluster: Cluster, source: str, seconds: float = 120.0) -> list[str]:
    """Run it to its good end; all its lines."""
    with DriverProgram(cluster, source) as program:
        program.expect("(end)", seconds)
        code = program.end()
        assert code == 0, f"exit code {code}:\n" + "\n".join(program.seen)
        return program.seen[:-1]
