"""`oars why`: explain why a cluster does not match its spec."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from oars.cli import output as out
from oars.cli import signals
from oars.cli.options import location_options, name_argument
from oars.cli.output import output_option
from oars.spec.status import Phase

if TYPE_CHECKING:
    from oars.service import Cause, Report, Service


@click.command()
@name_argument
@location_options
@output_option
def why(name: str, service: Service, output: str) -> None:
    """Explain why a cluster does not match its spec: causes, hints and the relevant log lines."""
    report = signals.run(service.get(name))
    causes = [asdict(cause) for cause in report.causes]
    out.emit(output, causes, [cause.reason for cause in report.causes], lambda _: _text(report))


def _text(report: Report) -> str:
    status = report.status
    summary = f"{status.name} is {out.phase(status.phase)}, {status.ready} of {status.wanted} workers ready."
    if report.causes:
        return "\n\n".join([summary, *map(_cause, report.causes)])
    if status.phase is Phase.READY:
        return f"{summary} Nothing is wrong."
    return f"{summary}\n{status.message}" if status.message else summary


def _cause(cause: Cause) -> str:
    lines = [f"{cause.reason}: {cause.message}"]
    if cause.hint:
        lines.append(f"  What to do: {cause.hint}")
    if cause.lines:
        lines.append("  Last lines of its log:")
        lines += [f"    {line}" for line in cause.lines]
    return "\n".join(lines)
