"""`oars apply`: make a cluster, or change the one that is there to what is described."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oars.cli import signals, status
from oars.cli.diff import wanted
from oars.cli.options import ClusterOptions, cluster_options, optional_name, quiet_option
from oars.cli.progress import Progress
from oars.cli.show import output_option

if TYPE_CHECKING:
    from oars.client.backend import Backend
    from oars.spec.cluster import ClusterSpec
    from oars.spec.status import Status


@click.command()
@optional_name
@cluster_options
@click.option("--force", is_flag=True, help="Workers that go do so at once, with what they hold.")
@output_option
@quiet_option
def apply(name: str | None, options: ClusterOptions, force: bool, output: str, quiet: bool) -> None:
    """Make a cluster or change the one of that name, and wait until it is as described.

    `oars diff` says beforehand what a change costs. Clusters of this machine can change their numbers of workers only.
    """
    from oars.cli.up import start

    chosen, spec = wanted(name, options)
    with Progress(quiet=quiet) as progress:
        found = signals.run(_change(chosen, spec, options, progress, force=force))
    if found is None:
        start(chosen, options, output, quiet=quiet)
    else:
        status.emit_one(found, output, members=False)


async def _change(
    name: str, spec: ClusterSpec, options: ClusterOptions, progress: Progress, *, force: bool
) -> Status | None:
    """How it is afterwards. None: there is no such cluster yet."""
    from oars.cli import differences, lookup

    assert options.where is not None
    found = await differences.look(name, spec, options.where)
    if found.home is None:
        return None
    try:
        differences.check(name, found.changes)
        if found.changes:
            progress.note(differences.text(name, found.changes))
            await _carry_out(found.home, name, spec, force=force)
    finally:
        await found.home.close()
    where = differences.whereabouts(name, spec, options.where)
    cluster = await lookup.attach(name, where, progress)
    try:
        return await cluster.wait(timeout=options.timeout)
    finally:
        await cluster.close()


async def _carry_out(home: Backend, name: str, spec: ClusterSpec, *, force: bool) -> None:
    from oars.cli import lookup

    kube = lookup.in_kubernetes(home)
    if kube is not None:
        await kube.change(name, spec.model_copy(update={"place": "kubernetes"}), force=force)
        return
    before = await home.spec(name)
    for group in spec.workers:
        known = before.group(group.name)
        if known is not None and known.replicas != group.replicas:
            await home.scale(name, group.replicas, group.name, force=force)
