"""The command group: its commands, what it imports, and errors about arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oars.cli import errors
from oars.cli.commands import COMMANDS, HELP_WORDS, MEANT
from oars.cli.main import call, cli
from tests.unit.local_clusters import EARLIER, record, store

OPERATOR = ["install", "manifests", "run", "status", "uninstall"]
EVERY_COMMAND = [
    *([name] for name in COMMANDS),
    *(["operator", name] for name in OPERATOR),
    ["env", "ls"],
    ["env", "rm"],
    ["config", "show"],
]
HEAVY = {"pydantic", "yaml", "rich", "asyncio", "cryptography", "oars.client", "oars.engines", "oars.spec"}
PROGRAM = Path(sys.executable).with_name("oars")
ENGINES = {"dask", "distributed", "ray", "xorbits", "mars"}


def oars(*args: str) -> int:
    return errors.guard(lambda: call(args))


def modules(*args: str, **environ: str) -> set[str]:
    """The modules that a command line imports."""
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


def all_commands(group: click.Group) -> Iterator[list[str]]:
    """The words of every command, also of those in groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield [name]
        if isinstance(command, click.Group):
            yield from ([name, *words] for words in all_commands(command))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("--help") == 0
    shown = capsys.readouterr()
    assert all(f"  {name} " in shown.out for name in COMMANDS)
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["operator", "run", "--lease-duration", "1s"], "--lease-duration: at least 3 s"),
        (["operator", "run", "--lease-duration", "soon"], "--lease-duration: "),
        (["ls", "-A", "-n", "team"], "--all-namespaces and --namespace contradict each other"),
    ],
)
def test_contradicting_options_are_refused(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*words) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"Usage: oars {' '.join(command)}")


