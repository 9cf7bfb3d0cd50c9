"""Progress: a live line on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import io
import time

import pytest

from oars.cli import progress
from oars.cli.progress import Progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.005)


def until(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 5
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.002)


def test_terminal_shows_one_line_that_is_erased() -> None:
    stream = Terminal()
    with Progress(stream=stream) as progress_line:
        progress_line("demo: Starting,\n 1/3")
        until(stream, "demo: Starting, 1/3 (0 s)")
        progress_line("demo: Starting, 2/3")
        until(stream, "2/3")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_long_text_is_cut_to_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    with Progress(stream=stream) as progress_line:
        progress_line("word " * 50)
        until(stream, "… (0 s)")
    assert max(len(line) for line in stream.getvalue().split("\r\x1b[K")) < 40


@pytest.mark.parametrize("terminal", [False, True])
def test_pipe_gets_a_line_per_change(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal() if terminal else io.StringIO()
    with Progress(stream=stream) as progress_line:
        for text in ("one", "one", "two"):
            progress_line(text)
            until(stream, text)
            time.sleep(0.02)
    assert stream.getvalue() == "one\ntwo\n"


def test_pipe_gets_at_most_a_line_per_second() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as progress_line:
        progress_line("0")
        until(stream, "0")
        started = time.monotonic()
        for number in range(50):
            progress_line(str(number))
            time.sleep(0.002)
    assert len(stream.getvalue().splitlines()) <= 1 + (time.monotonic() - started)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with Progress(stream=stream, quiet=True) as progress_line:
        progress_line("text")
        progress_line.say("ready")
        time.sleep(0.02)
    assert stream.getvalue() == capsys.readouterr().err == ""


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 10.0)
    stream = Terminal()
    with Progress(stream=stream) as progress_line:
        progress_line("text")
    assert stream.getvalue() == ""


def test_closed_terminal_does_not_stop_the_work() -> None:
    stream = Terminal()
    with Progress(stream=stream) as progress_line:
        progress_line("text")
        until(stream, "text")
        stream.close()
        time.sleep(0.02)
        progress_line("more")
