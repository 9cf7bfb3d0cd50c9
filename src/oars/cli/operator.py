"""`oars operator`: install, inspect, remove and run the operator."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError
from oars.cli import signals
from oars.cli.options import add_options, parse_duration, quiet_option, timeout_option
from oars.cli.output import as_yaml, emit, output_option, write
from oars.cli.progress import Progress
from oars.operator import HEALTH_PORT, METRICS_PORT, NAMESPACE, RunOptions

if TYPE_CHECKING:
    from oars.operator.manifests import InstallOptions
    from oars.service import Location
    from oars.service.operators import OperatorService

Command = Callable[..., Any]
MIN_LEASE_SECONDS = 3
LOG_FORMATS = click.Choice(("text", "json"))

_TARGET = (
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Default: as for kubectl."),
    click.option("--context", metavar="NAME", help="A context of the kubeconfig."),
)
_INSTALL = (
    click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="The namespace of the operator."),
    click.option("--image", metavar="IMAGE", help="The operator's image."),
    click.option(
        "--replicas", type=click.IntRange(0, 10), default=2, show_default=True, help="0: the operator runs elsewhere."
    ),
    click.option("--watch", "watch_namespaces", multiple=True, metavar="NAMESPACE", help="Repeatable. Default: all."),
    click.option(
        "--pull-secret", "pull_secrets", multiple=True, metavar="NAME", help="Used to pull the image; repeatable."
    ),
    click.option("--priority-class", default="", metavar="NAME", help="The PriorityClass of its pods."),
    click.option("--no-nodes", is_flag=True, help="Do not allow it to list nodes: `oars why` explains less."),
)


def target_options(function: Command) -> Command:
    """--kubeconfig and --context, passed to the command as one `location`."""

    @functools.wraps(function)
    def wrapper(kubeconfig: str | None, context: str | None, **given: Any) -> Any:
        from oars.service import Location

        return function(location=Location("kubernetes", context, kubeconfig=kubeconfig), **given)

    return add_options(wrapper, _TARGET)


def install_options(function: Command) -> Command:
    """The options of an installation, passed to the command as one `options`."""
    fields = ("namespace", "image", "replicas", "watch_namespaces", "pull_secrets", "priority_class", "no_nodes")

    @functools.wraps(function)
    def wrapper(**given: Any) -> Any:
        from oars.operator.manifests import IMAGE, InstallOptions

        chosen = {name: given.pop(name) for name in fields}
        nodes = not chosen.pop("no_nodes")
        options = InstallOptions(**chosen | {"nodes": nodes, "image": chosen["image"] or IMAGE})
        return function(options=options, **given)

    return add_options(wrapper, _INSTALL)


def _service(location: Location) -> OperatorService:
    from oars.service.operators import OperatorService

    return OperatorService(os.environ, location)


@click.group()
def operator() -> None:
    """Install, inspect, remove or run the Kubernetes operator."""


@operator.command()
@install_options
def manifests(options: InstallOptions) -> None:
    """Print the manifests of an installation, for kubectl or GitOps."""
    from oars.operator import manifests as rendering

    write("\n---\n".join(map(as_yaml, rendering.install(options))))


@operator.command()
@install_options
@target_options
@timeout_option("3m")
@output_option
@quiet_option
def install(options: InstallOptions, location: Location, timeout: float, output: str, quiet: bool) -> None:
    """Install or update the operator, and wait until one of its replicas leads."""
    with Progress(quiet=quiet) as progress:
        leader = signals.run(_service(location).install(options, timeout, progress))
    data = {"namespace": options.namespace, "image": options.image, "leader": leader}
    text = f"The operator runs in namespace {options.namespace}; {leader} leads."
    if not leader:
        text = f"Namespace {options.namespace} is ready for `oars operator run`."
    emit(output, data, [options.namespace], lambda _: text)


@operator.command()
@click.option("-n", "--namespace", help="The namespace of the operator. Default: as its CRD says.")
@click.option("--force", is_flag=True, help="Delete all its clusters first.")
@target_options
@timeout_option("3m")
@output_option
@quiet_option
def uninstall(namespace: str | None, force: bool, location: Location, timeout: float, output: str, quiet: bool) -> None:
    """Remove the operator and its CRD. Fails if there are clusters, unless --force deletes them."""
    with Progress(quiet=quiet) as progress:
        found = signals.run(_service(location).uninstall(namespace, timeout, progress, force=force))
    emit(output, {"namespace": found}, [found], lambda _: f"The operator is removed from namespace {found}.")


@operator.command()
@click.option("-n", "--namespace", help="The namespace of the operator. Default: as its CRD says.")
@target_options
@output_option
def status(namespace: str | None, location: Location, output: str) -> None:
    """Show the operator: its image, replicas, leader, namespaces and number of clusters."""
    data = signals.run(_service(location).status(namespace))
    emit(output, data, [data["namespace"]], lambda _: _status_text(data))


@operator.command()
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Repeatable. Default: all.")
@click.option("--lease-namespace", metavar="NAME", help="The namespace of its Lease. Default: as its CRD says.")
@click.option(
    "--lease-duration",
    default="15s",
    show_default=True,
    metavar="TIME",
    callback=parse_duration,
    help="Another replica leads if the leader does not renew its Lease for this long.",
)
@click.option("--metrics-port", type=int, default=METRICS_PORT, show_default=True, help="0: none.")
@click.option("--health-port", type=int, default=HEALTH_PORT, show_default=True, help="0: none.")
@click.option(
    "--identity", default="", metavar="NAME", help="Its holder identity in the Lease. Default: the host name."
)
@click.option("--log-format", type=LOG_FORMATS, default="text", show_default=True, help="text or json.")
@target_options
def run(location: Location, lease_duration: float, **given: Any) -> None:
    """Run the operator in this process: in its pod, or elsewhere with a kubeconfig."""
    from oars.operator.main import run as lead

    if lease_duration < MIN_LEASE_SECONDS:
        raise SpecError(f"--lease-duration: at least {MIN_LEASE_SECONDS} s; a busy leader would lose its Lease.")
    options = RunOptions(
        kubeconfig=location.kubeconfig, context=location.context, lease_seconds=lease_duration, **given
    )
    signals.run(lead(options))


def _status_text(data: dict[str, Any]) -> str:
    rows = {
        "namespace": data["namespace"],
        "image": data["image"],
        "replicas": f"{data['ready']}/{data['replicas']} ready",
        "leader": data["leader"] or "none",
        "watches": ", ".join(data["watches"]) or "all namespaces",
        "clusters": data["clusters"],
    }
    return "\n".join(f"{name:<11}{value}" for name, value in rows.items())