@pytest.mark.parametrize("command", list(all_commands(cli)), ids=" ".join)
def test_help_shows_no_markup_and_no_empty_default(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*command, "--help") == 0
    text = capsys.readouterr().out
    assert "\\b" not in text and 'default: ""' not in text


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("up", ["A cluster.yaml;", "The name of the cluster.", "spec: head.cpu=2", "who reconciles the cluster"]),
        ("submit", ["A job.yaml,", "The name of the job.", "spec: cluster.head.cpu=2", "who runs the job"]),
    ],
)
def test_help_tells_clusters_from_jobs(command: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(command, "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [each for each in expected if each not in text] == []


def test_help_of_shell_says_what_it_offers_and_where_the_cluster_is_looked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """tests/live/test_cli.py uses both variables."""
    assert oars("shell", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "client the engine's own" in text and "cluster the oars.Cluster" in text
    assert "looked for on this machine, then in the namespace of the current Kubernetes context" in text


@pytest.mark.parametrize("group", [[], ["operator"], ["env"], ["config"]])
def test_group_without_a_command_prints_its_help(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*group) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(" ".join(["Usage: oars", *group])) and shown.err == ""
    assert [] in HELP_WORDS  # the console script prints it without importing click


@pytest.mark.parametrize("words", [["help"], ["help", "up"], ["help", "jobs", "ls"]], ids=" ".join)
def test_help_is_a_word_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*words) == 0
    assert capsys.readouterr().out.startswith(" ".join(["Usage: oars", *words[1:]]))


def test_negative_number_of_workers_is_not_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert oars("scale", "demo", "-1") == 2
    assert "error: -1 is not a valid number of workers." in capsys.readouterr().err


def test_every_suggested_command_exists() -> None:
    assert set(MEANT.values()) <= set(COMMANDS) and not set(MEANT) & set(COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    loaded = modules("--help")
    assert "oars.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY | ENGINES)


def test_local_clusters_need_no_kubernetes_library(tmp_path: Path) -> None:
    """Even with a kubeconfig, which is not read for a local cluster."""
    store().create(record("demo", host=EARLIER), {})
    environ = {"KUBECONFIG": str(tmp_path / "config")}
    for command in (["status", "demo"], ["why", "demo"], ["ls", "--place", "local"]):
        assert modules(*command, **environ).isdisjoint(ENGINES | {"aiohttp", "pydantic"})


def test_completion_imports_nothing_heavy() -> None:
    loaded = modules(_OARS_COMPLETE="bash_complete", COMP_WORDS="oars down ", COMP_CWORD="2")
    assert "oars.cli.clusters" in loaded
    assert loaded.isdisjoint(ENGINES | {"pydantic", "yaml", "rich", "cryptography", "oars.client"})


@pytest.mark.parametrize(
    ("shell", "number", "expected"),
    [("bash", "1", "plain,status\n"), ("zsh", "1", "plain\nstatus\n"), ("fish", "stat", "plain,status\t")],
)
def test_program_completes_for_every_shell(shell: str, number: str, expected: str) -> None:
    """Their scripts call it without arguments."""
    environ = {"_OARS_COMPLETE": f"{shell}_complete", "COMP_WORDS": "oars stat", "COMP_CWORD": number}
    done = subprocess.run(
        [PROGRAM], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(expected)


def test_bash_completes() -> None:
    lines = [
        'eval "$(oars completion bash)"',
        "COMP_WORDS=(oars up --engine d) COMP_CWORD=3",
        "_oars_completion oars",
        'echo "${COMPREPLY[*]}"',
    ]
    environ = {**os.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"}
    argv = ["bash", "--norc", "-c", "\n".join(lines)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "dask\n", done.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["stauts", "demo"], "No such command 'stauts'. Did you mean 'status'?"),
        (["qqqqq"], "No such command 'qqqqq'."),
        (["ps"], "No such command 'ps'. Did you mean 'ls'?"),
        (["get", "demo"], "No such command 'get'. Did you mean 'ls'?"),
        (["delete", "demo"], "No such command 'delete'. Did you mean 'down'?"),
        (["stop", "demo"], "No such command 'stop'. Did you mean 'down'?"),
        (["rm", "demo"], "No such command 'rm'. Did you mean 'down'?"),
        (["job", "ls"], "No such command 'job'. Did you mean 'jobs'?"),
        (["up", "--engnie", "dask"], "No such option '--engnie'. Did you mean '--engine'?"),
        (["up", "--workers", "many"], "Invalid value for '--workers': 'many' is not a valid integer."),
        (["up", "--engine", "toy", "--workers", "-1"], "Invalid value for '--workers': -1 is not in the range x>=0."),
        (["ls", "-o", "xml"], "Invalid value for '-o' / '--output': 'xml' is not one of"),
        (["status"], "Missing argument 'NAME'."),
        (["completion"], "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"),
        (["exec", "demo"], "Missing argument 'COMMAND...'."),
        (["logs", "demo", "--tail", "-1"], "Invalid value for '--tail'"),
    ],
)
def test_invalid_arguments(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*args) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {expected}")
    assert "Run `oars" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["up"], "No engine is given."),
        (["up", "a", "--name", "b", "--engine", "toy"], "Two names are given: 'a' and 'b'."),
        (["down"], "No cluster is named."),
        (["down", "a", "--all"], "Names and --all contradict each other."),
        (["ls", "--place", "moon"], "There is no place 'moon'."),
        (["ls", "--place", "local", "-n", "x"], "--namespace applies to Kubernetes only, but --place is 'local'."),
        (["up", "--engine", "toy", "--mode", "direct", "--place", "local"], "--mode applies to Kubernetes only"),
        (["cp", "a", "b"], "One path must be NAME:PATH of a cluster"),
        (["cp", "demo:/a", "demo:/b"], "One path must be NAME:PATH of a cluster"),
        (["diff"], "No engine is given."),
        (["diff", "--engine", "toy"], "No cluster is named."),
        (["down", "a", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        (["up", "--engine", "toy", "--timeout", "soon"], "--timeout: 'soon' is not a duration"),
        (["env", "rm"], "Name the environments to remove"),
        (["env", "rm", "x", "--all"], "Name the environments to remove"),
    ],
)
def test_invalid_use(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert oars(*args) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {expected}")
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
def test_reference_documents_every_command_and_option(command: list[str]) -> None:
    text = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()
    assert f"`oars {' '.join(command)}" in text
    found = cli.get_command(click.Context(cli), command[0])
    for name in command[1:]:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None
    options = [name for param in found.params if isinstance(param, click.Option) for name in param.opts]
    assert [name for name in options if name not in text] == []
