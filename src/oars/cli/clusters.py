"""The commands that create, list, show, change and stop clusters."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oars.base.errors import Interrupted, UsageError
from oars.cli import completions, errors, signals
from oars.cli.errors import say
from oars.cli.options import (
    ClusterOptions,
    Integer,
    cluster_options,
    diff_options,
    force_option,
    location_options,
    name_argument,
    optional_name,
    parse_duration,
    quiet_option,
    timeout_option,
)
from oars.cli.output import Column, as_yaml, emit, output_option, paint_phase, show_span, table, write
from oars.cli.progress import Progress
from oars.spec.status import Gone, GroupStatus, MemberStatus, Phase, Status

if TYPE_CHECKING:
    from oars.service import Cause, Change, Listing, Outcome, Report, Service
    from oars.spec.cluster import ClusterSpec

T = TypeVar("T")
EFFECT_COLOURS = {"head replaced": "red", "refused": "red", "rolled": "yellow", "drained": "yellow"}
# After `oars adapt`; {} is the cluster.
NOBODY_SCALES = (
    "Without an operator, the number of workers follows the load only while an oars command or a Python program uses "
    "the cluster.\nRun `oars top {} --watch` as long as it is to follow, or `oars operator install` and create the "
    "cluster again: then the operator does it."
)
PASSING = ("AGE", "EXPIRES")  # columns that time alone changes
MEMBERS = (
    Column[MemberStatus]("MEMBER", lambda m: m.id),
    Column[MemberStatus]("GROUP", lambda m: m.group, wide=True),
    Column[MemberStatus]("PHASE", lambda m: m.phase, paint=paint_phase),
    Column[MemberStatus]("PID", lambda m: m.pid or "-"),
    Column[MemberStatus]("ADDRESS", lambda m: m.address),
    Column[MemberStatus]("TASKS", lambda m: "-" if m.tasks is None else m.tasks, wide=True),
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
        _emit_new(found, options.service, output, progress, _memory_note(spec))


@click.command()
@optional_name
@cluster_options
@force_option
@output_option
@quiet_option
def apply(name: str | None, options: ClusterOptions, force: bool, output: str, quiet: bool) -> None:
    """Create a cluster or change the existing one, and wait until it matches the spec.

    `oars diff` shows the changes beforehand. A local cluster can change its numbers of workers,
    autoscaling, drain and lifetime only.
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
            _emit_new(applied.status, options.service, output, progress, _memory_note(spec))
        else:
            progress.close()
            emit_status(applied.status, options.service, output, members=False)


def _run(work: Coroutine[Any, Any, T], name: str, progress: Progress, is_new: Callable[[], bool]) -> T:
    """The result of `work`. A signal removes a cluster that `work` creates."""
    try:
        return signals.run(work, lambda _: progress(f"{name}: stopping") if is_new() else None)
    except Interrupted as error:
        if is_new():
            error.hint = f"Cluster {name!r} was removed again."
        raise


def _memory_note(spec: ClusterSpec) -> str:
    from oars.service.diagnostics import memory_note

    return memory_note(spec, os.environ)


def _emit_new(found: Status, service: Service, output: str, progress: Progress, note: str) -> None:
    """Print the status of a new cluster, what to know about it, and which commands to use next."""
    seconds = progress.elapsed
    progress.close()
    emit_status(found, service, output, members=False)
    name = service.reference(found.name, found.namespace)
    if found.mode == "direct":
        note = "It keeps running without an operator: Kubernetes replaces failed pods."
    note = f"{note}\n" if note else ""
    following = {
        f"oars shell {name}": "open Python with the client connected",
        f"oars exec {name} -- COMMAND": "run a program that finds the cluster",
        f"oars dashboard {name}": "open the engine's dashboard",
        f"oars status {name}": "show its status",
        f"oars down {name}": "stop it",
    }
    if not found.endpoints.dashboard:
        del following[f"oars dashboard {name}"]
    width = max(map(len, following))
    lines = "".join(f"\n  {command:{width}}  {purpose}" for command, purpose in following.items())
    progress.say(f"\n{found.name} is ready after {seconds:.1f} s. {note}Next:{lines}")


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


