"""Commands that run in the background: how one is started, and how it reports that it runs."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oars.base.errors import StartFailed

READY_SECONDS = 60.0  # for a daemon to report that it runs; it continues afterwards
EXIT_SECONDS = 5.0  # for a daemon to exit after it has closed its end of the pipe
LOG_LINES = 5  # of a daemon that ended, for the error
READY_FD = "OARS_READY_FD"  # variable of a daemon: the descriptor on which its starter waits


@dataclass(frozen=True)
class Daemon:
    process: subprocess.Popen[bytes]
    log: Path
    is_ready: bool  # it has reported that it runs

    @property
    def pid(self) -> int:
        return self.process.pid


class Starter:
    """The process that started this one in the background and waits for it, if there is one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        number = environ.get(READY_FD)
        self._descriptor = int(number) if number else None
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, False)

    def notify(self) -> None:
        """Report that this process does its work. Later calls do nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # The starter stops waiting after READY_SECONDS, or may have been stopped.
            with open(descriptor, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
                pipe.write(b"\n")


def start_daemon(
    title: str, argv: Sequence[str], log: Path, environ: Mapping[str, str], seconds: float = READY_SECONDS
) -> Daemon:
    """Start a program in its own session, and wait at most `seconds` until it reports that it runs. Raises StartFailed
    with its last lines if it ends before."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe:
        with open(writing, "wb"), open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            begin = output.tell()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[writing],
                env={**environ, READY_FD: str(writing)},
            )
        is_done, _, _ = select.select([pipe], [], [], seconds)
        if is_done and not pipe.read(1):
            code = process.wait(EXIT_SECONDS)
            lines = tuple(log.read_bytes()[begin:].decode(errors="replace").splitlines()[-LOG_LINES:])
            raise StartFailed(f"The {title} ended with code {code}.", f"Read {log}.", lines)
    return Daemon(process, log, is_ready=bool(is_done))
