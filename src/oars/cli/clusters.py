"""The commands that create, list, show, change and stop clusters."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oars.base.errors import Interrupted, NotFound, UsageError
from oars.cli import completions, errors, signals
from oars.cli.errors import say
from oars.cli.options import (
    ClusterOptions,
    cluster_options,
    diff_options,
    force_option,
    location_options,
    name_argument,
    optional_name,
    quiet_option,
    timeout_option,
)
from oars.cli.output import Column, emit, output_option, paint_phase, table
from oars.cli.progress import Progress
from oars.spec.status import MemberStatus, Phase, Status

if TYPE_CHECKING:
    from oars.service import Cause, Change, Outcome, Report, Service

T = TypeVar("T")
EFFECT_COLOURS = {"head replaced": "red", "refused": "red", "rolled": "yellow", "drained": "yellow"}
CLUSTERS = (
    Column[Status]("NAME", lambda s: s.name),
    Column[Status]("ENGINE", lambda s: s.engine),
    Column[Status]("PLACE", lambda s: s.place),
    Column[Status]("NAMESPACE", lambda s: s.namespace, wide=True),
    Column[Status]("MODE", lambda s: s.mode, wide=True),
    Column[Status]("PHASE", lambda s: s.phase, paint=paint_phase),
    Column[Status]("WORKERS", lambda s: f"{s.ready}/{s.wanted}"),
    Column[Status]("CLIENT", lambda s: s.endpoints.client, wide=True),
    Column[Status]("DASHBOARD", lambda s: s.endpoints.dashboard),
    Column[Status]("MESSAGE", lambda s: "" if s.phase is Phase.READY else s.message),
)
MEMBERS = (
    Column[MemberStatus]("MEMBER", lambda m: m.id),
    Column[MemberStatus]("GROUP", lambda m: m.group, wide=True),
    Column[MemberStatus]("PHASE", lambda m: m.phase, paint=paint_phase),
    Column[MemberStatus]("PID", lambda m: m.pid or "-"),
    Column[MemberStatus]("ADDRESS", lambda m: m.address),
    Column[MemberStatus]("REASON", lambda m: m.reason),
)


# create and change


@click.command()
@optional_name
@cluster_options
@output_option
@quiet_option
def up(name: str | None, options: ClusterOptions, output: str, quiet: bool) -> None:
    """Create a cluster that runs until `oars down`.

    Returns when the cluster is ready. A cluster that fails to start is removed again.
    """
    from oars.service.specs import generate_name

    chosen, spec = options.resolve(name, generate_name)
    with Progress(quiet=quiet) as progress:
        progress(f"{chosen}: starting")
        creating = options.service.create(chosen, spec, timeout=options.timeout, progress=progress, modules=os.getcwd())
        found = _run(creating, chosen, progress, lambda: True)
        _emit_new(found, options.service, output, progress)


@click.command()
@optional_name
@cluster_options
@force_option
@output_option
@quiet_option
def apply(name: str | None, options: ClusterOptions, force: bool, output: str, quiet: bool) -> None:
    """Create a cluster or change the existing one, and wait until it matches the spec.

    `oars diff` shows the changes beforehand. A local cluster can only change its numbers of workers.
    """
    chosen, spec = options.resolve(name)
    outcomes: list[Outcome] = []
    with Progress(quiet=quiet) as progress:

        def show(outcome: Outcome, changes: Sequence[Change]) -> None:
            outcomes.append(outcome)
            progress.note(_changes_text(chosen, changes))
            progress(f"{chosen}: starting" if outcome == "created" else f"{chosen}: changing")

        applying = options.service.apply(
            chosen, spec, timeout=options.timeout, force=force, progress=progress, modules=os.getcwd(), on_changes=show
        )
        applied = _run(applying, chosen, progress, lambda: "created" in outcomes)
        if applied.outcome == "created":
            _emit_new(applied.status, options.service, output, progress)
        else:
            progress.close()
            emit_status(applied.status, output, members=False)


def _run(work: Coroutine[Any, Any, T], name: str, progress: Progress, is_new: Callable[[], bool]) -> T:
    """The result of `work`. A signal removes a cluster that `work` creates."""
    try:
        return signals.run(work, lambda _: progress(f"{name}: stopping") if is_new() else None)
    except Interrupted as error:
        if is_new():
            error.hint = f"Cluster {name!r} was removed again."
        raise


def _emit_new(found: Status, service: Service, output: str, progress: Progress) -> None:
    """Print the status of a new cluster and which commands to use next."""
    seconds = progress.elapsed
    progress.close()
    emit_status(found, output, members=False)
    name, note = service.reference(found.name, found.namespace), ""
    if found.mode == "direct":
        note = "It keeps running without an operator: Kubernetes replaces failed pods.\n"
    progress.say(
        f"\n{found.name} is ready after {seconds:.1f} s. {note}Next:\n"
        f"  oars shell {name}              open Python with the client connected\n"
        f"  oars exec {name} -- COMMAND    run a program that finds the cluster\n"
        f"  oars status {name}             show its status\n"
        f"  oars down {name}               stop it"
    )


@click.command()
@optional_name
@diff_options
@output_option
def diff(name: str | None, options: ClusterOptions, output: str) -> int:
    """Show what a spec would change in a running cluster, and which workers or head it would replace.

    The exit code is 0 if nothing differs and 1 if something does.
    """
    chosen, spec = options.resolve(name)
    found = signals.run(options.service.diff(chosen, spec))
    data = [asdict(change) for change in found]
    emit(output, data, [change.effect for change in found], lambda _: _changes_text(chosen, found))
    return 1 if found else 0


def _changes_text(name: str, changes: Sequence[Change]) -> str:
    if not changes:
        return f"{name} matches the spec."
    lines = [f"{name}:"]
    for change in changes:
        effect = click.style(f"{change.effect}:", fg=EFFECT_COLOURS.get(change.effect, "green"))
        lines += [f"  {effect} {change.message}", *(f"      {line}" for line in change.lines)]
    return "\n".join(lines)


@click.command()
@name_argument
@click.argument("workers", type=int, metavar="N")
@click.option("--group", metavar="GROUP", help="The worker group. Default: the first one.")
@force_option
@click.option("--no-wait", is_flag=True, help="Return at once.")
@timeout_option("2m")
@location_options
@output_option
@quiet_option
def scale(name: str, service: Service, output: str, quiet: bool, no_wait: bool, timeout: float, **change: Any) -> None:
    """Set the number of workers to N and wait until they are ready.

    Workers are drained before they are removed; `oars why` shows what a worker waits for.
    """
    with Progress(quiet=quiet) as progress:
        found = signals.run(service.scale(name, timeout=None if no_wait else timeout, progress=progress, **change))
        if no_wait and found.mode == "direct":
            progress.say("Without an operator, draining only progresses while an oars command is running.")
    emit_status(found, output, members=False)


@click.command()
@click.argument("clusters", nargs=-1, metavar="[NAME]...", shell_complete=completions.clusters)
@click.option("--all", "everything", is_flag=True, help="All local clusters, or with --place kubernetes all of those.")
@timeout_option("1m")
@location_options
@output_option
@quiet_option
def down(
    clusters: tuple[str, ...], everything: bool, timeout: float, service: Service, output: str, quiet: bool
) -> None:
    """Stop clusters and remove their processes, files and ports, or on Kubernetes their objects."""
    if not clusters and not everything:
        raise UsageError("No cluster is named.", "Give one or more names, or --all.")
    if clusters and everything:
        raise UsageError("Names and --all contradict each other.", "Omit one of them.")
    with Progress(quiet=quiet) as progress:
        names: Sequence[str] = clusters or signals.run(service.names())
        if names:
            progress(f"stopping {', '.join(names)}")
        results = signals.run(service.stop(names, timeout))
    stopped = [name for name, error in results.items() if error is None]
    text = "\n".join(f"{name} is stopped." for name in stopped)
    emit(output, [{"name": name} for name in stopped], stopped, lambda _: text)
    failed = [error for error in results.values() if error is not None]
    if failed:
        failed.sort(key=lambda error: error.exit_code == NotFound.exit_code)  # a missing cluster is the least severe
        for error in failed[1:]:
            errors.print_error(error)
        raise failed[0]


# list and show


@click.command()
@location_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Kubernetes: clusters in all namespaces.")
@output_option
def ls(service: Service, all_namespaces: bool, output: str) -> None:
    """List the clusters of this machine and, if there is a kubeconfig, of Kubernetes."""
    if all_namespaces and service.location.namespace:
        raise UsageError("--all-namespaces and --namespace contradict each other.", "Omit one of them.")
    listing = signals.run(service.list(all_namespaces=all_namespaces))
    for place, problem in listing.problems.items():
        say(f"{place.capitalize()} clusters are not listed: {problem}")
    found = listing.statuses
    if not found and output in ("table", "wide"):
        say("No clusters. Create one with `oars up demo --engine dask`.")
        return
    columns = [
        replace(column, wide=False) if all_namespaces and column.title == "NAMESPACE" else column for column in CLUSTERS
    ]
    data = [each.to_dict(members=False) for each in found]
    emit(output, data, [each.name for each in found], lambda wide: table(found, columns, wide))


@click.command()
@name_argument
@location_options
@output_option
def status(name: str, service: Service, output: str) -> None:
    """Show one cluster: phase, endpoints, groups and members.

    The keys of the JSON output are stable: name, engine, place, phase, reason, message, endpoints, groups, members,
    mode and namespace.
    """
    emit_status(signals.run(service.get(name)).status, output)


def emit_status(found: Status, output: str, *, members: bool = True) -> None:
    """Print a status. members: list them in the table."""
    emit(output, found.to_dict(), [found.name], lambda wide: _status_text(found, wide, members=members or wide))


def _status_text(found: Status, wide: bool, *, members: bool) -> str:
    groups = ", ".join(f"{group.name} {group.ready}/{group.wanted}" for group in found.groups)
    rows = {
        "Name": found.name,
        "Engine": f"{found.engine} on {found.place}",
        "Namespace": found.namespace,
        "Mode": found.mode,
        "Phase": paint_phase(found.phase) + (f" ({found.reason})" if found.reason else ""),
        "Message": found.message,
        "Workers": f"{found.ready}/{found.wanted} ready" + (f" ({groups})" if len(found.groups) > 1 else ""),
        "Client": found.endpoints.client,
        "Dashboard": found.endpoints.dashboard,
    }
    facts = "\n".join(f"{title + ':':<11}{value}" for title, value in rows.items() if value)
    return f"{facts}\n\n{table(found.members, MEMBERS, wide)}" if found.members and members else facts


@click.command()
@name_argument
@location_options
@output_option
def why(name: str, service: Service, output: str) -> None:
    """Explain why a cluster does not match its spec: causes, hints and the relevant log lines."""
    report = signals.run(service.get(name))
    causes = [asdict(cause) for cause in report.causes]
    emit(output, causes, [cause.reason for cause in report.causes], lambda _: _report_text(report))


def _report_text(report: Report) -> str:
    found = report.status
    summary = f"{found.name} is {paint_phase(found.phase)}, {found.ready} of {found.wanted} workers ready."
    if report.causes:
        return "\n\n".join([summary, *map(_cause_text, report.causes)])
    if found.phase is Phase.READY:
        return f"{summary} Nothing is wrong."
    return f"{summary}\n{found.message}" if found.message else summary


def _cause_text(cause: Cause) -> str:
    lines = [f"{cause.reason}: {cause.message}"]
    if cause.hint:
        lines.append(f"  What to do: {cause.hint}")
    if cause.lines:
        lines += ["  Last lines of its log:", *(f"    {line}" for line in cause.lines)]
    return "\n".join(lines)
