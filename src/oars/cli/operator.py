"""`oars operator`: the manifests, installing and removing it, what it does, and the operator itself."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError
from oars.cli import show, signals
from oars.cli.options import quiet_option, timeout_option
from oars.cli.progress import Progress
from oars.cli.show import output_option
from oars.operator import HEALTH_PORT, METRICS_PORT, NAMESPACE, RunOptions
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.kube.client import Client
    from oars.operator.manifests import InstallOptions

Command = Callable[..., Any]
LEAST_LEASE = 3
LOG_FORMATS = click.Choice(("text", "json"))

_TARGET = (
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Default: as kubectl finds it."),
    click.option("--context", metavar="NAME", help="A context of the kubeconfig."),
)
_INSTALL = (
    click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Where the operator lives."),
    click.option("--image", metavar="IMAGE", help="The operator's image."),
    click.option("--replicas", type=click.IntRange(0, 10), default=2, show_default=True, help="0: it runs elsewhere."),
    click.option("--watch", "watch_namespaces", multiple=True, metavar="NAMESPACE", help="Repeatable. Default: all."),
    click.option("--pull-secret", "pull_secrets", multiple=True, metavar="NAME", help="To pull the image with."),
    click.option("--priority-class", default="", metavar="NAME", help="Of its pods."),
    click.option("--no-nodes", is_flag=True, help="Without the right to list nodes: why says less."),
)


@dataclass(frozen=True)
class Where:
    """Which cluster is meant."""

    kubeconfig: str | None
    context: str | None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        from oars.kube.client import Client
        from oars.kube.config import load

        target = load(os.environ, context=self.context, kubeconfig=self.kubeconfig)
        async with Client(target) as client:
            await client.log_in()
            yield client


def target_options(function: Command) -> Command:
    """--kubeconfig and --context, given to the command as one `where`."""

    @functools.wraps(function)
    def gathered(kubeconfig: str | None, context: str | None, **given: Any) -> Any:
        return function(where=Where(kubeconfig, context), **given)

    return _with(gathered, _TARGET)


def install_options(function: Command) -> Command:
    """What an installation may choose, given to the command as one `options`."""
    mine = ("namespace", "image", "replicas", "watch_namespaces", "pull_secrets", "priority_class", "no_nodes")

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        from oars.operator.manifests import IMAGE, InstallOptions

        chosen = {name: given.pop(name) for name in mine}
        nodes = not chosen.pop("no_nodes")
        options = InstallOptions(**chosen | {"nodes": nodes, "image": chosen["image"] or IMAGE})
        return function(options=options, **given)

    return _with(gathered, _INSTALL)


def _with(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def operator() -> None:
    """Install, look at, remove or run the Kubernetes operator."""


@operator.command()
@install_options
def manifests(options: InstallOptions) -> None:
    """Print an installation as YAML, for kubectl or GitOps."""
    from oars.operator import manifests as made

    show.write("\n---\n".join(map(show.as_yaml, made.install(options))))


@operator.command()
@install_options
@target_options
@timeout_option("3m")
@output_option
@quiet_option
def install(options: InstallOptions, where: Where, timeout: str, output: str, quiet: bool) -> None:
    """Install the operator or bring it up to date. Waits until one of its replicas leads."""
    with Progress(quiet=quiet) as progress:
        leader = signals.run(_installed(options, where, _seconds(timeout), progress))
    data = {"namespace": options.namespace, "image": options.image, "leader": leader}
    text = f"The operator runs in namespace {options.namespace}; {leader} leads."
    if not leader:
        text = f"All is ready in namespace {options.namespace} for `oars operator run`."
    show.emit(output, data, [options.namespace], lambda _: text)


@operator.command()
@click.option("-n", "--namespace", help="Where the operator lives. Default: where it says.")
@click.option("--force", is_flag=True, help="Delete all clusters that it runs, too.")
@target_options
@timeout_option("3m")
@output_option
@quiet_option
def uninstall(namespace: str | None, force: bool, where: Where, timeout: str, output: str, quiet: bool) -> None:
    """Remove the operator and its CRD. Refuses while there are clusters."""
    with Progress(quiet=quiet) as progress:
        home = signals.run(_removed(namespace, where, force, _seconds(timeout), progress))
    show.emit(output, {"namespace": home}, [home], lambda _: f"The operator is removed from namespace {home}.")


@operator.command()
@click.option("-n", "--namespace", help="Where the operator lives. Default: where it says.")
@target_options
@output_option
def status(namespace: str | None, where: Where, output: str) -> None:
    """Show the operator: who leads, how many clusters."""
    data = signals.run(_seen(namespace, where))
    show.emit(output, data, [data["namespace"]], lambda _: _status_text(data))


@operator.command()
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Repeatable. Default: all.")
@click.option("--lease-namespace", metavar="NAME", help="Where its Lease is. Default: where it was installed.")
@click.option("--lease-duration", default="15s", show_default=True, help="A leader silent for so long is replaced.")
@click.option("--metrics-port", type=int, default=METRICS_PORT, show_default=True, help="0: none.")
@click.option("--health-port", type=int, default=HEALTH_PORT, show_default=True, help="0: none.")
@click.option("--identity", default="", metavar="NAME", help="In the Lease. Default: this host's name.")
@click.option("--log-format", type=LOG_FORMATS, default="text", show_default=True, help="text or json.")
@target_options
def run(where: Where, lease_duration: str, **given: Any) -> None:
    """Run the operator here. In its pod, or outside against a kubeconfig."""
    from oars.base.batching_selector import event_loop
    from oars.operator.main import run as lead

    seconds = _seconds(lease_duration, "--lease-duration")
    if seconds < LEAST_LEASE:
        raise SpecError(f"--lease-duration: at least {LEAST_LEASE} s; a busy leader would lose it.")
    options = RunOptions(kubeconfig=where.kubeconfig, context=where.context, lease_seconds=seconds, **given)
    signals.run(lead(options), loop=event_loop)


async def _installed(options: InstallOptions, where: Where, seconds: float, progress: Progress) -> str:
    from oars.operator import installed

    async with where.client() as client:
        return await installed.install(client, options, seconds, progress)


async def _removed(namespace: str | None, where: Where, force: bool, seconds: float, progress: Progress) -> str:
    from oars.client import operator_client
    from oars.operator import installed

    async with where.client() as client:
        home = namespace or await operator_client.home(client)
        await installed.uninstall(client, home, seconds, progress, force=force)
        return home


async def _seen(namespace: str | None, where: Where) -> dict[str, Any]:
    from oars.client import operator_client
    from oars.operator import installed

    async with where.client() as client:
        return await installed.status(client, namespace or await operator_client.home(client))


def _status_text(data: dict[str, Any]) -> str:
    rows = {
        "namespace": data["namespace"],
        "image": data["image"],
        "replicas": f"{data['ready']}/{data['replicas']} ready",
        "leader": data["leader"] or "nobody",
        "watches": ", ".join(data["watches"]) or "all namespaces",
        "clusters": data["clusters"],
    }
    return "\n".join(f"{name:<11}{value}" for name, value in rows.items())


def _seconds(text: str, option: str = "--timeout") -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise SpecError(f"{option}: {error}.") from error
