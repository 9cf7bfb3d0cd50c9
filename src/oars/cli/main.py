"""`oars`: the table of commands. Nothing but click is imported until a command is chosen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

import oars
from oars.base.text import suggest
from oars.cli import failures
from oars.cli.table import COMMANDS, help_page


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

    def get_help(self, ctx: click.Context) -> str:
        return help_page()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=line) for name, line in found]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(oars.__version__, prog_name="oars", message="%(prog)s %(version)s")
def cli() -> None:
    """Dask, Ray and Mars clusters, wherever you are."""


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Errors become one clear sentence and an exit code, never a traceback."""
    sys.exit(failures.guard(lambda: _call(args)))


def _call(args: Sequence[str] | None) -> int:
    code = cli.main(args, prog_name="oars", standalone_mode=False)
    sys.stdout.flush()  # a reader that went away shows here, not while Python ends
    return code if isinstance(code, int) else 0


def _load(target: str) -> click.Command:
    import importlib

    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)  # noqa: TID251 (this table is a registry)
    return cast(click.Command, getattr(found, name))
