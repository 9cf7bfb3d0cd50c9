"""`oars shell` and `oars exec`: run programs that can connect to the cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from oars.base.errors import NotFound
from oars.cli import signals, terminal
from oars.cli.options import container_option, location_options, name_argument

if TYPE_CHECKING:
    from oars.service import Program, Service

local_option = click.option("--local", is_flag=True, help="Kubernetes: run it on this machine, not in the head's pod.")


class UserCommand(click.Command):
    """Options may precede or directly follow NAME; everything from the first other word on is the user's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, self._options_first(args))

    def _options_first(self, args: Sequence[str]) -> list[str]:
        """Move the options before NAME, where click expects them if it must not look for any after it."""
        takes_value = {o for p in self.params if not getattr(p, "is_flag", False) for o in p.opts}
        options: list[str] = []
        name: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--" and not (name and not rest[0].startswith("-")):
            word = rest.pop(0)
            if not word.startswith("-"):
                name.append(word)
                continue
            options.append(word)
            if word in takes_value and rest:
                options.append(rest.pop(0))
        return [*options, *name, *rest]


@click.command(cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@local_option
@location_options
def shell(name: str, command: tuple[str, ...], local: bool, service: Service) -> int:
    """Open Python with the engine's client connected as `client`.

    `oars shell NAME -- COMMAND` runs COMMAND instead. A program on stdin is run. On Kubernetes it runs in the head's
    pod, or with --local on this machine.
    """
    return _run(name, command, service, local=local)


@click.command("exec", cls=UserCommand)
@name_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@local_option
@click.option("--member", metavar="MEMBER", help="Kubernetes: run it in the pod of this member. Default: the head.")
@container_option
@location_options
def execute(name: str, command: tuple[str, ...], service: Service, **target: Any) -> int:
    """Run COMMAND with the environment that it needs to connect to the cluster.

    On Kubernetes it runs in the head's pod or that of --member, or with --local on this machine.

    \b
    oars exec demo -- python train.py
    oars exec demo --member demo-worker-5d9c-x2x -- nvidia-smi
    """
    return _run(name, command, service, **target)


def _run(name: str, command: tuple[str, ...], service: Service, **target: Any) -> int:
    code, program = signals.run(_execute(name, command[command[:1] == ("--",) :], service, target))
    if program is not None:
        _replace_process(program)
    return code


async def _execute(
    name: str, command: tuple[str, ...], service: Service, target: dict[str, Any]
) -> tuple[int, Program | None]:
    """The exit code; or a program that can replace this process."""
    tty = terminal.is_terminal()
    async with service.exec(name, command, interactive=os.isatty(0), tty=tty, **target) as execution:
        if execution.session is not None:
            return await terminal.connect(execution.session, raw=tty), None
        assert execution.program is not None
        if execution.program.needs_connection:
            return await _run_child(execution.program), None
        return 0, execution.program


async def _run_child(program: Program) -> int:
    process = await asyncio.create_subprocess_exec(_find(program), *program.argv[1:], env=program.env)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    return code if code >= 0 else 128 - code


def _find(program: Program) -> str:
    found = shutil.which(program.argv[0], path=program.env.get("PATH"))
    if found is None:
        hint = "Check the name; PATH starts with the directory of the cluster's Python."
        raise NotFound(f"There is no program {program.argv[0]!r}.", hint)
    return found


def _replace_process(program: Program) -> NoReturn:
    """Become the program, so that it owns terminal, signals and exit code."""
    path = _find(program)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, program.argv, dict(program.env))
