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
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.005)


def until(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 5
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.002)


def test_a_terminal_gets_one_line_that_goes_away() -> None:
    stream = Terminal()
    with Progress(stream=stream) as told:
        told("demo: Starting,\n 1/3")
        until(stream, "demo: Starting, 1/3 (0 s)")
        told("demo: Starting, 2/3")
        until(stream, "2/3")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_long_text_is_cut_to_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    with Progress(stream=stream) as told:
        told("word " * 50)
        until(stream, "… (0 s)")
    assert max(len(line) for line in stream.getvalue().split("\r\x1b[K")) < 40


@pytest.mark.parametrize("terminal", [False, True])
def test_elsewhere_a_line_per_change(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal() if terminal else io.StringIO()
    with Progress(stream=stream) as told:
        for text in ("one", "one", "two"):
            told(text)
            until(stream, text)
            time.sleep(0.02)
    assert stream.getvalue() == "one\ntwo\n"


def test_elsewhere_at_most_a_line_a_second() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as told:
        told("0")
        until(stream, "0")
        started = time.monotonic()
        for number in range(50):
            told(str(number))
            time.sleep(0.002)
    assert len(stream.getvalue().splitlines()) <= 1 + (time.monotonic() - started)


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with Progress(stream=stream, quiet=True) as told:
        told("text")
        told.say("ready")
        time.sleep(0.02)
    assert stream.getvalue() == capsys.readouterr().err == ""


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 10.0)
    stream = Terminal()
    with Progress(stream=stream) as told:
        told("text")
    assert stream.getvalue() == ""


def test_a_terminal_that_went_away_stops_nothing() -> None:
    stream = Terminal()
    with Progress(stream=stream) as told:
        told("text")
        until(stream, "text")
        stream.close()
        time.sleep(0.02)
        told("more")
