"""`oars status`: show one cluster and its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oars.cli import output as out
from oars.cli import signals
from oars.cli.options import location_options, name_argument
from oars.cli.output import Column, output_option
from oars.spec.status import MemberStatus, Status

if TYPE_CHECKING:
    from oars.service import Service

MEMBERS = (
    Column[MemberStatus]("MEMBER", lambda m: m.id),
    Column[MemberStatus]("GROUP", lambda m: m.group, wide=True),
    Column[MemberStatus]("PHASE", lambda m: m.phase, paint=out.phase),
    Column[MemberStatus]("PID", lambda m: m.pid or "-"),
    Column[MemberStatus]("ADDRESS", lambda m: m.address),
    Column[MemberStatus]("REASON", lambda m: m.reason),
)


@click.command()
@name_argument
@location_options
@output_option
def status(name: str, service: Service, output: str) -> None:
    """Show one cluster: phase, endpoints, groups and members.

    The keys of the JSON output are stable: name, engine, place, phase, reason, message, endpoints, groups, members,
    mode and namespace.
    """
    emit_status(signals.run(service.get(name)).status, output)


def emit_status(found: Status, output: str, *, members: bool = True) -> None:
    """Print a status. members: list them in the table."""
    out.emit(output, found.to_dict(), [found.name], lambda wide: _text(found, wide, members=members or wide))


def workers(found: Status) -> str:
    return f"{found.ready}/{found.wanted}"


def _text(found: Status, wide: bool, *, members: bool) -> str:
    groups = ", ".join(f"{group.name} {group.ready}/{group.wanted}" for group in found.groups)
    rows = {
        "Name": found.name,
        "Engine": f"{found.engine} on {found.place}",
        "Namespace": found.namespace,
        "Mode": found.mode,
        "Phase": out.phase(found.phase) + (f" ({found.reason})" if found.reason else ""),
        "Message": found.message,
        "Workers": f"{workers(found)} ready" + (f" ({groups})" if len(found.groups) > 1 else ""),
        "Client": found.endpoints.client,
        "Dashboard": found.endpoints.dashboard,
    }
    facts = "\n".join(f"{title + ':':<11}{value}" for title, value in rows.items() if value)
    return f"{facts}\n\n{out.table(found.members, MEMBERS, wide)}" if found.members and members else facts
