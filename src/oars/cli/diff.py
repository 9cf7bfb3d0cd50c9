"""`oars diff`: show what a spec would change in a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from oars.cli import signals
from oars.cli.options import ClusterOptions, location_options, optional_name, spec_options
from oars.cli.output import emit, output_option

if TYPE_CHECKING:
    from oars.service import Change, Service

COLOURS = {"head replaced": "red", "refused": "red", "rolled": "yellow", "drained": "yellow"}


@click.command()
@optional_name
@spec_options
@location_options
@output_option
def diff(name: str | None, options: ClusterOptions, service: Service, output: str) -> int:
    """Show what a spec would change in a running cluster, and which workers or head it would replace.

    The exit code is 0 if nothing differs and 1 if something does.
    """
    chosen, spec = options.required_name_and_spec(name)
    found = signals.run(service.diff(chosen, spec))
    data = [asdict(change) for change in found]
    emit(output, data, [change.effect for change in found], lambda _: as_text(chosen, found))
    return 1 if found else 0


def as_text(name: str, changes: Sequence[Change]) -> str:
    if not changes:
        return f"{name} matches the spec."
    lines = [f"{name}:"]
    for change in changes:
        lines.append(f"  {click.style(f'{change.effect}:', fg=COLOURS.get(change.effect, 'green'))} {change.message}")
        lines += [f"      {line}" for line in change.lines]
    return "\n".join(lines)
