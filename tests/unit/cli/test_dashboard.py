"""`oars dashboard`: the URL and the command that prints the secret."""

from __future__ import annotations

import pytest

from oars.cli import dashboard
from oars.service import Dashboard, Location


@pytest.mark.parametrize(
    ("found", "command"),
    [
        (Dashboard("http://h", "/etc/oars/secrets/token", True, "team"),
         "oars exec demo --context far -n team -- cat /etc/oars/secrets/token"),
        (Dashboard("http://h", "/state/token", False, ""), "cat /state/token"),
        (Dashboard("http://h", "", True, "team"), ""),
    ],
)  # fmt: skip
def test_command_that_prints_the_secret(found: Dashboard, command: str) -> None:
    assert dashboard.secret_command("demo", found, Location("kubernetes", context="far")) == command


@pytest.mark.parametrize(
    ("command", "expected"), [("cat /s/token", "which this command prints: cat /s/token\n"), ("", "")]
)
def test_command_is_printed_on_stderr(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard._print(Dashboard("http://127.0.0.1:1", "", False, ""), command, browse=False)
    shown = capsys.readouterr()
    assert shown.out == "http://127.0.0.1:1\n"
    assert shown.err.endswith(expected) and bool(shown.err) is bool(command)
