"""`oars ls`: all clusters, quickly, even if one of them is broken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound, OarsError
from oars.cli import running, show
from oars.cli.fail import say
from oars.cli.options import kept
from oars.cli.show import Column, output_option
from oars.cli.status import workers
from oars.places.local.store import empty_report
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.client.kept import Kept

ANSWER_SECONDS = 5.0  # a keeper answers in milliseconds; one that was gone needs a second to come back
UNREADABLE = (ValueError, KeyError, TypeError, OSError)

CLUSTERS = (
    Column[Status]("NAME", lambda s: s.name),
    Column[Status]("ENGINE", lambda s: s.engine),
    Column[Status]("PLACE", lambda s: s.place),
    Column[Status]("PHASE", lambda s: s.phase, paint=show.phase),
    Column[Status]("WORKERS", workers),
    Column[Status]("CLIENT", lambda s: s.endpoints.client, wide=True),
    Column[Status]("DASHBOARD", lambda s: s.endpoints.dashboard),
    Column[Status]("MESSAGE", lambda s: "" if s.phase is Phase.READY else s.message),
)


@click.command()
@output_option
def ls(output: str) -> None:
    """List clusters: name, engine, place, phase, workers ready/wanted."""
    mine = kept()
    found = running.run(_look(mine))
    if not found and output in ("table", "wide"):
        say("No clusters. Start one with `oars up NAME --engine dask`.")
        return
    listed = [status.to_dict(members=False) for status in found]
    show.emit(output, listed, [s.name for s in found], lambda wide: show.table(found, CLUSTERS, wide))


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
