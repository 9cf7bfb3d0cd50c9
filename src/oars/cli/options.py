"""Options that several commands share, and the spec and location that they describe."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError, UsageError
from oars.cli import completions
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.service import Location, Service
    from oars.spec.cluster import ClusterSpec
    from oars.spec.load import Manifest

Command = Callable[..., Any]


def parse_duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return duration(value)
    except ValueError as error:
        raise SpecError(f"{param.opts[-1]}: {error}.", "Examples: 30s, 5m, 1h30m.") from error


def timeout_option(default: str) -> Callable[[Command], Command]:
    help_text = "How long to wait, such as 30s or 5m."
    return click.option(
        "--timeout", default=default, show_default=True, metavar="TIME", callback=parse_duration, help=help_text
    )


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no progress and no hints.")
name_argument = click.argument("name", metavar="NAME", shell_complete=completions.clusters)
optional_name = click.argument("name", required=False, shell_complete=completions.clusters)
container_option = click.option(
    "-c", "--container", metavar="NAME", help="Kubernetes: a container of the pod. Default: the member's main one."
)
namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="Kubernetes: the namespace. Default: that of the context."
)
mode_option = click.option(
    "--mode",
    type=click.Choice(("operator", "direct")),
    help="Kubernetes: who reconciles the cluster. Default: the operator if one watches the namespace.",
)
_SPEC = (
    click.option("-f", "--file", metavar="FILE", type=click.Path(), help="A cluster.yaml; '-' reads stdin."),
    click.option(
        "--engine", metavar="ENGINE", shell_complete=completions.engines, help="dask, ray, mars or a plug-in."
    ),
    click.option("--workers", type=int, metavar="N", help="Number of workers."),
    click.option("--cpu", metavar="CPU", help="Processors of each worker, such as 2 or 500m."),
    click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 4Gi."),
    click.option("--image", metavar="IMAGE", help="Kubernetes: the image of all pods."),
    click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Any field of the spec: head.cpu=2."),
    click.option("--package", "packages", multiple=True, metavar="PACKAGE", help="Install it beside the engine."),
    click.option("--name", "option_name", metavar="NAME", help="The name of the cluster."),
)
_SPEC_FIELDS = ("file", "engine", "workers", "cpu", "memory", "image", "sets", "packages", "option_name")
_LOCATION = (
    click.option("--place", metavar="PLACE", shell_complete=completions.places, help="local or kubernetes."),
    click.option("--context", metavar="NAME", help="Kubernetes: a context of the kubeconfig."),
    namespace_option,
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Kubernetes. Default: as for kubectl."),
)
_LOCATION_FIELDS = ("place", "context", "namespace", "kubeconfig", "mode")


@dataclass(frozen=True)
class ClusterOptions:
    """The spec and, for commands that create clusters, the location and timeout, as given on the command line."""

    file: str | None
    engine: str | None
    workers: int | None
    cpu: str | None
    memory: str | None
    image: str | None
    sets: tuple[str, ...]
    packages: tuple[str, ...]
    option_name: str | None
    location: Location | None = None
    timeout: float = 120.0

    @property
    def service(self) -> Service:
        return make_service(self.location)

    def in_namespace(self, namespace: str | None) -> ClusterOptions:
        """The same options for a namespace of Kubernetes."""
        from oars.service import Location

        return replace(self, location=Location("kubernetes", namespace=namespace))

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The file with the options applied. Read once: stdin cannot be read again."""
        from oars.service import specs

        if self.file is None and self.engine is None and not any(each.startswith("engine=") for each in self.sets):
            raise UsageError("No engine is given.", "Use --engine dask (or ray, mars), or -f FILE.")
        overrides = {
            "engine": self.engine, "workers": self.workers, "cpu": self.cpu, "memory": self.memory,
            "image": self.image, "place": self.location.place if self.location else None,
            "packages": list(self.packages) or None,
        }  # fmt: skip
        if self.file == "-":
            return specs.from_text(sys.stdin.read(), "stdin", self.sets, overrides)
        if self.file is not None:
            return specs.from_file(Path(self.file), self.sets, overrides)
        return specs.from_options(self.sets, overrides)

    def name_and_spec(self, name: str | None) -> tuple[str | None, ClusterSpec]:
        """The name, if one is given, and the spec. A name on the command line overrides that of the file."""
        if name and self.option_name and name != self.option_name:
            raise UsageError(f"Two names are given: {name!r} and {self.option_name!r}.", "Give one of them.")
        spec = self.manifest.spec
        given, written = self.location.namespace if self.location else None, spec.namespace.name
        if given and written and given != written:  # an error, as in kubectl
            message = f"The spec has namespace {written!r}, but --namespace is {given!r}."
            raise UsageError(message, "Omit one of them.")
        return name or self.option_name or self.manifest.name, spec

    def required_name_and_spec(self, name: str | None) -> tuple[str, ClusterSpec]:
        chosen, spec = self.name_and_spec(name)
        if chosen is None:
            raise UsageError("No cluster is named.", "Give NAME, or metadata.name in the file.")
        return chosen, spec

    def new_name_and_spec(self, name: str | None) -> tuple[str, ClusterSpec]:
        """Generates a name if none is given."""
        from oars.client.cluster import generate_name

        chosen, spec = self.name_and_spec(name)
        return chosen or generate_name(spec), spec


def cluster_options(function: Command) -> Command:
    """All options of a command that creates a cluster, passed as `options: ClusterOptions`."""

    @functools.wraps(function)
    def wrapper(timeout: float, **given: Any) -> Any:
        fields = {name: given.pop(name) for name in _SPEC_FIELDS}
        return function(options=ClusterOptions(**fields, location=take_location(given), timeout=timeout), **given)

    return add_options(wrapper, (*_SPEC, *_LOCATION, mode_option, timeout_option("2m")))


def spec_options(function: Command) -> Command:
    """The options that describe a spec, passed as `options: ClusterOptions`."""

    @functools.wraps(function)
    def wrapper(**given: Any) -> Any:
        return function(options=ClusterOptions(**{name: given.pop(name) for name in _SPEC_FIELDS}), **given)

    return add_options(wrapper, _SPEC)


def location_options(function: Command) -> Command:
    """The options that say where a cluster is, passed as `service: Service` for that location."""

    @functools.wraps(function)
    def wrapper(**given: Any) -> Any:
        return function(service=make_service(take_location(given)), **given)

    return add_options(wrapper, _LOCATION)


def take_location(given: dict[str, Any]) -> Location:
    """Remove the location options from `given`."""
    from oars.service import make_location

    return make_location(lambda field: f"--{field}", **{name: given.pop(name, None) for name in _LOCATION_FIELDS})


def make_service(location: Location | None = None) -> Service:
    from oars.service import Service

    return Service(os.environ, location)


def add_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def repeat_location(location: Location | None, namespace: str = "") -> str:
    """The options that a following command needs to find the same cluster, to append to its name."""
    if location is None:
        return ""
    given = {"--kubeconfig": location.kubeconfig, "--context": location.context, "-n": namespace or location.namespace}
    return "".join(f" {option} {value}" for option, value in given.items() if value)
