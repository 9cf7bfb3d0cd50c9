"""`oars down`: stop clusters and remove all that is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.cli import fail, names, running, show
from oars.cli.options import kept, quiet_option, timeout_option
from oars.cli.progress import Progress
from oars.cli.show import output_option
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.client.kept import Kept


@click.command()
@click.argument("clusters", nargs=-1, metavar="[NAME]...", shell_complete=names.clusters)
@click.option("--all", "everything", is_flag=True, help="All clusters.")
@timeout_option("1m")
@output_option
@quiet_option
def down(clusters: tuple[str, ...], everything: bool, timeout: str, output: str, quiet: bool) -> None:
    """Stop clusters and remove all that is theirs: processes, files, ports."""
    if bool(clusters) == everything:
        raise UsageError("Name the clusters to stop, or say --all." if not clusters else "Either names or --all.")
    mine = kept()
    seconds = _seconds(timeout)
    wanted = list(dict.fromkeys(clusters)) or mine.names()
    with Progress(quiet=quiet) as progress:
        errors = running.run(_stop_all(mine, wanted, seconds, progress))
    stopped = [name for name in wanted if name not in errors]
    show.emit(output, [{"name": name} for name in stopped], stopped, lambda _: _text(stopped))
    _raise(list(errors.values()))


async def _stop_all(mine: Kept, wanted: Sequence[str], seconds: float, progress: Progress) -> dict[str, OarsError]:
    """At once; what one of them does not manage is no reason to leave the others."""
    if wanted:
        progress(f"stopping {', '.join(wanted)}")
    found = await asyncio.gather(*(_stop(mine, name, seconds) for name in wanted))
    return {name: error for name, error in zip(wanted, found, strict=True) if error is not None}


async def _stop(mine: Kept, name: str, seconds: float) -> OarsError | None:
    try:
        mine.find(name)
        if await asyncio.to_thread(mine.stop, name, wait=seconds):
            return None
    except OarsError as error:
        return error
    hint = f"Its keeper goes on with it; `oars why {name}` says what it waits for."
    return TimedOut(f"The cluster {name!r} did not stop within {seconds:.0f} s.", hint)


def _seconds(timeout: str) -> float:
    try:
        return duration(timeout)
    except ValueError as error:
        raise SpecError(f"--timeout: {error}.") from error


def _text(stopped: Sequence[str]) -> str:
    return "\n".join(f"{name} is stopped." for name in stopped)


def _raise(errors: Sequence[OarsError]) -> None:
    """All are told; the gravest is the exit code: not stopped comes before not found."""
    ranked = sorted(errors, key=lambda error: isinstance(error, NotFound))
    for error in ranked[1:]:
        fail.tell(error)
    if ranked:
        raise ranked[0]