class ScaleCommand(click.Command):
    """Click would report a negative number as an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word in args:
            if word.startswith("-") and word[1:].isdigit():
                raise UsageError(f"{word} is not a valid number of workers.", "Use a whole number, 0 or more.")
        return super().parse_args(ctx, args)


@click.command(cls=ScaleCommand)
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
        seconds = None if no_wait else timeout
        found = signals.run(service.scale(name, timeout=seconds, progress=progress, note=progress.note, **change))
        if no_wait and has_leaving_workers(found):
            _say_if_idle(found, progress)
    emit_status(found, service, output, members=False)


@click.command()
@name_argument
@click.argument("members", nargs=-1, required=True, metavar="MEMBER...", shell_complete=completions.members)
@force_option
@click.option("--no-wait", is_flag=True, help="Return at once.")
@timeout_option("5m")
@location_options
@output_option
@quiet_option
def drain(  # noqa: PLR0913 (options)
    name: str,
    members: tuple[str, ...],
    force: bool,
    no_wait: bool,
    timeout: float,
    service: Service,
    output: str,
    quiet: bool,
) -> None:
    """Move data and work off workers, and replace them.

    A worker that holds what cannot move stays until that is released; `oars why` shows what it waits for.
    """
    with Progress(quiet=quiet) as progress:
        seconds = None if no_wait else timeout
        found = signals.run(service.drain(name, members, timeout=seconds, force=force, progress=progress))
        if no_wait:
            _say_if_idle(found, progress)
    emit_status(found, service, output, members=False)


def has_leaving_workers(found: Status) -> bool:
    workers = sum(member.role == "worker" for member in found.members)
    return workers > found.wanted or any(member.phase is Phase.STOPPING for member in found.members)


def _say_if_idle(found: Status, progress: Progress) -> None:
    if found.mode == "direct":
        progress.say("Without an operator, draining only progresses while an oars command is running.")


@click.command()
@name_argument
@click.argument("minimum", type=Integer(0), metavar="MIN", required=False)
@click.argument("maximum", type=Integer(1), metavar="MAX", required=False)
@click.option("--off", is_flag=True, help="End autoscaling and keep the present number of workers.")
@click.option("--group", metavar="GROUP", help="The worker group. Default: the first one; with --off: all.")
@click.option("--scale-down-delay", metavar="TIME", help="Keep the most workers needed within this time, such as 60s.")
@click.option("--horizon", metavar="TIME", help="Work of known duration is to be done within this time, such as 5s.")
@click.option(
    "--patience", metavar="TIME", help="Workers that cannot start for this long block their group, such as 2m."
)
@location_options
@output_option
def adapt(
    name: str,
    minimum: int | None,
    maximum: int | None,
    off: bool,
    service: Service,
    output: str,
    **options: str | None,
) -> None:
    """Let the number of workers follow the load, between MIN and MAX.

    Workers are added as soon as work waits for them, and removed when they were not needed for a while. They are
    drained before they are removed. `oars status` shows the reason of the last decision. On Kubernetes without an
    operator that happens only while an oars command or a Python program uses the cluster.
    """
    if off == (maximum is not None):
        raise UsageError("Give MIN and MAX, or --off.", f"For example: `oars adapt {name} 0 10`.")
    given = {option: value for option, value in options.items() if value is not None}
    found = signals.run(service.adapt(name, minimum, maximum, **given))
    if found.mode == "direct" and not off:
        say(NOBODY_SCALES.format(service.reference(name, found.namespace)))
    emit_status(found, service, output, members=False)


@click.command()
@click.argument("clusters", nargs=-1, metavar="[NAME]...", shell_complete=completions.clusters)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All clusters on this machine; with --place kubernetes, all clusters there.",
)
@click.option("--drain", is_flag=True, help="First wait until the work is done and its results are released.")
@click.option(
    "--drain-timeout", default="10m", metavar="TIME", callback=parse_duration,
    help="How long to wait for the work. A cluster that is not done by then continues to run. Default: 10m.",
)  # fmt: skip
@timeout_option("1m")
@location_options
@output_option
@quiet_option
def down(  # noqa: PLR0913 (options)
    clusters: tuple[str, ...],
    everything: bool,
    drain: bool,
    drain_timeout: float,
    timeout: float,
    service: Service,
    output: str,
    quiet: bool,
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
        seconds = drain_timeout if drain else None
        results = signals.run(service.stop(names, timeout, drain=seconds, progress=progress))
    stopped = [name for name, error in results.items() if error is None]
    text = "\n".join(f"{name} is stopped." for name in stopped)
    emit(output, [{"name": name} for name in stopped], stopped, lambda _: text)
    errors.raise_worst(results.values())


# list and show


@click.command()
@location_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Kubernetes: clusters in all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Continue until interrupted: print clusters that change.")
@click.option("--interval", default="2s", metavar="TIME", callback=parse_duration, help="With --watch. Default: 2s.")
@click.option("--gone", is_flag=True, help="List the clusters that ended by themselves within the last day, and why.")
@output_option
def ls(service: Service, all_namespaces: bool, watch: bool, interval: float, gone: bool, output: str) -> None:
    """List the clusters of this machine and, if there is a kubeconfig, of Kubernetes."""
    if all_namespaces and service.location.namespace:
        raise UsageError("--all-namespaces and --namespace contradict each other.", "Omit one of them.")
    if gone and watch:
        raise UsageError("--gone and --watch contradict each other.", "Omit one of them.")
    if watch:
        signals.run(_watch_list(service, all_namespaces, max(interval, 0.1), output))
        return
    if gone:
        _list_gone(service, output, all_namespaces=all_namespaces)
        return
    listing = signals.run(service.list(all_namespaces=all_namespaces))
    _say_problems(listing)
    found = listing.clusters
    if not found and output in ("table", "wide"):
        hint = "Create one with `oars up demo --engine dask`."
        say(f"There are no clusters {', nor '.join(listing.where)}. {hint}")
        return
    columns = _cluster_columns(service, all_namespaces=all_namespaces)
    data = [each.to_dict(members=False) for each in found]
    emit(output, data, [each.name for each in found], lambda wide: table(found, columns, wide))


def _say_problems(listing: Listing[Any]) -> None:
    for place, problem in listing.problems.items():
        say(f"{place.capitalize()} clusters are not listed: {problem}")


async def _watch_list(service: Service, all_namespaces: bool, interval: float, output: str) -> None:
    """Print a line for each cluster, and again when it changes or has gone."""
    columns = _cluster_columns(service, all_namespaces=all_namespaces)
    columns = [column for column in columns if output == "wide" or not column.wide]
    shown: dict[tuple[str, ...], tuple[Status, Sequence[object]]] = {}
    with_header, problems = True, Problems()
    while True:
        listing = await service.list(all_namespaces=all_namespaces)
        problems.say(listing)
        now: dict[tuple[str, ...], Status] = {(s.place, s.namespace, s.name): s for s in listing.clusters}
        left = {key: replace(old, phase=Phase.STOPPED, message="") for key, (old, _) in shown.items() if key not in now}
        rows = {**now, **left}
        values = {key: [c.value(each) for c in columns if c.title not in PASSING] for key, each in rows.items()}
        changed = [key not in shown or shown[key][1] != values[key] for key in rows]
        shown = {key: (each, values[key]) for key, each in now.items()}
        if any(changed):
            _print_changed(list(rows.values()), changed, columns, output, with_header=with_header)
            with_header = False
        await asyncio.sleep(interval)


def _print_changed(
    rows: Sequence[Status],
    changed: Sequence[bool],
    columns: Sequence[Column[Status]],
    output: str,
    *,
    with_header: bool,
) -> None:  # fmt: skip
    if output in ("table", "wide"):
        header, *lines = table(rows, columns, wide=True).splitlines()  # all columns stay for the whole watch
        write("\n".join([*([header] if with_header else []), *compress(lines, changed)]))
        return
    for each in compress(rows, changed):
        data = each.to_dict(members=False)
        formats = {"json": json.dumps(data, ensure_ascii=False), "yaml": as_yaml([data]), "name": each.name}
        write(formats[output])


class Problems:
    """Reports what keeps clusters from being listed, each problem once as long as it lasts."""

    def __init__(self) -> None:
        self._said: Mapping[str, str] = {}

    def say(self, listing: Listing[Any]) -> None:
        new = {place: text for place, text in listing.problems.items() if self._said.get(place) != text}
        _say_problems(replace(listing, problems=new))
        self._said = listing.problems


def _list_gone(service: Service, output: str, *, all_namespaces: bool) -> None:
    listing = signals.run(service.list_gone(all_namespaces=all_namespaces))
    _say_problems(listing)
    found, now = listing.clusters, time.time()
    if not found and output in ("table", "wide"):
        say(f"No cluster ended by itself within the last day {', nor '.join(listing.where)}.")
        return
    columns: Sequence[Column[Gone]] = (
        Column("NAME", lambda g: g.name),
        Column("ENGINE", lambda g: g.engine),
        Column("PLACE", lambda g: g.place),
        Column("NAMESPACE", lambda g: g.namespace, wide=not all_namespaces),
        Column("MODE", lambda g: g.mode, wide=True),
        Column("ENDED", lambda g: f"{show_span(now - g.ended)} ago"),
        Column("REASON", lambda g: g.reason),
        Column("MESSAGE", lambda g: g.message),
    )
    emit(output, [asdict(each) for each in found], [g.name for g in found], lambda wide: table(found, columns, wide))


def _expires(found: Status) -> str:
    """How long the cluster has left, and why; empty if nothing is going to end it."""
    if found.expires is None:
        return ""
    return f"in {show_span(max(0.0, found.expires.at - time.time()))} ({found.expires.reason})"


def _cluster_columns(service: Service, *, all_namespaces: bool) -> Sequence[Column[Status]]:
    return (
        Column("NAME", lambda s: s.name),
        Column("ENGINE", lambda s: s.engine),
        Column("PLACE", lambda s: f"{s.place} ({s.host})" if s.host else s.place),
        Column("NAMESPACE", lambda s: s.namespace, wide=not all_namespaces),
        Column("MODE", lambda s: s.mode, wide=True),
        Column("PHASE", lambda s: s.phase, paint=paint_phase),
        Column("WORKERS", lambda s: f"{s.ready}/{s.wanted}{_bounds(s.groups)}"),
        Column("AGE", lambda s: show_span(None if s.created is None else time.time() - s.created)),
        Column("EXPIRES", _expires),
        Column("CLIENT", lambda s: s.endpoints.client, wide=True),
        Column("DASHBOARD", lambda s: _dashboard(s, service)),
        Column("MESSAGE", lambda s: "" if s.phase is Phase.READY else s.message),
    )


def _bounds(groups: Sequence[GroupStatus]) -> str:
    """ " (MIN–MAX)" if groups are autoscaled; others count with the number that they have."""
    if all(group.max is None for group in groups):
        return ""
    bounds = [(group.wanted, group.wanted) if group.max is None else (group.min or 0, group.max) for group in groups]
    return f" ({sum(least for least, _ in bounds)}–{sum(most for _, most in bounds)})"


def _dashboard(found: Status, service: Service) -> str:
    """How to open the dashboard from here: its address, or the command that forwards it from Kubernetes or sends the
    cluster's token."""
    if not found.endpoints.dashboard or not (found.namespace or found.has_guarded_dashboard):
        return found.endpoints.dashboard
    return f"oars dashboard {service.reference(found.name, found.namespace)}"


