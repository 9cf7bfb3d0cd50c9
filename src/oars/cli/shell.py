"""`oars shell` and `oars exec`: programs in the cluster's environment that find the cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from oars.base.errors import NotFound, UsageError
from oars.cli import signals
from oars.cli.options import container_option, name_argument, where_options
from oars.model import HEAD

if TYPE_CHECKING:
    from oars.client.backend import Backend, Driver
    from oars.client.backends import Where

STARTUP = Path(__file__).with_name("startup.py")
_READ_STDIN = "import sys; exec(compile(open(sys.argv.pop(1)).read(), 'oars shell', 'exec'))"

local_option = click.option("--local", is_flag=True, help="Kubernetes: run it here, not in the head pod.")


class UserCommand(click.Command):
    """Our options stand before or right after NAME; from the first other word on, all is the user's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, self._sorted(args))

    def _sorted(self, args: Sequence[str]) -> list[str]:
        """Our options first, as click wants them where it shall not look for any behind NAME."""
        takes_value = {o for p in self.params if isinstance(p, click.Option) and not p.is_flag for o in p.opts}
        ours: list[str] = []
        name: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--" and not (name and not rest[0].startswith("-")):
            word = rest.pop(0)
            if not word.startswith("-"):
                name.append(word)
                continue
            ours.append(word)
            if word in takes_value and rest:
                ours.append(rest.pop(0))
        return [*ours, *name, *rest]


@click.command(cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@local_option
@where_options
def shell(name: str, command: tuple[str, ...], local: bool, where: Where) -> int:
    """Open Python in the cluster's environment with the engine's client connected as `client`.

    `oars shell NAME -- COMMAND` runs that instead. What is piped in is run as a program. On Kubernetes it runs in the
    head pod, or with --local on this machine.
    """
    return _run(name, _command(command), where, Spot(local))


@click.command("exec", cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@local_option
@click.option("--member", metavar="MEMBER", help="Kubernetes: run it in the pod of this member, not of the head.")
@container_option
@where_options
def execute(name: str, command: tuple[str, ...], where: Where, **spot: Any) -> int:
    """Run COMMAND in the cluster's environment, with what it needs to find the cluster.

    On Kubernetes it runs in the head pod or that of --member, or with --local on this machine.

    \b
    oars exec demo -- python train.py
    oars exec demo --member demo-worker-5d9c-x2x -- nvidia-smi
    """
    return _run(name, _command(command), where, Spot(**spot))


@dataclass(frozen=True)
class Program:
    """To run on this machine."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Spot:
    """Where a program runs; without a word, in the head pod or, for a cluster of this machine, here."""

    local: bool
    member: str | None = None
    container: str | None = None

    @property
    def in_pod(self) -> str:
        """The option that speaks of a pod, if one does."""
        return "--member" if self.member else "--container" if self.container else ""


def _run(name: str, command: tuple[str, ...], where: Where, spot: Spot) -> int:
    if spot.local and spot.in_pod:
        raise UsageError(f"--local means this machine, and {spot.in_pod} a pod.", "Leave one of them out.")
    done = signals.run(_find_and_run(name, command, where, spot))
    if isinstance(done, Program):
        _become(done)
    return done


async def _find_and_run(name: str, command: tuple[str, ...], where: Where, spot: Spot) -> int | Program:
    """The exit code; or, for a cluster of this machine, the program, which then replaces us."""
    from oars.cli import lookup

    async with lookup.home_of(name, where) as home:
        if spot.in_pod:
            lookup.only_kubernetes(home, name, f"Its members have no pods: leave out {spot.in_pod}.")
        kube = lookup.in_kubernetes(home)
        if kube is None:
            await home.report(name)  # a dead keeper is replaced before anyone relies on the cluster
            return _program(home.driver(name), command)
        if spot.local:
            return await _beside(home, name, command)
        from oars.cli import in_cluster

        return await in_cluster.run(kube, name, command, spot.member or HEAD, spot.container)


async def _beside(home: Backend, name: str, command: tuple[str, ...]) -> int:
    """Here, with the way to the cluster kept open by us."""
    await home.open(name)
    program = _program(home.driver(name), command)
    process = await asyncio.create_subprocess_exec(_path(program), *program.argv[1:], env=program.env)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    return code if code >= 0 else 128 - code


def _command(command: tuple[str, ...]) -> tuple[str, ...]:
    return command[1:] if command[:1] == ("--",) else command


def _program(driver: Driver, command: tuple[str, ...]) -> Program:
    """Without a command: Python, interactive with completion and history, which it only gives to a start without a
    script."""
    if command:
        return Program(command, driver.env)
    env = {**driver.env, "OARS_SHELL_STARTUP": driver.env.get("PYTHONSTARTUP", ""), "PYTHONSTARTUP": str(STARTUP)}
    if os.isatty(0):
        return Program((driver.python, "-q"), env)
    return Program((driver.python, "-c", _READ_STDIN, str(STARTUP)), env)


def _path(program: Program) -> str:
    found = shutil.which(program.argv[0], path=program.env.get("PATH"))
    if found is None:
        hint = "Check its name; PATH starts with the cluster's Python."
        raise NotFound(f"There is no program {program.argv[0]!r}.", hint)
    return found


def _become(program: Program) -> NoReturn:
    """Replace ourselves: the terminal, signals and exit code are the program's own."""
    path = _path(program)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, program.argv, dict(program.env))
