"""`oars version`: show versions."""

from __future__ import annotations

import platform

import click

import oars
from oars.cli.output import emit, output_option


@click.command()
@output_option
def version(output: str) -> None:
    """Show the versions of Oars, Python and the system."""
    data = {"oars": oars.__version__, "python": platform.python_version(), "system": platform.platform()}
    text = "\n".join(f"{name:<8}{value}" for name, value in data.items())
    emit(output, data, [oars.__version__], lambda _: text)
