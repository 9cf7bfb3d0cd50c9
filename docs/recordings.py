"""Records the first lines of README.md in a terminal: with real clusters, as the asciicast that asciinema plays and as
an SVG that shows its lines when they were printed.

    python docs/recordings.py [DIRECTORY]     default: docs/images
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.color import ANSI_COLOR_NAMES
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
NAME = "first-steps"
COLUMNS, ROWS = 100, 30
SECONDS = 180  # for one command
KEY_SECONDS = 0.02  # between two keys
IDLE = 1.5  # a longer pause is shown as long as this
PROMPT = "\x1b]133;A\x07$ "  # with the mark that terminals know as the start of a prompt
PID = "18235"  # in README.md; the process of worker-0

_CONTROLS = re.compile(r"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[A-Za-ln-z]")  # all but colours
_NUMBERS = {number: name for name, number in reversed(ANSI_COLOR_NAMES.items()) if number < 16}
_FILLS = {"red": "#e5534b", "green": "#57ab5a", "yellow": "#c69026", "blue": "#539bf5", "cyan": "#39c5cf"}
_TEXT, _BACKGROUND = "#cdd9e5", "#22272e"
_LINE, _CHARACTER, _MARGIN = 19, 8.43, 14  # pixels


def commands() -> list[str]:
    """The shell lines at the start of README.md."""
    block = re.search(r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return [re.sub(r"\s+#\s.*$", "", line[2:]) for line in block[1].splitlines() if line.startswith("$ ")]


@dataclass
class Recording:
    """What a terminal showed: texts, and when, in seconds since the start."""

    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.events)

    def asciicast(self) -> str:
        """Version 2 of the format."""
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "idle_time_limit": IDLE, "title": "Oars"}
        return "".join(json.dumps(each) + "\n" for each in (header, *([at, "o", text] for at, text in self.events)))

    def lines(self) -> list[tuple[float, str]]:
        """The lines as they stay, with their colours, and when each was complete. Pauses are cut to IDLE."""
        found: list[tuple[float, str]] = []
        now, before, line, is_new = 0.0, 0.0, "", False
        for at, text in self.events:
            now, before = now + min(IDLE, at - before), at
            for part in re.split(r"(\r\n|\n|\r)", _CONTROLS.sub("", text)):
                if part in ("\n", "\r\n"):
                    found.append((now, line))
                    line, is_new = "", False
                elif part == "\r":
                    is_new = True  # what follows replaces the line
                elif part:
                    line, is_new = (part if is_new else line + part), False
        return found

    def svg(self) -> str:
        """A picture in which each line appears at its time; where nothing moves, all are there."""
        console = Console(width=COLUMNS)
        lines = [(at, part) for at, line in self.lines() for part in Text.from_ansi(line).wrap(console, COLUMNS)]
        width, height = COLUMNS * _CHARACTER + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
        drawn = "".join(
            f'<text y="{_MARGIN + _LINE * (row + 0.75):.0f}" style="animation-delay:{at:.2f}s">{_spans(line)}</text>\n'
            for row, (at, line) in enumerate(lines)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
            f"<title>Oars in a terminal</title>\n<style>text{{font:14px monospace;white-space:pre;fill:{_TEXT};"
            "animation:shown 1ms backwards}@keyframes shown{from{opacity:0}}\n"
            "@media (prefers-reduced-motion:reduce){text{animation:none}}</style>\n"
            f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>\n<g transform="translate({_MARGIN})">\n'
            f"{drawn}</g></svg>\n"
        )


def _spans(line: Text) -> str:
    parts = []
    for segment in line.render(Console(width=10 * COLUMNS)):
        color = segment.style.color if segment.style else None
        fill = _FILLS.get(_NUMBERS.get(color.number, "") if color and color.number is not None else "")
        text = escape(segment.text.rstrip("\n"))
        parts.append(f'<tspan fill="{fill}">{text}</tspan>' if fill else text)
    return "".join(parts)


class Shell:
    """A shell in a terminal of its own, in which commands are typed."""

    def __init__(self, screen: int) -> None:
        self.recording, self._screen, self._start = Recording(), screen, time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._read_until(1)

    def run(self, command: str) -> None:
        """Type a command and wait for the next prompt."""
        prompts = self.recording.text.count(PROMPT)
        for key in f"{command}\n":
            os.write(self._screen, key.encode())
            time.sleep(KEY_SECONDS)  # as a person types
        self._read_until(prompts + 1)

    def _read_until(self, prompts: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.recording.text.count(PROMPT) < prompts:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._screen], [], [], left)[0]:
                raise TimeoutError(f"no prompt after {SECONDS} s:\n{self.recording.text[-2000:]}")
            text = self._decoder.decode(os.read(self._screen, 65536))
            self.recording.events.append((round(time.monotonic() - self._start, 3), text))


@contextmanager
def shell(env: Mapping[str, str]) -> Iterator[Shell]:
    screen, own = pty.openpty()
    termios.tcsetwinsize(own, (ROWS, COLUMNS))
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        stdin=own, stdout=own, stderr=own, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(own)
    try:
        yield Shell(screen)
    finally:
        os.close(screen)  # the shell ends when its terminal does
        process.wait(SECONDS)


def record(lines: Sequence[str], state: Path) -> Recording:
    """Type lines in a shell. The number of worker-0's process is that of the present one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OARS_STATE_DIR": str(state), "PS1": PROMPT, "TERM": "xterm-256color"}
    for name in ("KUBECONFIG", "NO_COLOR", "PROMPT_COMMAND"):
        env.pop(name, None)
    try:
        with shell(env) as opened:
            for line in lines:
                opened.run(line.replace(PID, _pid("worker-0", env)) if PID in line else line)
            return opened.recording
    finally:
        subprocess.run(["oars", "down", "--all", "-q"], env=env, check=False, timeout=SECONDS)


def _pid(member: str, env: Mapping[str, str]) -> str:
    status = json.loads(subprocess.check_output(["oars", "status", "demo", "-o", "json"], env=env, timeout=SECONDS))
    return next(str(each["pid"]) for each in status["members"] if each["id"] == member)


def record_all(directory: Path) -> list[Path]:
    """The recording of README.md and docs/quickstart.md, in both forms."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oars-recording-") as state:
        made = record(commands(), Path(state) / "state")
    cast, svg = directory / f"{NAME}.cast", directory / f"{NAME}.svg"
    cast.write_text(made.asciicast())
    svg.write_text(made.svg())
    return [cast, svg]


if __name__ == "__main__":
    for written in record_all(Path(sys.argv[1]) if sys.argv[1:] else IMAGES):
        sys.stdout.write(f"{written}\n")
