"""`oars dashboard`: the engine's own page in a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from oars.base.errors import Interrupted, NotFound, OarsError, UsageError
from oars.cli import show, signals
from oars.cli.failures import INTERRUPTED, say
from oars.cli.options import name_argument, where_options

if TYPE_CHECKING:
    from oars.client.backend import Backend
    from oars.client.backends import Where
    from oars.client.kubernetes import KubeBackend
    from oars.engines.base import Access

_PORT = re.compile(r"\$\(head\.(?!host\))([\w-]+)\)")
Port = click.IntRange(1, 65535)


@click.command()
@name_argument
@click.option("--open/--no-open", "browse", default=True, help="Open a browser; --no-open only prints the address.")
@click.option("--port", type=Port, metavar="PORT", help="Kubernetes: the port on this machine. Default: a free one.")
@where_options
def dashboard(name: str, browse: bool, port: int | None, where: Where) -> int:
    """Open the engine's own page. On Kubernetes a way to it is kept open until Ctrl-C."""
    try:
        signals.run(_show(name, where, port, browse=browse))
    except Interrupted as end:
        if end.exit_code != INTERRUPTED:
            raise
    return 0


async def _show(name: str, where: Where, port: int | None, *, browse: bool) -> None:
    from oars.cli import lookup

    async with lookup.home_of(name, where) as home:
        kube = lookup.in_kubernetes(home)
        if kube is None:
            access = await _here(home, name, port)
            _tell(access.dashboard, f"cat {access.dashboard_secret}" if access.dashboard_secret else "", browse=browse)
            return
        command = await _secret_command(kube, name, where)
        async with _forward(kube, name, port or 0) as address:
            _tell(address, command, browse=browse)
            say("Ctrl-C ends it.")
            await asyncio.Event().wait()


async def _secret_command(home: KubeBackend, name: str, where: Where) -> str:
    """What prints the secret that the page asks for, which is a file in the head's pod; empty if it asks for none."""
    from oars.cli import in_cluster, lookup
    from oars.places.kube.render.values import SECRETS

    secret = (await in_cluster.described(home, name)).shape.dashboard_secret
    words = lookup.where_words(where, home.namespace_of(name))
    return f"oars exec {name}{words} -- cat {SECRETS}/{secret}" if secret else ""


async def _here(home: Backend, name: str, port: int | None) -> Access:
    if port is not None:
        raise UsageError("--port is about Kubernetes, and the cluster runs on this machine.", "Leave it out.")
    await home.report(name)  # a dead keeper is replaced before anyone relies on the cluster
    access = home.access(name)
    if not access.dashboard:
        raise _missing(name)
    return access


@asynccontextmanager
async def _forward(home: KubeBackend, name: str, port: int) -> AsyncIterator[str]:
    """A port of this machine that leads to the page, whichever pod the head is; its address."""
    from oars.cli import in_cluster
    from oars.kube.streams import Forwarder
    from oars.places.kube.render.values import head_values
    from oars.plan.fill import fill

    cluster = await in_cluster.described(home, name)
    page = cluster.shape.endpoints.get("dashboard", "")
    found = _PORT.search(page)
    if found is None:
        raise _missing(name)
    served = next(each for each in cluster.shape.head.process.ports if each.name == found[1])

    async def choose() -> tuple[str, str, int]:
        try:
            spot = await in_cluster.spot_of(home, name)
        except NotFound as error:
            raise OSError(error.message) from error
        return spot.namespace, spot.pod, served.default

    await in_cluster.spot_of(home, name)  # says at once if there is no head
    forwarder = Forwarder(home.client, choose, port)
    try:
        mine = await forwarder.start()
    except OSError as error:
        raise OarsError(f"The port {port} cannot be used: {error.strerror}.", "Choose another with --port.") from error
    try:
        yield fill(page, head_values("127.0.0.1", cluster.shape, {served.name: mine}))
    finally:
        await forwarder.close()


def _missing(name: str) -> NotFound:
    return NotFound(f"The engine of {name!r} has no page of its own.", f"`oars status {name}` says how it is.")


def _tell(address: str, secret_command: str, *, browse: bool) -> None:
    show.write(address)
    if secret_command:
        say(f"The page asks for the cluster's token. This prints it: {secret_command}")
    if browse:
        import webbrowser

        if not webbrowser.open(address):
            say("No browser could be opened; open the address yourself.")
