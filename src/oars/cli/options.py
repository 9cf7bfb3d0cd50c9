"""Options that several commands share, and the spec and location that they describe."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError, UsageError
from oars.cli import completions
from oars.cli.convert import read_file, take_foreign
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.service import Location, Service
    from oars.service.specs import Manifest
    from oars.spec.cluster import ClusterSpec

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class Integer(click.IntRange):
    """click would say that a word "is not a valid integer range"."""

    name = "integer"


def parse_duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return duration(value)
    except ValueError as error:
        raise SpecError(f"{param.opts[-1]}: {error}.", "Examples: 30s, 5m, 1h30m.") from error


def parse_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """The time that many seconds ago, in seconds since the epoch."""
    return None if value is None else time.time() - parse_duration(ctx, param, value)


def timeout_option(default: str) -> Decorator:
    help_text = "How long to wait, such as 30s or 5m."
    return click.option("--timeout", default=default, metavar="TIME", callback=parse_duration, help=help_text)


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no progress and no hints.")
force_option = click.option("--force", is_flag=True, help="Remove workers immediately and discard their data.")
name_argument = click.argument("name", metavar="NAME", shell_complete=completions.clusters)
optional_name = click.argument("name", required=False, shell_complete=completions.clusters)
container_option = click.option(
    "-c", "--container", metavar="NAME", help="Kubernetes: a container of the pod. Default: the member's main one."
)
_NAMESPACE = click.option(
    "-n", "--namespace", metavar="NAME", help="Kubernetes: the namespace. Default: that of the context."
)


def _mode(what: str) -> Decorator:
    help_text = f"Kubernetes: who {what}. Default: the operator if one watches the namespace."
    return click.option("--mode", type=click.Choice(("operator", "direct")), help=help_text)


def _spec(kind: str, file: str, field: str) -> tuple[Decorator, ...]:
    return (
        click.option("-f", "--file", metavar="FILE", shell_complete=completions.specs, help=f"{file}; - reads stdin."),
        click.option(
            "--engine", metavar="ENGINE", shell_complete=completions.engines, help="dask, ray, mars or a plug-in."
        ),
        click.option("--workers", type=Integer(0), metavar="N", help="Number of workers."),
        click.option("--cpu", metavar="CPU", help="CPUs of each worker, such as 2 or 500m."),
        click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 4Gi."),
        click.option("--image", metavar="IMAGE", help="Kubernetes: the image of all pods."),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="PATH=VALUE",
            help=f"Set any field of the spec: {field}. Repeatable.",
        ),
        click.option(
            "--package", "packages", multiple=True, metavar="PACKAGE", help="Install it beside the engine. Repeatable."
        ),
        click.option("--name", "option_name", metavar="NAME", help=f"The name of the {kind}."),
        click.option("--strict", is_flag=True, help="Fail if a field of another project's file is not honoured."),
    )


_CLUSTER = _spec("cluster", "A cluster.yaml", "head.cpu=2")
_JOB = _spec("job", "A job.yaml, or a cluster.yaml with the job's cluster", "cluster.head.cpu=2")
_OVERRIDES = ("engine", "workers", "cpu", "memory", "image", "packages")
_KUBERNETES = (
    click.option("--context", metavar="NAME", help="Kubernetes: a context of the kubeconfig."),
    _NAMESPACE,
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Kubernetes. Default: as for kubectl."),
)
_LOCATION = (
    click.option("--place", metavar="PLACE", shell_complete=completions.places, help="local or kubernetes."),
    *_KUBERNETES,
)


@dataclass(frozen=True)
class ClusterOptions:
    """A spec, a location and a timeout as given on the command line. overrides: fields of the spec, None: not given."""

    file: str | None
    sets: Sequence[str]
    overrides: Mapping[str, Any]
    option_name: str | None
    location: Location
    timeout: float = 0.0
    strict: bool = False

    @property
    def service(self) -> Service:
        return _make_service(self.location)

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The file with the options applied. Read once: stdin cannot be read again. A manifest of another project is
        converted, and what is not honoured is printed."""
        from oars.service import specs

        overrides = {**self.overrides, "place": self.location.place}
        if self.file is not None:
            content, source = read_file(self.file)
            converted = take_foreign(content, source, "ComputeCluster", "ComputeJob", strict=self.strict)
            if converted is not None:
                return specs.from_data(converted, self.sets, overrides)
            return specs.from_text(content, source, self.sets, overrides)
        if overrides["engine"] is None and not any(each.startswith("engine=") for each in self.sets):
            raise UsageError("No engine is given.", "Use --engine dask (or ray, mars), or -f cluster.yaml.")
        return specs.from_data({}, self.sets, overrides)

    def resolve(
        self, name: str | None, default_name: Callable[[ClusterSpec], str] | None = None
    ) -> tuple[str, ClusterSpec]:
        """The name and the spec. A name on the command line overrides that of the file."""
        if name and self.option_name and name != self.option_name:
            raise UsageError(f"Two names are given: {name!r} and {self.option_name!r}.", "Give one of them.")
        spec = self.manifest.spec
        given, written = self.location.namespace, spec.namespace.name
        if given and written and given != written:  # an error, as in kubectl
            message = f"The spec has namespace {written!r}, but --namespace is {given!r}."
            raise UsageError(message, "Omit one of them.")
        chosen = name or self.option_name or self.manifest.name or (default_name(spec) if default_name else None)
        if chosen is None:
            raise UsageError("No cluster is named.", "Give a name, such as demo, or set metadata.name in the file.")
        return chosen, spec


def pass_as(parameter: str, options: Sequence[Decorator], make: Callable[[dict[str, Any]], object]) -> Decorator:
    """A decorator that adds options to a command and passes them as one parameter. `make` removes the values of the
    options from its argument."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def wrapper(**given: Any) -> Any:
            made = make(given)
            return function(**{parameter: made}, **given)

        command: Command = wrapper
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _take_location(given: dict[str, Any]) -> Location:
    from oars.service import make_location

    fields = ("place", "context", "namespace", "kubeconfig", "mode")
    return make_location(lambda field: f"--{field}", **{name: given.pop(name, None) for name in fields})


def _take_options(given: dict[str, Any]) -> ClusterOptions:
    overrides = {name: given.pop(name) for name in _OVERRIDES}
    overrides["packages"] = list(overrides["packages"]) or None
    fields = {name: given.pop(name) for name in ("file", "sets", "option_name", "strict")}
    return ClusterOptions(
        **fields, overrides=overrides, location=_take_location(given), timeout=given.pop("timeout", 0.0)
    )


def _make_service(location: Location) -> Service:
    from oars.service import Service

    return Service(os.environ, location)


# Where a cluster is, passed as `service: Service`; and several choices of options, passed as `options: ClusterOptions`.
location_options = pass_as("service", _LOCATION, lambda given: _make_service(_take_location(given)))
render_options = pass_as("options", (*_CLUSTER, *_KUBERNETES), _take_options)
image_options = pass_as("options", _CLUSTER, _take_options)
diff_options = pass_as("options", (*_CLUSTER, *_LOCATION), _take_options)
job_options = pass_as("options", (*_JOB, *_LOCATION, _mode("runs the job")), _take_options)
cluster_options = pass_as(
    "options", (*_CLUSTER, *_LOCATION, _mode("reconciles the cluster"), timeout_option("2m")), _take_options
)
