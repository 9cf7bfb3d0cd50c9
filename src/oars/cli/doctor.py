"""`oars doctor`: is this machine fit, and has anything been left behind?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import click

from oars.base.errors import OarsError
from oars.cli import leftovers, machine, show
from oars.cli.machine import Finding
from oars.cli.options import kept
from oars.cli.show import Column, output_option
from oars.client.local_clusters import Kept

_PAINT = {"ok": "green", "warn": "yellow", "fail": "red"}


def _paint(text: str) -> str:
    return click.style(text, fg=_PAINT[text.strip()])


COLUMNS = (
    Column[Finding]("", lambda f: f.level, paint=_paint),
    Column[Finding]("CHECK", lambda f: f.check),
    Column[Finding]("FOUND", lambda f: f"{f.found} {f.hint}".strip()),
)


@click.command()
@output_option
def doctor(output: str) -> int:
    """Check this machine: Python, engines, directories, memory, ports, and what was left behind.

    Each line is ok, warn or fail and says what to do. The exit code is 1 if anything fails.
    """
    found = list(_all(kept()))
    data = [asdict(finding) for finding in found]
    # -o name lists what needs attention, so that a script can ask for it
    wrong = [f.check for f in found if f.level != "ok"]
    show.emit(output, data, wrong, lambda _: show.table(found, COLUMNS, wide=True))
    return 1 if any(finding.level == "fail" for finding in found) else 0


def _all(mine: Kept) -> Iterable[Finding]:
    for examine in (machine.examine, leftovers.examine):
        try:
            yield from examine(mine)
        except OarsError as error:  # what one part cannot find out is itself a finding
            yield Finding("fail", "clusters", error.message, error.hint)
        except OSError as error:
            yield Finding("fail", "clusters", f"Cannot be looked at: {error.strerror}: {error.filename}.")
