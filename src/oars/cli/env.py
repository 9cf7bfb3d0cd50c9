"""`oars env`: list, build and remove the cached environments of engines."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from oars.base.errors import UsageError
from oars.cli.errors import say
from oars.cli.options import ClusterOptions, cluster_options, quiet_option
from oars.cli.output import Column, emit, output_option, table, write
from oars.cli.progress import Progress
from oars.service.environments import EnvInfo, EnvironmentService
from oars.spec.resources import show_memory

COLUMNS = (
    Column[EnvInfo]("KEY", lambda e: e.key),
    Column[EnvInfo]("ENGINE", lambda e: e.engine),
    Column[EnvInfo]("VERSION", lambda e: e.version),
    Column[EnvInfo]("PYTHON", lambda e: e.python),
    Column[EnvInfo]("SIZE", lambda e: show_memory(e.size)),
    Column[EnvInfo]("USED", lambda e: _age(e.last_used)),
    Column[EnvInfo]("PACKAGES", lambda e: ", ".join(e.packages)),
    Column[EnvInfo]("PATH", lambda e: e.path, wide=True),
)


@click.group()
def env() -> None:
    """List, build and remove cached environments."""


@env.command("ls")
@output_option
def list_environments(output: str) -> None:
    """List the cached environments."""
    found = EnvironmentService(os.environ).list()
    if not found and output in ("table", "wide"):
        say("No cached environments. One is built when a cluster needs an engine that this Python lacks.")
        return
    data = [_data(info) for info in found]
    emit(output, data, [info.key for info in found], lambda wide: table(found, COLUMNS, wide))


@env.command("build")
@cluster_options
@quiet_option
def build_environment(options: ClusterOptions, quiet: bool) -> None:
    """Build the environment that a cluster would need, before the first one starts. Prints the path of its Python."""
    with Progress(quiet=quiet) as progress:
        python = EnvironmentService(os.environ).build(options.manifest.spec, progress)
    write(python)


@env.command("rm")
@click.argument("names", nargs=-1, metavar="[KEY|ENGINE]...")
@click.option("--all", "everything", is_flag=True, help="Remove all.")
@output_option
def remove_environments(names: tuple[str, ...], everything: bool, output: str) -> None:
    """Remove environments, by key or by engine. They are built again when they are needed."""
    if bool(names) == everything:
        raise UsageError("Name the environments to remove, or use --all.", "Run `oars env ls` to list them.")
    removed = EnvironmentService(os.environ).remove(names)
    text = "\n".join(f"{info.key} is removed ({show_memory(info.size)})." for info in removed)
    emit(output, [_data(info) for info in removed], [info.key for info in removed], lambda _: text)


def _data(info: EnvInfo) -> dict[str, Any]:
    data = {key: getattr(info, key) for key in ("key", "engine", "version", "python", "size", "created", "last_used")}
    return {**data, "packages": list(info.packages), "path": str(info.path)}


def _age(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
