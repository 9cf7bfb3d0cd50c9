"""The `oars` command group. Imports only click until a command is chosen."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

import oars
from oars.base.text import suggest
from oars.cli import errors
from oars.cli.commands import COMMANDS, MEANT, help_page


class LazyGroup(click.Group):
    """Knows the names and help lines of its commands; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        meant = f" Did you mean {MEANT[name]!r}?" if name in MEANT else suggest(name, COMMANDS)
        raise click.UsageError(f"No such command {name!r}.{meant}", ctx)

    def get_help(self, ctx: click.Context) -> str:
        return help_page()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=line) for name, line in found]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(oars.__version__, prog_name="oars", message="%(prog)s %(version)s")
def cli() -> None:
    """Run Dask, Ray and Mars clusters."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; errors become a message and an exit code."""
    sys.exit(errors.guard(lambda: call(args)))


def call(args: Sequence[str] | None) -> int:
    if not os.environ.get("OARS_DEBUG"):  # progress and errors say it already, and `-q` must keep quiet
        logging.getLogger("oars").addHandler(logging.NullHandler())
    code: int | None = cli.main(args, prog_name="oars", standalone_mode=False)
    sys.stdout.flush()  # raises BrokenPipeError here rather than at exit
    return code or 0


def _load(target: str) -> click.Command:
    import importlib

    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)  # noqa: TID251 (COMMANDS is a registry)
    return cast(click.Command, getattr(found, name))
