"""`oars env`: the cached environments of engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import OarsError, UsageError
from oars.cli import show
from oars.cli.failures import say
from oars.cli.options import ClusterOptions, cluster_options, kept, quiet_option
from oars.cli.progress import Progress
from oars.cli.show import Column, output_option
from oars.envs.cache import EnvInfo
from oars.spec.resources import show_memory

if TYPE_CHECKING:
    from oars.client.local_clusters import Kept

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
    """List the environments that were built for engines."""
    found = kept().environments.list()
    if not found and output in ("table", "wide"):
        say("No cached environments. They are built when an engine that this Python lacks is first used.")
        return
    data = [_data(info) for info in found]
    show.emit(output, data, [info.key for info in found], lambda wide: show.table(found, COLUMNS, wide))


@env.command("build")
@cluster_options
@quiet_option
def build_environment(options: ClusterOptions, quiet: bool) -> None:
    """Build the environment that a cluster would need, so that the first one starts at once. Prints its Python."""
    with Progress(quiet=quiet) as progress:
        built = kept().prepare(options.manifest().spec, progress)
    click.echo(str(built.python))


@env.command("rm")
@click.argument("names", nargs=-1, metavar="[KEY|ENGINE]...")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@output_option
def remove_environments(names: tuple[str, ...], everything: bool, output: str) -> None:
    """Remove environments, by key or by engine; they are built again when they are needed."""
    if bool(names) == everything:
        raise UsageError("Name the environments to remove (`oars env ls` lists them), or say --all.")
    mine = kept()
    wanted = names or tuple(info.key for info in mine.environments.list())
    for name in wanted:
        _check_unused(mine, name)
    removed = [info for name in wanted for info in mine.environments.remove(name)]
    text = "\n".join(f"{info.key} is removed ({show_memory(info.size)})." for info in removed)
    show.emit(output, [_data(info) for info in removed], [info.key for info in removed], lambda _: text)


def _check_unused(mine: Kept, name: str) -> None:
    """A running cluster would lose the ground it stands on."""
    chosen = [e for e in mine.environments.list() if e.key.startswith(name) or e.engine == name]
    for cluster in mine.names():
        python = mine.store.cluster(cluster).read_intent().python
        if any(python.startswith(f"{info.path}/") for info in chosen):
            hint = f"Stop it first: `oars down {cluster}`."
            raise OarsError(f"The environment {name!r} is in use by the cluster {cluster!r}.", hint)


def _data(info: EnvInfo) -> dict[str, Any]:
    data = {key: getattr(info, key) for key in ("key", "engine", "version", "python", "size", "created", "last_used")}
    return {**data, "packages": list(info.packages), "path": str(info.path)}


def _age(moment: float) -> str:
    seconds = max(0, int(time.time() - moment))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
