"""The front door: the table of commands, what it imports, what it says to a wrong word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oars.cli import failures
from oars.cli.main import _call, cli
from oars.cli.options import kept
from oars.cli.table import COMMANDS
from tests.unit.cli.test_look import intent

OPERATOR = ["install", "manifests", "run", "status", "uninstall"]
EVERY_COMMAND = [
    *([name] for name in COMMANDS),
    *(["operator", name] for name in OPERATOR),
    ["env", "ls"],
    ["env", "rm"],
    ["config", "show"],
]
HEAVY = {"pydantic", "yaml", "rich", "asyncio", "cryptography", "oars.client", "oars.engines", "oars.spec"}
ENGINES = {"dask", "distributed", "ray", "xorbits", "mars"}


def oars(*args: str) -> int:
    return failures.guard(lambda: _call(args))


def modules(*args: str, **environ: str) -> set[str]:
    """What is loaded after a call of the command line."""
    code = (
        "import json, sys, oars.cli.main as m\n"
        "try: m.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "json.dump(list(sys.modules), sys.__stderr__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, env={**os.environ, **environ}
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("--help") == 0
    shown = capsys.readouterr()
    assert all(f"  {name} " in shown.out for name in COMMANDS)
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["operator", "run", "--lease-duration", "1s"], "--lease-duration: at least 3 s"),
        (["operator", "run", "--lease-duration", "soon"], "--lease-duration: "),
        (["ls", "-A", "-n", "team"], "--all-namespaces and --namespace contradict each other"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"Usage: oars {' '.join(command)}")


def test_help_imports_nothing_heavy() -> None:
    loaded = modules("--help")
    assert "oars.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY | ENGINES)


def test_clusters_of_this_machine_need_no_kubernetes_library(tmp_path: Path) -> None:
    """Even where there is a kubeconfig: it is not read for a cluster that is here."""
    kept().store.create(intent("demo", boot="another"), {})
    environ = {"KUBECONFIG": str(tmp_path / "config")}
    for command in (["status", "demo"], ["why", "demo"], ["ls", "--place", "local"]):
        assert modules(*command, **environ).isdisjoint(ENGINES | {"aiohttp", "pydantic"})


def test_completion_of_names_needs_no_spec() -> None:
    loaded = modules(_OARS_COMPLETE="bash_complete", COMP_WORDS="oars down ", COMP_CWORD="2")
    assert "oars.cli.down" in loaded
    assert loaded.isdisjoint(ENGINES | {"pydantic", "yaml", "rich", "cryptography", "oars.client"})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["stauts", "demo"], "No such command 'stauts'. Did you mean 'status'?"),
        (["qqqqq"], "No such command 'qqqqq'."),
        (["up", "--engnie", "dask"], "No such option '--engnie'. Did you mean '--engine'?"),
        (["up", "--workers", "many"], "Invalid value for '--workers': 'many' is not a valid integer."),
        (["ls", "-o", "xml"], "Invalid value for '-o' / '--output': 'xml' is not one of"),
        (["status"], "Missing argument 'NAME'."),
        (["exec", "demo"], "Missing argument 'COMMAND...'."),
        (["logs", "demo", "--tail", "-1"], "Invalid value for '--tail'"),
    ],
)
def test_wrong_words(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*args) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {said}"[:60])
    assert "Try `oars" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["up"], "No engine is named."),
        (["up", "a", "--name", "b", "--engine", "toy"], "Two names are given: 'a' and 'b'."),
        (["down"], "Name the clusters to stop, or say --all."),
        (["down", "a", "--all"], "Either names or --all."),
        (["ls", "--place", "moon"], "There is no place 'moon'."),
        (["ls", "--place", "local", "-n", "x"], "--namespace is about Kubernetes, and --place says local."),
        (["up", "--engine", "toy", "--mode", "direct", "--place", "local"], "--mode is about Kubernetes"),
        (["cp", "a", "b"], "One end must be NAME:PATH of a cluster"),
        (["cp", "demo:/a", "demo:/b"], "One end must be NAME:PATH of a cluster"),
        (["diff"], "No engine is named."),
        (["diff", "--engine", "toy"], "No cluster is named."),
        (["down", "a", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        (["up", "--engine", "toy", "--timeout", "soon"], "timeout: 'soon' is not a duration"),
        (["env", "rm"], "Name the environments to remove"),
        (["env", "rm", "x", "--all"], "Name the environments to remove"),
    ],
)
def test_wrong_use(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*args) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {said}")
    assert shown.out == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import oars as package

    assert oars("--version") == 0
    assert capsys.readouterr().out == f"oars {package.__version__}\n"
    assert oars("version", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["oars"] == package.__version__
    assert oars("version", "-o", "name") == 0
    assert capsys.readouterr().out == f"{package.__version__}\n"


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_the_reference_knows_every_command_and_option(command: list[str]) -> None:
    text = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()
    assert f"`oars {' '.join(command)}" in text
    found = cli.get_command(click.Context(cli), command[0])
    for name in command[1:]:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None
    options = [name for param in found.params if isinstance(param, click.Option) for name in param.opts]
    assert [name for name in options if name not in text] == []
