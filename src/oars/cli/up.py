"""`oars up`: a cluster that stays."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from oars.base.errors import Interrupted, StartFailed, TimedOut
from oars.cli import signals, status
from oars.cli.options import ClusterOptions, cluster_options, optional_name, quiet_option
from oars.cli.progress import Progress
from oars.cli.show import output_option

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster
    from oars.spec.status import Status

UNATTENDED = "It stays when this command ends: Kubernetes replaces pods that die, and `oars down` removes it.\n"


@click.command()
@optional_name
@cluster_options
@output_option
@quiet_option
def up(name: str | None, options: ClusterOptions, output: str, quiet: bool) -> None:
    """Start a cluster that stays until `oars down`.

    It is ready when this returns; what fails to start is taken away again.
    """
    start(name, options, output, quiet=quiet)


def start(name: str | None, options: ClusterOptions, output: str, *, quiet: bool) -> None:
    with Progress(quiet=quiet) as progress:
        cluster = options.cluster(name, progress=progress, tied=False, modules=os.getcwd())
        progress(f"{cluster.name}: starting")
        try:
            found = signals.run(_start(cluster), lambda _: progress(f"{cluster.name}: stopping"))
        except (Interrupted, StartFailed, TimedOut) as error:
            error.hint = f"{error.hint} The cluster {cluster.name!r} was taken away again.".strip()
            raise
        progress.close()
        status.emit_one(found, output, members=False)
        progress.say(_next(found, options, progress.elapsed))


async def _start(cluster: AsyncCluster) -> Status:
    await cluster.start()
    try:
        return await cluster.status()
    except asyncio.CancelledError:
        await cluster.stop()  # a signal between ready and told: the user believes it was interrupted
        raise
    finally:
        await cluster.close()


def _next(found: Status, options: ClusterOptions, seconds: float) -> str:
    from oars.cli.lookup import where_words

    name = found.name + (where_words(options.where, found.namespace) if found.place == "kubernetes" else "")
    stays = UNATTENDED if found.mode == "direct" else ""
    return (
        f"\n{found.name} is ready after {seconds:.1f} s. {stays}Next:\n"
        f"  oars shell {name}              Python with the client connected\n"
        f"  oars exec {name} -- COMMAND    a program that finds the cluster\n"
        f"  oars status {name}             how it is\n"
        f"  oars down {name}               stop it"
    )
