"""`oars`: the table of commands. Nothing but click is imported until a command is chosen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

import oars
from oars.base.words import suggest
from oars.cli import fail

# name → where the command is, and the line that `oars --help` shows for it
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("oars.cli.run:run", "Start a cluster, run a script on it, stop it."),
    "up": ("oars.cli.up:up", "Start a cluster that stays."),
    "ls": ("oars.cli.ls:ls", "List clusters."),
    "status": ("oars.cli.status:status", "Show one cluster and its members."),
    "scale": ("oars.cli.scale:scale", "Change the number of workers."),
    "logs": ("oars.cli.logs:logs", "Show or follow the logs of members."),
    "shell": ("oars.cli.shell:shell", "Open Python with the client connected."),
    "exec": ("oars.cli.shell:execute", "Run a command that finds the cluster."),
    "why": ("oars.cli.why:why", "Say what is wrong and what to do."),
    "down": ("oars.cli.down:down", "Stop clusters and remove all that is theirs."),
    "doctor": ("oars.cli.doctor:doctor", "Check this machine."),
    "env": ("oars.cli.env:env", "List, build and remove cached environments."),
    "config": ("oars.cli.config:config", "Show the settings in effect."),
    "completion": ("oars.cli.completion:completion", "Print a completion script for your shell."),
    "version": ("oars.cli.version:version", "Show the version."),
}

EXAMPLES = """\b
Examples:
  oars run train.py --engine ray --workers 4
  oars up demo --engine dask --workers 3
  oars status demo
  oars down demo"""


class LazyGroup(click.Group):
    """Knows its commands by name and one line each; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"No such command {name!r}.{suggest(name, COMMANDS)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=line) for name, line in found]


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(oars.__version__, prog_name="oars", message="%(prog)s %(version)s")
def cli() -> None:
    """Dask, Ray and Mars clusters, wherever you are."""


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Errors become one clear sentence and an exit code, never a traceback."""
    sys.exit(fail.guard(lambda: _call(args)))


def _call(args: Sequence[str] | None) -> int:
    code = cli.main(args, prog_name="oars", standalone_mode=False)
    sys.stdout.flush()  # a reader that went away shows here, not while Python ends
    return code if isinstance(code, int) else 0


def _load(target: str) -> click.Command:
    import importlib

    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)  # noqa: TID251 (this table is a registry)
    return cast(click.Command, getattr(found, name))
