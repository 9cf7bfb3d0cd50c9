"""`oars scale`: another number of workers."""

from __future__ import annotations

import click

from oars.cli import running, status
from oars.cli.options import name_argument, quiet_option, timeout_option
from oars.cli.progress import Progress
from oars.cli.show import output_option
from oars.client.cluster import AsyncCluster
from oars.spec.status import Status


@click.command()
@name_argument
@click.argument("workers", type=int, metavar="N")
@click.option("--group", metavar="GROUP", help="Of this worker group; the first one if it is not named.")
@click.option("--force", is_flag=True, help="Remove workers at once, with what they hold.")
@click.option("--no-wait", is_flag=True, help="Ask for it and return.")
@timeout_option("2m")
@output_option
@quiet_option
def scale(output: str, quiet: bool, no_wait: bool, timeout: str, **wanted: object) -> None:
    """Change the number of workers and wait until it is so.

    Workers that go hand over what they hold first; one that cannot is kept, and `oars why` says what for.
    """
    with Progress(quiet=quiet) as progress:
        found = running.run(_scale(progress, "" if no_wait else timeout, **wanted))  # type: ignore[arg-type]
        progress.close()
        status.emit_one(found, output)


async def _scale(
    progress: Progress, timeout: str, *, name: str, workers: int, group: str | None, force: bool
) -> Status:
    cluster = await AsyncCluster.attach(name, progress=progress)
    progress(f"{name}: asking for {workers} workers")
    await cluster.scale(workers, group=group, force=force)
    return await cluster.wait(timeout=timeout) if timeout else await cluster.status()
