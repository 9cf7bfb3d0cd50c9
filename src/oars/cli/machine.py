"""The commands about this machine and this installation of Oars."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

import oars
from oars.base.errors import UsageError
from oars.cli.commands import COMPLETION_VARIABLE
from oars.cli.errors import say
from oars.cli.options import ClusterOptions, cluster_options, quiet_option
from oars.cli.output import Column, emit, output_option, show_span, table, write
from oars.cli.progress import Progress
from oars.spec.resources import show_memory

if TYPE_CHECKING:
    from oars.service.diagnostics import Finding, Setting
    from oars.service.environments import EnvInfo, EnvironmentService


LEVEL_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
FINDINGS: tuple[Column[Finding], ...] = (
    Column("", lambda f: f.level, paint=lambda text: click.style(text, fg=LEVEL_COLOURS[text.strip()])),
    Column("CHECK", lambda f: f.check),
    Column("FOUND", lambda f: f"{f.found} {f.hint}".strip()),
)
ENVIRONMENTS: tuple[Column[EnvInfo], ...] = (
    Column("KEY", lambda e: e.key),
    Column("ENGINE", lambda e: e.engine),
    Column("VERSION", lambda e: e.version),
    Column("PYTHON", lambda e: e.python),
    Column("SIZE", lambda e: show_memory(e.size)),
    Column("USED", lambda e: f"{show_span(time.time() - e.last_used)} ago"),
    Column("PACKAGES", lambda e: ", ".join(e.packages)),
    Column("PATH", lambda e: e.path, wide=True),
)
SETTINGS: tuple[Column[Setting], ...] = (
    Column("SETTING", lambda s: s.name),
    Column("VALUE", lambda s: s.value),
    Column("FROM", lambda s: s.source),
    Column("MEANING", lambda s: s.meaning),
)


@click.command()
@output_option
def doctor(output: str) -> int:
    """Check this machine: Python, engines, directories, memory, ports, unhealthy clusters and leftovers.

    Each line is ok, warn or fail, with a hint. -o name lists the checks that are not ok. The exit code is 1 if a check
    fails.
    """
    from oars.service.diagnostics import examine

    found = examine(os.environ)
    names = [finding.check for finding in found if finding.level != "ok"]
    emit(output, [asdict(finding) for finding in found], names, lambda _: table(found, FINDINGS, wide=True))
    return 1 if any(finding.level == "fail" for finding in found) else 0


@click.group()
def env() -> None:
    """List, build and remove cached environments."""


@env.command("ls")
@output_option
def list_environments(output: str) -> None:
    """List the cached environments."""
    found = _environments().list()
    if not found and output in ("table", "wide"):
        say("No cached environments. One is built when a cluster needs an engine that this Python lacks.")
        return
    data = [_environment_data(info) for info in found]
    emit(output, data, [info.key for info in found], lambda wide: table(found, ENVIRONMENTS, wide))


@env.command("build")
@cluster_options
@quiet_option
def build_environment(options: ClusterOptions, quiet: bool) -> None:
    """Build the environment that a cluster needs. Prints the path of its Python.

    It takes the options of `oars up`; those that do not affect the environment have no effect.
    """
    with Progress(quiet=quiet) as progress:
        python = _environments().build(options.manifest.spec, progress)
    write(python)


@env.command("rm")
@click.argument("names", nargs=-1, metavar="[KEY|ENGINE]...")
@click.option("--all", "everything", is_flag=True, help="Remove all.")
@output_option
def remove_environments(names: tuple[str, ...], everything: bool, output: str) -> None:
    """Remove environments, by key or by engine. They are built again when they are needed."""
    if bool(names) == everything:
        raise UsageError("Name the environments to remove, or use --all.", "Run `oars env ls` to list them.")
    removed = _environments().remove(names)
    text = "\n".join(f"{info.key} is removed ({show_memory(info.size)})." for info in removed)
    emit(output, [_environment_data(info) for info in removed], [info.key for info in removed], lambda _: text)


def _environments() -> EnvironmentService:
    from oars.service.environments import EnvironmentService

    return EnvironmentService(os.environ)


def _environment_data(info: EnvInfo) -> dict[str, Any]:
    return {**asdict(info), "path": str(info.path)}


@click.group()
def config() -> None:
    """Show the settings in effect."""


@config.command("show")
@output_option
def show_config(output: str) -> None:
    """Show every setting. Lists its value and the environment variable that sets it."""
    from oars.service.diagnostics import settings

    found = settings(os.environ)
    names = [setting.name for setting in found]
    emit(output, [asdict(each) for each in found], names, lambda wide: table(found, SETTINGS, wide))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for commands, options and names.

    \b
    bash:  eval "$(oars completion bash)"                             in ~/.bashrc
    zsh:   eval "$(oars completion zsh)"                              in ~/.zshrc
    fish:  oars completion fish > ~/.config/fish/completions/oars.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    complete = found(click.get_current_context().find_root().command, {}, "oars", COMPLETION_VARIABLE)
    write(complete.source_template % complete.source_vars())


@click.command()
@output_option
def version(output: str) -> None:
    """Show the versions of Oars, Python and the system."""
    data = {"oars": oars.__version__, "python": platform.python_version(), "system": platform.platform()}
    text = "\n".join(f"{name:<8}{value}" for name, value in data.items())
    emit(output, data, [oars.__version__], lambda _: text)
