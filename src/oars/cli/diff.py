"""`oars diff`: what a description would change in a running cluster, before anything is changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import UsageError
from oars.cli import show, signals
from oars.cli.options import ClusterOptions, description_options, optional_name, where_options
from oars.cli.show import output_option

if TYPE_CHECKING:
    from oars.client.backends import Where
    from oars.places.kube.render.changes import Change
    from oars.spec.cluster import ClusterSpec


@click.command()
@optional_name
@description_options
@where_options
@output_option
def diff(name: str | None, options: ClusterOptions, where: Where, output: str) -> int:
    """Say what a description would change in a running cluster: in place, with workers replaced, or with the head.

    The exit code is 0 if nothing differs and 1 if something does.
    """
    from oars.cli import differences

    chosen, spec = wanted(name, options)
    found = signals.run(_look(chosen, spec, where))
    data = [asdict(change) for change in found]
    show.emit(output, data, [change.effect for change in found], lambda _: differences.text(chosen, found))
    return 1 if found else 0


def wanted(name: str | None, options: ClusterOptions) -> tuple[str, ClusterSpec]:
    chosen, manifest = options.named(name)
    if chosen is None:
        raise UsageError("No cluster is named.", "Say NAME, or metadata.name in the file.")
    return chosen, manifest.spec


async def _look(name: str, spec: Any, where: Where) -> tuple[Change, ...]:
    from oars.cli import differences

    found = await differences.look(name, spec, where)
    if found.home is not None:
        await found.home.close()
    return found.changes
