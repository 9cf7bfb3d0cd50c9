"""The commands for Kubernetes only: manifests, permissions and the operator."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError, UsageError
from oars.cli import signals
from oars.cli.errors import say
from oars.cli.options import (
    ClusterOptions,
    Integer,
    optional_name,
    parse_duration,
    pass_as,
    quiet_option,
    render_options,
    timeout_option,
)
from oars.cli.output import as_yaml, emit, emit_manifests, manifest_output_option, output_option
from oars.cli.progress import Progress
from oars.operator import ADOPTABLE, HEALTH_PORT, METRICS_PORT, NAMESPACE, RunOptions

if TYPE_CHECKING:
    from oars.operator.manifests import InstallOptions
    from oars.service.operators import OperatorService

MIN_LEASE_SECONDS = 3


@click.command()
@optional_name
@render_options
@click.option("--create-namespace", is_flag=True, help="Print the Namespace, too.")
@click.option(
    "--secrets",
    type=click.Choice(("inline", "reference", "only")),
    default="inline",
    help="Print the Secret with the manifests, not at all, or alone.",
)
@manifest_output_option
@quiet_option
def render(
    name: str | None, options: ClusterOptions, create_namespace: bool, secrets: str, output: str, quiet: bool
) -> None:
    """Print a cluster as manifests for `kubectl apply -f -`.

    They include a Secret with the cluster's certificates or token. For files that are kept in git use `--secrets
    reference`, and create the Secret once with `--secrets only`. If the Secret exists in the namespace already, its
    content is printed again, so that running pods and new ones agree. Without -n the manifests name no namespace.
    """
    from oars.service import manifests

    options = replace(options, location=replace(options.location, place="kubernetes"))
    chosen, spec = options.resolve(name, lambda spec: spec.engine)
    namespace = options.location.namespace
    rendered = manifests.render(chosen, spec, namespace, create_namespace=create_namespace, secrets=secrets)
    note = signals.run(manifests.complete_secret(rendered, secrets, options.location, os.environ))
    emit_manifests(output, rendered.objects)
    if not quiet:
        for each in filter(None, (note, *rendered.notes)):
            say(each)


@click.command()
@click.option(
    "--mode",
    type=click.Choice(("direct", "user", "operator")),
    default="direct",
    help="What the permissions are for, see above.",
)
@click.option(
    "-n", "--namespace", metavar="NAME", help="The namespace. Default: 'default'; for the operator all namespaces."
)
@click.option("--service-account", metavar="NAME", help="Who gets the permissions: NAME or NAMESPACE:NAME.")
@click.option("--user", metavar="NAME", help="Who gets the permissions: a user.")
@click.option("--group", metavar="NAME", help="Who gets the permissions: a group of users.")
@click.option("--minimal", is_flag=True, help="direct: omit the rules that are marked optional.")
@click.option("--nodes", is_flag=True, help="direct, user: allow listing nodes, so that `oars why` can compare them.")
@click.option("--create-namespace", is_flag=True, help="direct: for all namespaces, with the right to create them.")
@manifest_output_option
def rbac(mode: str, namespace: str | None, output: str, **given: Any) -> None:
    """Print the permissions that a mode needs, as YAML for kubectl, with the reason for each rule.

    direct: you create clusters without an operator. user: you create clusters that an operator runs. operator: the
    operator itself. The permissions are for one service account, user or group, by default for the service account
    that pods of the namespace use.
    """
    from oars.service import permissions

    kinds = {"User": "user", "Group": "group", "ServiceAccount": "service_account"}
    named = [(kind, name) for kind, option in kinds.items() if (name := given.pop(option))]
    if len(named) > 1:
        raise UsageError("Several subjects are given.", "Use one of --service-account, --user and --group.")
    kind, name = named[0] if named else ("ServiceAccount", "default")
    subject = permissions.Subject(kind, name)
    if kind == "ServiceAccount":
        own_namespace, _, account = name.rpartition(":")
        subject = permissions.Subject(kind, account, own_namespace or namespace or "default")
    emit_manifests(output, permissions.roles(mode, namespace, subject, **given), _explained)


def _explained(obj: dict[str, Any]) -> str:
    """YAML with each rule on one line, below a comment with its reason."""
    import yaml

    from oars.service.permissions import why

    lines = [as_yaml({key: value for key, value in obj.items() if key != "rules"})]
    if "rules" in obj:
        lines.append("rules:")
    for rule in obj.get("rules", ()):
        flow = yaml.safe_dump(rule, default_flow_style=True, sort_keys=False, width=1000).rstrip()
        lines += [f"# {why(rule)}", f"- {flow}"]
    return "\n".join(lines)


# the operator


@click.group()
def operator() -> None:
    """Install, inspect, remove or run the Kubernetes operator."""


def _take_service(given: dict[str, Any]) -> OperatorService:
    from oars.service import Location
    from oars.service.operators import OperatorService

    location = Location("kubernetes", given.pop("context"), kubeconfig=given.pop("kubeconfig"))
    return OperatorService(os.environ, location)


def _take_install_options(given: dict[str, Any]) -> InstallOptions:
    from oars.operator.manifests import IMAGE, InstallOptions

    same = (
        "namespace", "replicas", "watch_namespaces", "pull_secrets", "priority_class", "queues", "trust_authors",
        "adopt",
    )  # fmt: skip
    fields = {name: given.pop(name) for name in same}
    return InstallOptions(**fields, image=given.pop("image") or IMAGE, nodes=not given.pop("no_nodes"))


kubeconfig_option = click.option(
    "--kubeconfig", metavar="FILE", type=click.Path(), help="The kubeconfig. Default: as for kubectl."
)
context_option = click.option("--context", metavar="NAME", help="A context of the kubeconfig.")
adopt_option = click.option(
    "--adopt",
    multiple=True,
    type=click.Choice(ADOPTABLE),
    help="Serve resources of another project, too. marsjob: those of KubeDL. Repeatable.",
)
_INSTALL = (
    click.option("-n", "--namespace", default=NAMESPACE, metavar="NAME", help="The namespace of the operator."),
    click.option("--image", metavar="IMAGE", help="The operator's image. Default: that of this version."),
    click.option(
        "--replicas",
        type=Integer(0, 10),
        default=2,
        metavar="N",
        help="Number of replicas; 0: the operator runs elsewhere.",
    ),
    click.option(
        "--watch",
        "watch_namespaces",
        multiple=True,
        metavar="NAMESPACE",
        help="A namespace to watch. Repeatable. Default: all.",
    ),
    click.option(
        "--pull-secret", "pull_secrets", multiple=True, metavar="NAME", help="Used to pull the image. Repeatable."
    ),
    click.option(
        "--priority-class", default="", show_default=False, metavar="NAME", help="The PriorityClass of its pods."
    ),
    click.option("--queues", is_flag=True, help="Let jobs wait in the queues of Kueue, and use Volcano's PodGroups."),
    click.option("--no-nodes", is_flag=True, help="Do not allow it to list nodes: `oars why` explains less."),
    click.option(
        "--trust-authors",
        is_flag=True,
        help="Do not check that authors of clusters may create the pods, Services and Ingresses that they describe.",
    ),
    adopt_option,
)
install_options = pass_as("options", _INSTALL, _take_install_options)
operator_options = pass_as("service", (kubeconfig_option, context_option), _take_service)
namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="The namespace of the operator. Default: as its CRD says."
)


@operator.command()
@install_options
@manifest_output_option
def manifests(options: InstallOptions, output: str) -> None:
    """Print the manifests of an installation, for kubectl or GitOps."""
    from oars.operator import manifests as rendering

    emit_manifests(output, rendering.install(options))


@operator.command()
@install_options
@operator_options
@timeout_option("3m")
@output_option
@quiet_option
def install(options: InstallOptions, service: OperatorService, timeout: float, output: str, quiet: bool) -> None:
    """Install or update the operator. Waits until one of its replicas leads."""
    with Progress(quiet=quiet) as progress:
        leader = signals.run(service.install(options, timeout, progress))
    data = {"namespace": options.namespace, "image": options.image, "leader": leader}
    text = f"The operator runs in namespace {options.namespace}; {leader} leads."
    if not leader:
        text = f"Namespace {options.namespace} is ready for `oars operator run`."
    emit(output, data, [options.namespace], lambda _: text)


@operator.command()
@namespace_option
@click.option("--force", is_flag=True, help="Delete all its clusters first.")
@operator_options
@timeout_option("3m")
@output_option
@quiet_option
def uninstall(
    namespace: str | None, force: bool, service: OperatorService, timeout: float, output: str, quiet: bool
) -> None:
    """Remove the operator and its CRD. Fails if there are clusters, unless --force deletes them."""
    with Progress(quiet=quiet) as progress:
        found = signals.run(service.uninstall(namespace, timeout, progress, force=force))
    emit(output, {"namespace": found}, [found], lambda _: f"The operator is removed from namespace {found}.")


@operator.command()
@namespace_option
@operator_options
@output_option
def status(namespace: str | None, service: OperatorService, output: str) -> None:
    """Show the operator. Lists its image, replicas, leader, namespaces and number of clusters."""
    data = signals.run(service.status(namespace))
    rows = {
        "namespace": data["namespace"],
        "image": data["image"],
        "replicas": f"{data['ready']}/{data['replicas']} ready",
        "leader": data["leader"] or "none",
        "watches": ", ".join(data["watches"]) or "all namespaces",
        "authors": data["authors"],
        "clusters": data["clusters"],
    }
    text = "\n".join(f"{name:<11}{value}" for name, value in rows.items())
    emit(output, data, [data["namespace"]], lambda _: text)


@operator.command()
@click.option(
    "-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="To watch. Repeatable. Default: all."
)
@click.option("--lease-namespace", metavar="NAME", help="The namespace of its Lease. Default: as its CRD says.")
@click.option(
    "--lease-duration",
    default="15s",
    metavar="TIME",
    callback=parse_duration,
    help="Another replica leads if the leader does not renew its Lease for this long.",
)
@click.option("--metrics-port", type=int, default=METRICS_PORT, metavar="PORT", help="0: no metrics.")
@click.option("--health-port", type=int, default=HEALTH_PORT, metavar="PORT", help="0: no probes.")
@click.option(
    "--identity",
    default="",
    show_default=False,
    metavar="NAME",
    help="Its holder identity in the Lease. Default: the host name.",
)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", help="Of the log lines.")
@click.option(
    "--trust-authors", is_flag=True, help="Accept all fields of clusters, even if no admission policy checks authors."
)
@adopt_option
@kubeconfig_option
@context_option
def run(lease_duration: float, **options: Any) -> None:
    """Run the operator in this process. It runs in its pod, or elsewhere with a kubeconfig."""
    from oars.operator.main import run as lead

    if lease_duration < MIN_LEASE_SECONDS:
        raise SpecError(f"--lease-duration: at least {MIN_LEASE_SECONDS} s; a busy leader would lose its Lease.")
    signals.run(lead(RunOptions(lease_seconds=lease_duration, **options)))