@click.command()
@name_argument
@location_options
@output_option
def status(name: str, service: Service, output: str) -> None:
    """Show one cluster: phase, endpoints, groups and members.

    The keys of the JSON output are stable: name, engine, place, phase, reason, message, endpoints, groups, members,
    mode, namespace, expires, host and created.
    """
    emit_status(signals.run(service.get(name)).status, service, output)


def emit_status(found: Status, service: Service, output: str, *, members: bool = True) -> None:
    """Print a status. members: list them in the table."""
    dashboard = _dashboard(found, service)
    emit(
        output, found.to_dict(), [found.name],
        lambda wide: _status_text(found, dashboard, wide=wide, members=members or wide),
    )  # fmt: skip


def _status_text(found: Status, dashboard: str, *, wide: bool, members: bool) -> str:
    rows = {
        "Name": found.name,
        "Engine": f"{found.engine} on {found.place}",
        "Host": found.host,
        "Namespace": found.namespace,
        "Mode": found.mode,
        "Phase": paint_phase(found.phase) + (f" ({found.reason})" if found.reason else ""),
        "Message": found.message,
        "Workers": f"{found.ready}/{found.wanted} ready" + _groups_text(found.groups),
        "Expires": f"{_expires(found)}: {found.expires.message}" if found.expires else "",
        "Client": found.endpoints.client,
        "Dashboard": dashboard,
    }
    facts = "\n".join(f"{title + ':':<11}{value}" for title, value in rows.items() if value)
    return f"{facts}\n\n{table(found.members, MEMBERS, wide)}" if found.members and members else facts


def _groups_text(groups: Sequence[GroupStatus]) -> str:
    """ " (…)" with the numbers of several groups, and with the bounds and the last decision of autoscaled ones."""
    parts = []
    for group in groups:
        words = [f"{group.name} {group.ready}/{group.wanted}"] if len(groups) > 1 else []
        if group.max is not None:
            decision = f": {group.reason}. {group.message}" if group.reason else ""
            words.append(f"autoscaling {group.min or 0}–{group.max}{decision.rstrip('.')}")
        parts += [", ".join(words)] if words else []
    separator = "; " if any(group.max is not None for group in groups) else ", "
    return f" ({separator.join(parts)})" if parts else ""


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
