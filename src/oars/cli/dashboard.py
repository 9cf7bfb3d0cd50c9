"""`oars dashboard`: open the engine's dashboard in a browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from oars.base.errors import Interrupted
from oars.cli import signals
from oars.cli.errors import INTERRUPTED, say
from oars.cli.options import location_options, name_argument, repeat_location
from oars.cli.output import write

if TYPE_CHECKING:
    from oars.service import Dashboard, Location, Service

Port = click.IntRange(1, 65535)


@click.command()
@name_argument
@click.option("--open/--no-open", "browse", default=True, help="Open a browser; --no-open only prints the URL.")
@click.option("--port", type=Port, metavar="PORT", help="Kubernetes: the local port. Default: a free one.")
@location_options
def dashboard(name: str, browse: bool, port: int | None, service: Service) -> int:
    """Open the engine's dashboard. On Kubernetes it is forwarded to this machine until Ctrl-C."""
    try:
        signals.run(_open(name, service, port, browse=browse))
    except Interrupted as end:
        if end.exit_code != INTERRUPTED:
            raise
    return 0


async def _open(name: str, service: Service, port: int | None, *, browse: bool) -> None:
    async with service.forward_dashboard(name, port) as found:
        _print(found, secret_command(name, found, service.location), browse=browse)
        if found.forwarded:
            say("Press Ctrl-C to stop forwarding.")
            await asyncio.Event().wait()


def secret_command(name: str, found: Dashboard, location: Location) -> str:
    """The command that prints the secret which the dashboard asks for; empty if it asks for none."""
    if not found.secret_file:
        return ""
    if not found.forwarded:
        return f"cat {found.secret_file}"
    return f"oars exec {name}{repeat_location(location, found.namespace)} -- cat {found.secret_file}"


def _print(found: Dashboard, command: str, *, browse: bool) -> None:
    write(found.url)
    if command:
        say(f"The dashboard asks for the cluster's token, which this command prints: {command}")
    if browse:
        import webbrowser

        if not webbrowser.open(found.url):
            say("No browser could be opened; open the URL yourself.")
