"""The options of every command that makes a cluster, and the cluster they describe."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import UsageError
from oars.cli import names

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster
    from oars.client.kept import Kept
    from oars.spec.load import Manifest

quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress, no hints.")
name_argument = click.argument("name", metavar="NAME", shell_complete=names.clusters)


def timeout_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--timeout", default=default, show_default=True, metavar="TIME", help="How long to wait, such as 30s or 5m."
    )


_OPTIONS = (
    click.option("-f", "--file", metavar="FILE", type=click.Path(), help="A cluster.yaml; '-' reads stdin."),
    click.option("--engine", metavar="ENGINE", shell_complete=names.engines, help="dask, ray, mars or a plug-in."),
    click.option("--workers", type=int, metavar="N", help="How many workers."),
    click.option("--cpu", metavar="CPU", help="Processors of each worker, such as 2 or 500m."),
    click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 4Gi."),
    click.option("--place", metavar="PLACE", help="Where it runs: local."),
    click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="A field of spec, such as head.cpu=2."),
    click.option("--package", "packages", multiple=True, metavar="PACKAGE", help="Install it beside the engine."),
    click.option("--name", "option_name", metavar="NAME", help="The cluster's name."),
    timeout_option("2m"),
)


@dataclass(frozen=True)
class ClusterOptions:
    """What the user said about the cluster to make."""

    file: str | None
    engine: str | None
    workers: int | None
    cpu: str | None
    memory: str | None
    place: str | None
    sets: tuple[str, ...]
    packages: tuple[str, ...]
    option_name: str | None
    timeout: str

    def manifest(self) -> Manifest:
        """The checked description, from the file (if any) and the options over it."""
        from oars.spec import load

        if self.file is None and self.engine is None and not any(each.startswith("engine=") for each in self.sets):
            raise UsageError("No engine is named.", "Say --engine dask (or ray, mars), or -f FILE.")
        overrides = {
            "engine": self.engine, "workers": self.workers, "cpu": self.cpu, "memory": self.memory,
            "place": self.place, "packages": list(self.packages) or None,
        }  # fmt: skip
        if self.file == "-":
            return load.load_text(sys.stdin.read(), "stdin", self.sets, overrides)
        if self.file is not None:
            return load.load_file(Path(self.file), self.sets, overrides)
        return load.build({}, self.sets, overrides)

    def cluster(self, name: str | None = None, **arguments: Any) -> AsyncCluster:
        """The cluster, not started yet. An explicit name wins over the file's."""
        from oars.client.cluster import AsyncCluster

        if name and self.option_name and name != self.option_name:
            raise UsageError(f"Two names are given: {name!r} and {self.option_name!r}.", "Give one.")
        manifest = self.manifest()
        chosen = name or self.option_name or manifest.name
        return AsyncCluster(manifest.spec, name=chosen, timeout=self.timeout, **arguments)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All options that describe a cluster, given to the command as one `options`."""
    mine = [field.name for field in fields(ClusterOptions)]

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        options = ClusterOptions(**{name: given.pop(name) for name in mine})
        return function(options=options, **given)

    command: Callable[..., Any] = gathered
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def kept() -> Kept:
    """The clusters of this user."""
    from oars.base.settings import Settings
    from oars.client.kept import Kept

    return Kept(Settings.from_environ(os.environ), os.environ)
