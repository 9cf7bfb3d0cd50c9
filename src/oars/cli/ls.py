"""`oars ls`: list clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from oars.base.errors import UsageError
from oars.cli import output as out
from oars.cli import signals
from oars.cli.errors import say
from oars.cli.options import location_options
from oars.cli.output import Column, output_option
from oars.cli.status import workers
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.service import Service

COLUMNS = (
    Column[Status]("NAME", lambda s: s.name),
    Column[Status]("ENGINE", lambda s: s.engine),
    Column[Status]("PLACE", lambda s: s.place),
    Column[Status]("NAMESPACE", lambda s: s.namespace, wide=True),
    Column[Status]("MODE", lambda s: s.mode, wide=True),
    Column[Status]("PHASE", lambda s: s.phase, paint=out.phase),
    Column[Status]("WORKERS", workers),
    Column[Status]("CLIENT", lambda s: s.endpoints.client, wide=True),
    Column[Status]("DASHBOARD", lambda s: s.endpoints.dashboard),
    Column[Status]("MESSAGE", lambda s: "" if s.phase is Phase.READY else s.message),
)


@click.command()
@location_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Kubernetes: clusters in all namespaces.")
@output_option
def ls(service: Service, all_namespaces: bool, output: str) -> None:
    """List the clusters of this machine and, if there is a kubeconfig, of Kubernetes."""
    if all_namespaces and service.location.namespace:
        raise UsageError("--all-namespaces and --namespace contradict each other.", "Omit one of them.")
    listing = signals.run(service.list(all_namespaces=all_namespaces))
    for place, problem in listing.problems.items():
        say(f"{place.capitalize()} clusters are not listed: {problem}")
    found = listing.statuses
    if not found and output in ("table", "wide"):
        say("No clusters. Create one with `oars up demo --engine dask`.")
        return
    columns = [
        replace(column, wide=column.wide and not (all_namespaces and column.title == "NAMESPACE")) for column in COLUMNS
    ]
    data = [status.to_dict(members=False) for status in found]
    out.emit(output, data, [s.name for s in found], lambda wide: out.table(found, columns, wide))
