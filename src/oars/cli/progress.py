"""Progress on stderr: one live line on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from contextlib import AbstractContextManager
from typing import TextIO

from oars.cli.errors import say

TICK = 0.1
DELAY = 0.3  # before anything is shown: short commands and errors need no progress
LINE_SECONDS = 1.0  # minimum time between two lines if stderr is not a terminal
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"


class Progress(AbstractContextManager["Progress"]):
    """Call it with the current activity. A thread draws it, so that the elapsed time advances between calls."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._text = self._shown = ""
        self._begun = time.monotonic()
        self._last = 0.0
        self._frame = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def __call__(self, text: str) -> None:
        self._text = " ".join(text.split())
        if self._thread is None and not self._quiet and not self._done.is_set():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing and erase the live line."""
        self._done.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._live and self._shown:
            self._write(_CLEAR)

    def again(self) -> Progress:
        """A new Progress with the same settings, for use after this one is closed."""
        return Progress(quiet=self._quiet, stream=self._stream)

    def say(self, text: str) -> None:
        """Stop drawing and print a permanent line."""
        self.close()
        if not self._quiet:
            say(text)

    def note(self, text: str) -> None:
        """Print permanent lines above the live one."""
        if not self._quiet:
            self._write(_CLEAR if self._live and self._shown else "")
            say(text)

    def _draw(self) -> None:
        self._done.wait(DELAY)
        while not self._done.is_set():
            if self._live:
                self._shown = self._text
                self._write(self._line())
            elif self._text != self._shown and time.monotonic() - self._last >= LINE_SECONDS:
                self._shown, self._last = self._text, time.monotonic()
                self._write(self._shown + "\n")
            self._done.wait(TICK)

    def _line(self) -> str:
        frames = _FRAMES if "utf" in (self._stream.encoding or "").lower() else _PLAIN_FRAMES
        self._frame = (self._frame + 1) % len(frames)
        seconds = f" ({self.elapsed:.0f} s)"
        room = max(10, shutil.get_terminal_size().columns - len(seconds) - 3)
        text = self._text if len(self._text) <= room else self._text[: room - 1] + "…"
        return f"{_CLEAR}{frames[self._frame]} {text}{seconds}"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, UnicodeEncodeError, ValueError):
            self._done.set()  # the terminal is gone; continue without progress
