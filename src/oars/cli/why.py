"""`oars why`: what is wrong, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from oars.cli import show, signals
from oars.cli.options import name_argument, where_options
from oars.cli.show import output_option
from oars.spec.status import Phase

if TYPE_CHECKING:
    from oars.client.backends import Where
    from oars.model import Cause
    from oars.places.report import Report


@click.command()
@name_argument
@where_options
@output_option
def why(name: str, where: Where, output: str) -> None:
    """Say why a cluster is not as wanted: causes, what to do, the log lines that matter."""
    from oars.cli import lookup

    report = signals.run(lookup.report(name, where))
    causes = [asdict(cause) for cause in report.causes]
    show.emit(output, causes, [cause.reason for cause in report.causes], lambda _: _text(report))


def _text(report: Report) -> str:
    status = report.status
    head = f"{status.name} is {show.phase(status.phase)}, {status.ready} of {status.wanted} workers are ready."
    if report.causes:
        return "\n\n".join([head, *(_cause(cause, status.name) for cause in report.causes)])
    if status.phase is Phase.READY:
        return f"{head} Nothing is wrong."
    return f"{head}\n{status.message}" if status.message else head


def _cause(cause: Cause, name: str) -> str:
    lines = [f"{cause.reason}: {cause.message}"]
    if cause.hint:
        lines.append(f"  What to do: {cause.hint.replace('oars logs NAME', f'oars logs {name}')}")
    if cause.lines:
        lines.append("  Last lines of its log:")
        lines += [f"    {line}" for line in cause.lines]
    return "\n".join(lines)
