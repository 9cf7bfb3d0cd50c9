"""`oars ls`: all clusters, quickly, even if one of them is broken or Kubernetes is away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound, OarsError, UsageError
from oars.cli import show, signals
from oars.cli.failures import say
from oars.cli.options import kept, where_options
from oars.cli.show import Column, output_option
from oars.cli.status import workers
from oars.places.local.store import empty_report
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.client.backends import Where
    from oars.client.kubernetes import KubeBackend
    from oars.client.local_clusters import Kept

ANSWER_SECONDS = 5.0  # a keeper answers in milliseconds; one that was gone needs a second to come back
KUBERNETES_SECONDS = 3.0  # for all that is there together
UNREADABLE = (ValueError, KeyError, TypeError, OSError)

CLUSTERS = (
    Column[Status]("NAME", lambda s: s.name),
    Column[Status]("ENGINE", lambda s: s.engine),
    Column[Status]("PLACE", lambda s: s.place),
    Column[Status]("NAMESPACE", lambda s: s.namespace, wide=True),
    Column[Status]("MODE", lambda s: s.mode, wide=True),
    Column[Status]("PHASE", lambda s: s.phase, paint=show.phase),
    Column[Status]("WORKERS", workers),
    Column[Status]("CLIENT", lambda s: s.endpoints.client, wide=True),
    Column[Status]("DASHBOARD", lambda s: s.endpoints.dashboard),
    Column[Status]("MESSAGE", lambda s: "" if s.phase is Phase.READY else s.message),
)


@click.command()
@where_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Of Kubernetes: those in all namespaces.")
@output_option
def ls(where: Where, all_namespaces: bool, output: str) -> None:
    """List clusters of this machine and, if there is a kubeconfig, of Kubernetes."""
    if all_namespaces and where.namespace:
        raise UsageError("--all-namespaces and --namespace contradict each other.", "Leave one of them out.")
    found = signals.run(_all(where, everywhere=all_namespaces))
    if not found and output in ("table", "wide"):
        say("No clusters. Start one with `oars up NAME --engine dask`.")
        return
    listed = [status.to_dict(members=False) for status in found]
    show.emit(output, listed, [s.name for s in found], lambda wide: show.table(found, _columns(all_namespaces), wide))


def _columns(everywhere: bool) -> tuple[Column[Status], ...]:
    """The same name may stand in two namespaces."""
    return tuple(replace(each, wide=False) if everywhere and each.title == "NAMESPACE" else each for each in CLUSTERS)


async def _all(where: Where, *, everywhere: bool) -> list[Status]:
    """Both places at once."""
    from oars.client.backends import backend_for, is_configured

    if where.place not in (None, "local", "kubernetes"):
        backend_for(where.place, where, os.environ)  # says which places there are
    looks = []
    if where.place in (None, "local"):
        looks.append(_look(kept()))
    if where.place == "kubernetes" or (where.place is None and is_configured(where, os.environ)):
        looks.append(_look_everywhere(where) if everywhere else _look_far(where))
    return [status for found in await asyncio.gather(*looks) for status in found]


# this machine


async def _look(mine: Kept) -> list[Status]:
    found = await asyncio.gather(*(_one(mine, name) for name in mine.names()))
    return [status for status in found if status is not None]


async def _one(mine: Kept, name: str) -> Status | None:
    """How it is; what cannot be asked in time is told as it was last seen."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return (await mine.report(name)).status
    except NotFound:
        return None  # it went away while we looked
    except TimeoutError:
        return _last_seen(mine, name, "its keeper does not answer")
    except OarsError as error:
        return _last_seen(mine, name, error.message)
    except UNREADABLE as error:
        return _damaged(name, error)


def _last_seen(mine: Kept, name: str, why: str) -> Status:
    directory = mine.store.cluster(name)
    try:
        report = directory.read_report() or empty_report(directory.read_intent())
    except (OarsError, *UNREADABLE) as error:
        return _damaged(name, error)
    return replace(report.status, phase=Phase.DEGRADED, reason="KeeperSilent", message=f"As last seen: {why}.")


def _damaged(name: str, error: Exception) -> Status:
    message = f"Its record cannot be read ({type(error).__name__})."
    return Status(name, "?", "local", Phase.FAILED, "Damaged", message)


# Kubernetes


async def _look_far(where: Where) -> list[Status]:
    """The clusters of one namespace."""

    async def look(home: KubeBackend) -> list[Status]:
        async with asyncio.timeout(KUBERNETES_SECONDS):
            listed = await home.names()
        found = await asyncio.gather(*(_one_far(home, name) for name in listed))
        return [status for status in found if status is not None]

    return await _asked(where, look)


async def _look_everywhere(where: Where) -> list[Status]:
    async def look(home: KubeBackend) -> list[Status]:
        async with asyncio.timeout(KUBERNETES_SECONDS):
            namespaces = await home.namespaces()
        found = await asyncio.gather(*(_look_far(replace(where, namespace=each)) for each in namespaces))
        return [status for statuses in found for status in statuses]

    return await _asked(where, look)


async def _asked(where: Where, look: Callable[[KubeBackend], Awaitable[list[Status]]]) -> list[Status]:
    """Trouble there is told, and no reason to hide what is here; it is one if only Kubernetes was asked for."""
    from oars.client.backends import kube_backend

    home = kube_backend(where, os.environ)
    try:
        await home.log_in()
        return await look(home)
    except TimeoutError:
        say(f"Kubernetes is left out: it did not answer within {KUBERNETES_SECONDS:.0f} s.")
        return []
    except OarsError as error:
        if where.place is not None:
            raise
        say(f"Kubernetes is left out: {error.message}")
        return []
    finally:
        await home.close()


async def _one_far(home: KubeBackend, name: str) -> Status | None:
    from oars.cli import lookup

    try:
        return (await lookup.report_of(home, name, KUBERNETES_SECONDS)).status
    except NotFound:
        return None
    except OarsError as error:
        seen = home.last_seen(name)
        fresh = Status(name, "?", "kubernetes", Phase.PENDING, namespace=home.namespace_of(name))
        return replace(seen.status if seen else fresh, reason="Unseen", message=error.message)
