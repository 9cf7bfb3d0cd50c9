"""Progress on stderr: one live line on a terminal, plain lines elsewhere, nothing when it shall be quiet."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from oars.cli.failures import say

TICK = 0.1
SILENCE = 0.3  # before anything is shown: what is over by then needs no progress, and bad input is refused by then
LINE_SECONDS = 1.0  # off a terminal, at most one line in that time
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"


class Progress:
    """Call it with what is going on now. A thread draws, so that it moves (and counts) while nothing is said."""

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing more is drawn, and the live line is gone."""
        self._done.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._live and self._shown:
            self._write(_CLEAR)

    def again(self) -> Progress:
        """A fresh one, for what comes after the first was closed."""
        return Progress(quiet=self._quiet, stream=self._stream)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.close()
        if not self._quiet:
            say(text)

    def note(self, text: str) -> None:
        """Lines that stay, while what is drawn goes on below them."""
        if not self._quiet:
            self._write(_CLEAR if self._live and self._shown else "")
            say(text)

    def _draw(self) -> None:
        self._done.wait(SILENCE)
        while not self._done.is_set():
            if self._live:
                self._shown = self._text
                self._write(self._line())
            elif time.monotonic() - self._last >= LINE_SECONDS:
                self._print()
            self._done.wait(TICK)

    def _print(self) -> None:
        if self._text != self._shown:
            self._shown, self._last = self._text, time.monotonic()
            self._write(self._text + "\n")

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
            self._done.set()  # the terminal went away; the work goes on
