"""A program in a terminal, as a person has it: it has a TTY, echoes what is typed and colours its prompts."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")
_PASTE = "\x1b[200~{}\x1b[201~"  # so that an editor does not indent it again
ENTER = "\r"


class Terminal:
    def __init__(self, screen: int) -> None:
        self._screen = screen
        self._unread = ""

    def expect(self, pattern: str, seconds: float = 60) -> None:
        """Wait until this is shown. What has been shown up to then is no longer searched."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self._unread)):
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._screen], [], [], left)[0], f"no {pattern!r} in:\n{self._unread}"
            text = os.read(self._screen, 65_536).decode(errors="replace")
            self._unread = _CONTROLS.sub("", self._unread + text)
        self._unread = self._unread[found.end() :]

    def type(self, *keys: str) -> None:
        os.write(self._screen, "".join(keys).encode())

    def paste(self, text: str) -> None:
        self.type(_PASTE.format(text))


@contextmanager
def terminal(command: Sequence[str]) -> Iterator[Terminal]:
    screen, own = pty.openpty()
    termios.tcsetwinsize(own, (50, 200))
    process = subprocess.Popen(command, stdin=own, stdout=own, stderr=own, start_new_session=True)
    os.close(own)
    try:
        yield Terminal(screen)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(10)
        os.close(screen)
