"""`oars scale`: change the number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oars.cli import signals, status
from oars.cli.options import location_options, name_argument, quiet_option, timeout_option
from oars.cli.output import output_option
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.service import Service


@click.command()
@name_argument
@click.argument("workers", type=int, metavar="N")
@click.option("--group", metavar="GROUP", help="The worker group. Default: the first one.")
@click.option("--force", is_flag=True, help="Remove workers immediately and discard their data.")
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
        progress.close()
        status.emit_status(found, output, members=False)
