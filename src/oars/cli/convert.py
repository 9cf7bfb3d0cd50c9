"""`oars convert`, and the report of what a foreign manifest asks for in vain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import SpecError
from oars.cli.errors import say
from oars.cli.output import emit_manifests, manifest_output_option

if TYPE_CHECKING:
    from oars.service.foreign import Unmet


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--strict", is_flag=True, help="Fail if a field is not honoured.")
@manifest_output_option
def convert(file: str, strict: bool, output: str) -> None:
    """Print manifests of other projects as ComputeClusters and ComputeJobs.

    FILE has MarsJobs, RayClusters, RayJobs, DaskClusters, DaskJobs and what belongs to them, or Deployments of Ray; -
    reads stdin. Other objects are printed as they are. Fields that are not honoured are listed on stderr.

    \b
    oars convert rayjob.yaml | kubectl apply -f -
    """
    from oars.service import foreign

    found = foreign.convert_text(*read_file(file))
    report(found.unmet, file, strict=strict)
    emit_manifests(output, found.objects)


def read_file(file: str) -> tuple[str, str]:
    """The text of a file, or of stdin for -, and its name for errors."""
    from oars.service.specs import read_text

    return (sys.stdin.read(), "stdin") if file == "-" else (read_text(Path(file)), file)


def take_foreign(content: str, source: str, *kinds: str, strict: bool) -> dict[str, Any] | None:
    """The one object of the first of these kinds in a file of another project; None: the file is ours. Prints what is
    not honoured; strict: raises SpecError for it."""
    from oars.service import foreign

    found = foreign.read_foreign(content, source)
    if found is None:
        return None
    taken, unmet = foreign.one(found, kinds, source)
    report(unmet, source, strict=strict)
    return taken


def report(unmet: Sequence[Unmet], source: str, *, strict: bool) -> None:
    if strict and unmet:
        lines = tuple(str(each) for each in unmet)
        raise SpecError(f"{source}: {len(lines)} fields are not honoured.", "Remove them, or omit --strict.", lines)
    for each in unmet:
        say(f"{click.style('not honoured:', fg='yellow')} {each}")
