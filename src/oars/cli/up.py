"""`oars up`: create a cluster that outlives the command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from oars.base.errors import Interrupted, StartFailed, TimedOut
from oars.cli import signals, status
from oars.cli.options import ClusterOptions, cluster_options, optional_name, quiet_option, repeat_location
from oars.cli.output import output_option
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.spec.status import Status


@click.command()
@optional_name
@cluster_options
@output_option
@quiet_option
def up(name: str | None, options: ClusterOptions, output: str, quiet: bool) -> None:
    """Create a cluster that runs until `oars down`.

    Returns when the cluster is ready. A cluster that fails to start is removed again.
    """
    create(name, options, output, quiet=quiet)


def create(name: str | None, options: ClusterOptions, output: str, *, quiet: bool) -> None:
    chosen, spec = options.new_name_and_spec(name)
    with Progress(quiet=quiet) as progress:
        progress(f"{chosen}: starting")
        creating = options.service.create(chosen, spec, timeout=options.timeout, progress=progress, modules=os.getcwd())
        try:
            found = signals.run(creating, lambda _: progress(f"{chosen}: stopping"))
        except (Interrupted, StartFailed, TimedOut) as error:
            error.hint = f"{error.hint} Cluster {chosen!r} was removed again.".strip()
            raise
        progress.close()
        status.emit_status(found, output, members=False)
        progress.say(_next_commands(found, options, progress.elapsed))


def _next_commands(found: Status, options: ClusterOptions, seconds: float) -> str:
    name = found.name + (repeat_location(options.location, found.namespace) if found.place == "kubernetes" else "")
    note = ""
    if found.mode == "direct":
        note = "It keeps running without an operator: Kubernetes replaces failed pods.\n"
    return (
        f"\n{found.name} is ready after {seconds:.1f} s. {note}Next:\n"
        f"  oars shell {name}              open Python with the client connected\n"
        f"  oars exec {name} -- COMMAND    run a program that finds the cluster\n"
        f"  oars status {name}             show its status\n"
        f"  oars down {name}               stop it"
    )
