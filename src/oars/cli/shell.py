"""`oars shell` and `oars exec`: programs in the cluster's environment that find the cluster."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from oars.base.errors import NotFound
from oars.cli import running
from oars.cli.options import kept, name_argument

if TYPE_CHECKING:
    from oars.client.home import Driver

STARTUP = Path(__file__).with_name("startup.py")
_READ_STDIN = "import sys; exec(compile(open(sys.argv.pop(1)).read(), 'oars shell', 'exec'))"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, command: tuple[str, ...]) -> None:
    """Open Python in the cluster's environment with the engine's client connected as `client`.

    `oars shell NAME -- COMMAND` runs that instead. What is piped in is run as a program.
    """
    driver = _driver(name)
    if chosen := _command(command):
        _become(chosen, driver.env)
    _python(driver)


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in the cluster's environment, with what it needs to find the cluster.

    \b
    oars exec demo -- python train.py
    oars exec demo -- env
    """
    _become(_command(command), _driver(name).env)


def _driver(name: str) -> Driver:
    mine = kept()
    running.run(mine.report(name))  # a dead keeper is replaced before anyone relies on the cluster
    return mine.driver(name)


def _command(command: tuple[str, ...]) -> tuple[str, ...]:
    return command[1:] if command[:1] == ("--",) else command


def _python(driver: Driver) -> NoReturn:
    """Interactive with completion and history, which Python only gives to a start without a script."""
    env = {**driver.env, "OARS_SHELL_STARTUP": driver.env.get("PYTHONSTARTUP", ""), "PYTHONSTARTUP": str(STARTUP)}
    if os.isatty(0):
        _become((driver.python, "-q"), env)
    _become((driver.python, "-c", _READ_STDIN, str(STARTUP)), env)


def _become(command: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    """Replace ourselves: the terminal, signals and exit code are the program's own."""
    program = shutil.which(command[0], path=env.get("PATH"))
    if program is None:
        raise NotFound(f"There is no program {command[0]!r}.", "Check its name; PATH starts with the cluster's Python.")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, command, dict(env))
