"""Exceptions become messages and exit codes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import click
import pytest

from oars.base import errors
from oars.cli import errors as cli_errors


def raising(error: BaseException) -> int:
    def work() -> int:
        raise error

    return cli_errors.guard(work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OarsError("x"), 1),
        (errors.NameInUse("x"), 1),
        (errors.SpecError("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.TimedOut("x"), 4),
        (errors.Denied("x"), 5),
        (errors.Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.exceptions.Exit(7), 7),
        (click.UsageError("x"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 5),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 1),
        (ValueError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_an_error_shows_message_hint_and_details(capsys: pytest.CaptureFixture[str]) -> None:
    raising(errors.TimedOut("It took too long.", "Wait longer.", ("line 1", "line 2")))
    assert capsys.readouterr().err == "error: It took too long.\nWait longer.\n  line 1\n  line 2\n"


def test_full_disk_is_not_reported_as_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    raising(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    err = capsys.readouterr().err
    assert err.startswith("error: No space left on device: /x/y.\n")
    assert "bug" not in err


def test_unexpected_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OARS_DEBUG", raising=False)
    raising(ValueError("two\nlines"))
    assert capsys.readouterr().err.splitlines() == [
        "error: ValueError: two lines",
        "This is a bug in Oars; please report it. Set OARS_DEBUG=1 to see the traceback.",
    ]
    monkeypatch.setenv("OARS_DEBUG", "1")
    raising(ValueError("x"))
    assert "Traceback" in capsys.readouterr().err


def test_closed_pipe_is_silent() -> None:
    """As in `oars ls | head -1`, with more output than the pipe buffers."""
    code = (
        "import sys\nfrom oars.cli import errors, output\n"
        "sys.exit(errors.guard(lambda: [output.write('x' * 1000) for _ in range(1000)] and 0))"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    _, said = process.communicate(timeout=60)
    assert said == b""
    assert process.returncode == cli_errors.PIPE_CLOSED


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals(environ: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli_errors.has_colour(Terminal()) is wanted
    assert cli_errors.has_colour(object()) is False
