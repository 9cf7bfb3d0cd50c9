"""`oars apply`: create a cluster, or change it to a spec."""

from __future__ import annotations

import click

from oars.cli import diff, signals, status
from oars.cli.options import ClusterOptions, cluster_options, optional_name, quiet_option
from oars.cli.output import output_option
from oars.cli.progress import Progress
from oars.cli.up import create


@click.command()
@optional_name
@cluster_options
@click.option("--force", is_flag=True, help="Remove workers immediately and discard their data.")
@output_option
@quiet_option
def apply(name: str | None, options: ClusterOptions, force: bool, output: str, quiet: bool) -> None:
    """Create a cluster or change the existing one, and wait until it matches the spec.

    `oars diff` shows the changes beforehand. A local cluster can only change its numbers of workers.
    """
    chosen, spec = options.required_name_and_spec(name)
    with Progress(quiet=quiet) as progress:
        applying = options.service.apply(
            chosen, spec, timeout=options.timeout, force=force, progress=progress,
            on_changes=lambda changes: progress.note(diff.as_text(chosen, changes)),
        )  # fmt: skip
        found = signals.run(applying)
    if found is None:
        create(chosen, options, output, quiet=quiet)
    else:
        status.emit_status(found, output, members=False)
