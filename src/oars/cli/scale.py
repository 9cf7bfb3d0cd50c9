"""`oars scale`: another number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oars.cli import signals, status
from oars.cli.options import name_argument, quiet_option, timeout_option, where_options
from oars.cli.progress import Progress
from oars.cli.show import output_option

if TYPE_CHECKING:
    from oars.client.backends import Where
    from oars.spec.status import Status

UNATTENDED = "Without an operator it goes on while a command of Oars looks at it: workers drain before they go."


@click.command()
@name_argument
@click.argument("workers", type=int, metavar="N")
@click.option("--group", metavar="GROUP", help="Of this worker group; the first one if it is not named.")
@click.option("--force", is_flag=True, help="Remove workers at once, with what they hold.")
@click.option("--no-wait", is_flag=True, help="Ask for it and return.")
@timeout_option("2m")
@where_options
@output_option
@quiet_option
def scale(name: str, output: str, quiet: bool, no_wait: bool, **wanted: Any) -> None:
    """Change the number of workers and wait until it is so.

    Workers that go hand over what they hold first; one that cannot is kept, and `oars why` says what for.
    """
    with Progress(quiet=quiet) as progress:
        found = signals.run(_scale(name, Wanted(**wanted), progress, wait=not no_wait))
        progress.close()
        status.emit_one(found, output, members=False)


@dataclass(frozen=True)
class Wanted:
    workers: int
    group: str | None
    force: bool
    timeout: str
    where: Where


async def _scale(name: str, wanted: Wanted, progress: Progress, *, wait: bool) -> Status:
    from oars.cli import lookup

    cluster = await lookup.attach(name, wanted.where, progress)
    try:
        progress(f"{name}: asking for {wanted.workers} workers")
        await cluster.scale(wanted.workers, group=wanted.group, force=wanted.force)
        if wait:
            return await cluster.wait(timeout=wanted.timeout)
    finally:
        await cluster.close()
    found = (await lookup.report(name, wanted.where)).status
    if found.mode == "direct":
        progress.say(UNATTENDED)
    return found
