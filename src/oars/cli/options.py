"""The options of every command that makes or finds a cluster, and the cluster they describe."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import UsageError
from oars.cli import names

if TYPE_CHECKING:
    from oars.client.backends import Where
    from oars.client.cluster import AsyncCluster
    from oars.client.local_clusters import Kept
    from oars.spec.load import Manifest

Command = Callable[..., Any]

quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress, no hints.")
name_argument = click.argument("name", metavar="NAME", shell_complete=names.clusters)
container_option = click.option(
    "-c", "--container", metavar="NAME", help="Kubernetes: another container of the pod than the member's own."
)
optional_name = click.argument("name", required=False, shell_complete=names.clusters)


def timeout_option(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--timeout", default=default, show_default=True, metavar="TIME", help="How long to wait, such as 30s or 5m."
    )


_DESCRIPTION = (
    click.option("-f", "--file", metavar="FILE", type=click.Path(), help="A cluster.yaml; '-' reads stdin."),
    click.option("--engine", metavar="ENGINE", shell_complete=names.engines, help="dask, ray, mars or a plug-in."),
    click.option("--workers", type=int, metavar="N", help="How many workers."),
    click.option("--cpu", metavar="CPU", help="Processors of each worker, such as 2 or 500m."),
    click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 4Gi."),
    click.option("--image", metavar="IMAGE", help="Kubernetes: the image of all pods."),
    click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="A field of spec, such as head.cpu=2."),
    click.option("--package", "packages", multiple=True, metavar="PACKAGE", help="Install it beside the engine."),
    click.option("--name", "option_name", metavar="NAME", help="The cluster's name."),
)
_DESCRIBED = ("file", "engine", "workers", "cpu", "memory", "image", "sets", "packages", "option_name")
namespace_option = click.option("-n", "--namespace", metavar="NAME", help="Kubernetes: default is the context's.")
_WHERE = (
    click.option("--place", metavar="PLACE", shell_complete=names.places, help="local or kubernetes."),
    click.option("--context", metavar="NAME", help="Kubernetes: a context of the kubeconfig."),
    namespace_option,
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Default: as kubectl finds it."),
)
_KUBERNETES = ("context", "namespace", "kubeconfig", "mode")
mode_option = click.option(
    "--mode", type=click.Choice(("operator", "direct")), help="Kubernetes: who looks after it. Default: found out."
)


@dataclass(frozen=True)
class ClusterOptions:
    """What the user said about the cluster: how it shall be and, where that is asked, where."""

    file: str | None
    engine: str | None
    workers: int | None
    cpu: str | None
    memory: str | None
    image: str | None
    sets: tuple[str, ...]
    packages: tuple[str, ...]
    option_name: str | None
    where: Where | None = None
    timeout: str = "2m"

    def manifest(self) -> Manifest:
        return self._manifest

    @functools.cached_property
    def _manifest(self) -> Manifest:
        """The checked description, from the file and the options over it. Read once: stdin cannot be read again."""
        from oars.spec import load

        if self.file is None and self.engine is None and not any(each.startswith("engine=") for each in self.sets):
            raise UsageError("No engine is named.", "Say --engine dask (or ray, mars), or -f FILE.")
        overrides = {
            "engine": self.engine, "workers": self.workers, "cpu": self.cpu, "memory": self.memory,
            "image": self.image, "place": self.where.place if self.where else None,
            "packages": list(self.packages) or None,
        }  # fmt: skip
        if self.file == "-":
            return load.load_text(sys.stdin.read(), "stdin", self.sets, overrides)
        if self.file is not None:
            return load.load_file(Path(self.file), self.sets, overrides)
        return load.build({}, self.sets, overrides)

    def named(self, name: str | None) -> tuple[str | None, Manifest]:
        """The name, if there is one, and the description. An explicit name wins over the file's."""
        if name and self.option_name and name != self.option_name:
            raise UsageError(f"Two names are given: {name!r} and {self.option_name!r}.", "Give one.")
        manifest = self.manifest()
        self._check_namespace(manifest)
        return name or self.option_name or manifest.name, manifest

    def cluster(self, name: str | None = None, **arguments: Any) -> AsyncCluster:
        """The cluster, not started yet."""
        from oars.client.cluster import AsyncCluster

        chosen, manifest = self.named(name)
        return AsyncCluster(manifest.spec, name=chosen, timeout=self.timeout, where=self.where, **arguments)

    def _check_namespace(self, manifest: Manifest) -> None:
        """As kubectl has it: the file and the option must not contradict each other."""
        said, written = self.where.namespace if self.where else None, manifest.spec.namespace.name
        if said and written and said != written:
            raise UsageError(
                f"The description says namespace {written!r}, and --namespace says {said!r}.", "Leave one of them out."
            )


def cluster_options(function: Command) -> Command:
    """All options of a command that makes a cluster, given to it as one `options`."""

    @functools.wraps(function)
    def gathered(timeout: str, **given: Any) -> Any:
        where = _where(given)
        options = ClusterOptions(**{name: given.pop(name) for name in _DESCRIBED}, where=where, timeout=timeout)
        return function(options=options, **given)

    return _with(gathered, (*_DESCRIPTION, *_WHERE, mode_option, timeout_option("2m")))


def description_options(function: Command) -> Command:
    """Only those that describe a cluster, given to the command as one `options`."""

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        return function(options=ClusterOptions(**{name: given.pop(name) for name in _DESCRIBED}), **given)

    return _with(gathered, _DESCRIPTION)


def where_options(function: Command) -> Command:
    """Where to look for a cluster, given to the command as one `where`."""

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        return function(where=_where(given), **given)

    return _with(gathered, _WHERE)


def _where(given: dict[str, Any]) -> Where:
    """Takes its part out of what is given. Whoever speaks of Kubernetes means Kubernetes."""
    from oars.client.backends import Where

    said = {name: given.pop(name, None) for name in ("place", *_KUBERNETES)}
    spoken = [name for name in _KUBERNETES if said[name]]
    if spoken and said["place"] not in (None, "kubernetes"):
        sentence = f"--{spoken[0]} is about Kubernetes, and --place says {said['place']}."
        raise UsageError(sentence, "Leave one of them out.")
    return Where(**{**said, "place": said["place"] or ("kubernetes" if spoken else None)})


def _with(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def kept() -> Kept:
    """The clusters of this user on this machine."""
    from oars.base.settings import Settings
    from oars.client.local_clusters import Kept

    return Kept(Settings.from_environ(os.environ), os.environ)
