"""`oars service`: the unit is one that systemd accepts, and wrong options are refused before it is printed."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from oars.cli import errors
from oars.cli.main import call

ROLES = {
    "head": ["--engine", "dask", "--listen", "10.0.0.1:8700"],
    "worker": ["--head", "10.0.0.1:8700", "--token-file", "/etc/oars/join token", "--name", "one"],
}


def unit(capsys: pytest.CaptureFixture[str], role: str, *more: str) -> str:
    assert errors.guard(lambda: call(["service", role, *ROLES[role], *more])) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(role: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / f"oars-{role}.service"
    file.write_text(unit(capsys, role))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if file.name in line]) == (0, [])


def test_unit_runs_the_command_in_the_foreground(capsys: pytest.CaptureFixture[str]) -> None:
    found = configparser.RawConfigParser()
    found.read_string(unit(capsys, "worker", "--daemon"))
    command = found["Service"]["ExecStart"].partition(" ")[2]
    assert command == 'worker --head 10.0.0.1:8700 --token-file "/etc/oars/join token" --name one'
    assert found["Unit"]["Description"] == "Oars worker: one"


def test_what_systemd_would_expand_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = [
        line for line in unit(capsys, "head", "--set", r'head.env.A=50% of $B "c" \d').splitlines() if "Exec" in line
    ]
    assert line.endswith(r'--set "head.env.A=50%% of $$B \"c\" \\d"')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["head", "--engine", "dask"], "Missing option '--listen'"),
        (["head", "--listne", "10.0.0.1:8700"], "No such option '--listne'"),
        (["worker", *ROLES["worker"], "--cpu"], "Option '--cpu' requires an argument"),
        (["node"], "'node' is not one of 'head', 'worker'"),
    ],
)
def test_wrong_option_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(lambda: call(["service", *words])) == 2
    shown = capsys.readouterr()
    assert message in shown.err and not shown.out


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_a_role_is_about_the_service(role: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(lambda: call(["service", role, option])) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: oars service {role} [OPTIONS]\n") and "  -h, --help " in shown
