"""Runs the driver of one attempt of a local job: claims the attempt, starts the user's command, keeps the end of its
output, and stores its exit code. It survives the job's keeper, so that no exit code is lost with it.

Exit code 75: another process has claimed the attempt."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from oars.base.children import kill_with
from oars.places.local.jobs import JOB_MARK, AttemptDir, DriverExit, JobDir, start_keeper
from oars.places.local.process import MARK, identify, signal_name

CLAIMED = 75
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells have it
STORE_SECONDS, RETRY_SECONDS = 3600.0, 0.5  # for an exit code that cannot be written because the disk is full
_CHUNK = 2**16


class KeptLog:
    """The end of an output: two files of at most half the size each, the older one with the suffix .old. What cannot be
    written, because the disk is full, is dropped: the driver continues."""

    def __init__(self, attempt: AttemptDir, keep: int) -> None:
        self._attempt = attempt
        self._limit = max(1, keep // 2)
        self._file: IO[bytes] = open(attempt.log, "ab", buffering=0)
        self._dropped = 0  # bytes since the last write that succeeded

    def write(self, data: bytes) -> None:
        try:
            if self._file.tell() and self._file.tell() + len(data) > self._limit:
                self._rotate()
            if self._dropped:
                self._write(f"\n({self._dropped} bytes of output could not be written)\n".encode())
                self._dropped = 0
        except OSError:
            self._dropped += len(data)
            return
        try:
            self._write(data)
        except OSError:
            self._dropped += len(data)

    def _write(self, data: bytes) -> None:
        """The kernel may take less than all of it, for example as the disk becomes full."""
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) or 0 :]

    def _rotate(self) -> None:
        os.replace(self._attempt.log, self._attempt.old_log)
        new = open(self._attempt.log, "ab", buffering=0)
        self._file.close()
        self._file = new

    def close(self) -> None:
        self._file.close()


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """argv: the job's directory, the attempt, the bytes of output to keep, and the command."""
    job, attempt = JobDir(Path(argv[0])), JobDir(Path(argv[0])).attempt(int(argv[1]))
    code = run(attempt, int(argv[2]), argv[3:])
    if code is None:
        return CLAIMED
    if not job.has_keeper:
        start_keeper(job, {name: value for name, value in environ.items() if name not in (JOB_MARK, MARK)})
    return code


def run(attempt: AttemptDir, keep: int, command: Sequence[str]) -> int | None:
    """The exit code of the command, which is stored; None: another process has claimed the attempt."""
    own = identify(os.getpid())
    if own is None or not attempt.claim(own):
        return None
    with contextlib.closing(KeptLog(attempt, keep)) as log:
        ended = _run(attempt, log, command)
    _store_exit(attempt, ended)
    return ended.code


def _store_exit(attempt: AttemptDir, ended: DriverExit) -> None:
    """Try for a while: without the exit code the attempt counts as lost, and the driver runs again."""
    deadline = time.monotonic() + STORE_SECONDS
    while True:
        try:
            attempt.write_exit(ended)
            return
        except OSError:
            if time.monotonic() > deadline or not attempt.path.exists():
                raise
        time.sleep(RETRY_SECONDS)  # poll: nothing announces that a disk has space again


def _run(attempt: AttemptDir, log: KeptLog, command: Sequence[str]) -> DriverExit:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=attempt.work,
            process_group=0,
            preexec_fn=kill_with(os.getpid()),  # nobody would store its exit code
        )
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        message = f"The command {command[0]!r} could not be started: {error.strerror}."
        log.write(f"{message}\n".encode())
        return DriverExit(code, time.time(), message)
    with process, _signals_forwarded(process):
        _copy(process, log)
        code = process.wait()
    message = "" if code >= 0 else f"The driver was killed by {signal_name(-code)}."
    return DriverExit(code if code >= 0 else 128 - code, time.time(), message)


@contextlib.contextmanager
def _signals_forwarded(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The first SIGTERM or SIGINT ends the driver's process group; some programs treat a second one as a kill."""
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) == 1 and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: handle, signal.SIGINT: handle, signal.SIGHUP: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _copy(process: subprocess.Popen[bytes], log: KeptLog) -> None:
    """Copy the output until the driver ends. Processes that it left behind may hold the pipe open."""
    assert process.stdout is not None
    source, ended = process.stdout.fileno(), os.pidfd_open(process.pid)
    os.set_blocking(source, False)
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while selector.get_map():
            ready = {key.fd for key, _ in selector.select()}
            if source in ready or ended in ready:
                is_open = _drain(source, log)
                if not is_open and source in selector.get_map():
                    selector.unregister(source)
            if ended in ready:
                break
    os.close(ended)


def _drain(source: int, log: KeptLog) -> bool:
    """Copy what is there; False at the end of the stream."""
    while True:
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        log.write(data)
