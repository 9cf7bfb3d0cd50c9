"""`oars down`: stop clusters and remove everything that belongs to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound, OarsError, UsageError
from oars.cli import completions, errors, signals
from oars.cli.options import location_options, quiet_option, timeout_option
from oars.cli.output import emit, output_option
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.service import Service


@click.command()
@click.argument("clusters", nargs=-1, metavar="[NAME]...", shell_complete=completions.clusters)
@click.option("--all", "everything", is_flag=True, help="All local clusters, or with --place kubernetes all of those.")
@timeout_option("1m")
@location_options
@output_option
@quiet_option
def down(
    clusters: tuple[str, ...], everything: bool, timeout: float, service: Service, output: str, quiet: bool
) -> None:
    """Stop clusters and remove their processes, files and ports, or on Kubernetes their objects."""
    if not clusters and not everything:
        raise UsageError("No cluster is named.", "Give one or more names, or --all.")
    if clusters and everything:
        raise UsageError("Names and --all contradict each other.", "Omit one of them.")
    with Progress(quiet=quiet) as progress:
        results = signals.run(_stop(clusters, service, timeout, progress))
    stopped = [name for name, error in results.items() if error is None]
    emit(
        output, [{"name": name} for name in stopped], stopped,
        lambda _: "\n".join(f"{name} is stopped." for name in stopped),
    )  # fmt: skip
    failed = [error for error in results.values() if error is not None]
    if failed:
        failed.sort(key=lambda error: error.exit_code == NotFound.exit_code)  # a missing cluster is the least severe
        for error in failed[1:]:
            errors.print_error(error)
        raise failed[0]


async def _stop(
    clusters: Sequence[str], service: Service, seconds: float, progress: Progress
) -> Mapping[str, OarsError | None]:
    names = clusters or await service.names()
    if names:
        progress(f"stopping {', '.join(names)}")
    return await service.stop(names, seconds)
