"""`oars down`: stop clusters and remove all that is theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.cli import failures, names, show, signals
from oars.cli.options import quiet_option, timeout_option, where_options
from oars.cli.progress import Progress
from oars.cli.show import output_option
from oars.spec.resources import duration

if TYPE_CHECKING:
    from oars.client.backends import Where


@click.command()
@click.argument("clusters", nargs=-1, metavar="[NAME]...", shell_complete=names.clusters)
@click.option("--all", "everything", is_flag=True, help="All clusters of this machine, or of --place kubernetes.")
@timeout_option("1m")
@where_options
@output_option
@quiet_option
def down(clusters: tuple[str, ...], everything: bool, timeout: str, where: Where, output: str, quiet: bool) -> None:
    """Stop clusters and remove all that is theirs: processes, files, ports; on Kubernetes all objects."""
    if bool(clusters) == everything:
        raise UsageError("Name the clusters to stop, or say --all." if not clusters else "Either names or --all.")
    seconds = _seconds(timeout)
    with Progress(quiet=quiet) as progress:
        wanted, errors = signals.run(_stop_all(list(dict.fromkeys(clusters)), where, seconds, progress))
    stopped = [name for name in wanted if name not in errors]
    show.emit(output, [{"name": name} for name in stopped], stopped, lambda _: _text(stopped))
    _raise(list(errors.values()))


async def _stop_all(
    named: Sequence[str], where: Where, seconds: float, progress: Progress
) -> tuple[Sequence[str], dict[str, OarsError]]:
    """At once; what one of them does not manage is no reason to leave the others."""
    wanted = named or await _everything(where)
    if wanted:
        progress(f"stopping {', '.join(wanted)}")
    found = await asyncio.gather(*(_stop(name, where, seconds) for name in wanted))
    return wanted, {name: error for name, error in zip(wanted, found, strict=True) if error is not None}


async def _everything(where: Where) -> list[str]:
    """Never in Kubernetes unless that was said: others may have clusters there."""
    from oars.client.backends import backend_for

    home = backend_for(where.place or "local", where, os.environ)
    try:
        return await home.names()
    finally:
        await home.close()


async def _stop(name: str, where: Where, seconds: float) -> OarsError | None:
    from oars.cli import lookup

    try:
        async with lookup.home_of(name, where, remains=True) as home:
            if await home.stop(name, wait=seconds):
                return None
    except OarsError as error:
        return error
    hint = f"It is being stopped and will go; `oars why {name}` says what it waits for."
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
        failures.tell(error)
    if ranked:
        raise ranked[0]
