"""`oars doctor`: check this machine."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from oars.cli.output import Column, emit, output_option, table
from oars.service.diagnostics import Finding, examine

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
COLUMNS = (
    Column[Finding]("", lambda f: f.level, paint=lambda text: click.style(text, fg=COLOURS[text.strip()])),
    Column[Finding]("CHECK", lambda f: f.check),
    Column[Finding]("FOUND", lambda f: f"{f.found} {f.hint}".strip()),
)


@click.command()
@output_option
def doctor(output: str) -> int:
    """Check this machine: Python, engines, directories, memory, ports, unhealthy clusters and leftovers.

    Each line is ok, warn or fail, with a hint. -o name lists the checks that are not ok. The exit code is 1 if a check
    fails.
    """
    found = examine(os.environ)
    names = [finding.check for finding in found if finding.level != "ok"]
    emit(output, [asdict(finding) for finding in found], names, lambda _: table(found, COLUMNS, wide=True))
    return 1 if any(finding.level == "fail" for finding in found) else 0
