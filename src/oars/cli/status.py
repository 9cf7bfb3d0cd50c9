"""`oars status`: one cluster and its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oars.cli import show, signals
from oars.cli.options import name_argument, where_options
from oars.cli.show import Column, output_option
from oars.spec.status import MemberStatus, Status

if TYPE_CHECKING:
    from oars.client.backends import Where

MEMBERS = (
    Column[MemberStatus]("MEMBER", lambda m: m.id),
    Column[MemberStatus]("GROUP", lambda m: m.group, wide=True),
    Column[MemberStatus]("PHASE", lambda m: m.phase, paint=show.phase),
    Column[MemberStatus]("PID", lambda m: m.pid or "-"),
    Column[MemberStatus]("ADDRESS", lambda m: m.address),
    Column[MemberStatus]("REASON", lambda m: m.reason),
)


@click.command()
@name_argument
@where_options
@output_option
def status(name: str, where: Where, output: str) -> None:
    """Show one cluster: phase, endpoints, groups and members.

    The JSON form is a contract: name, engine, place, phase, reason, message, endpoints, groups, members; on Kubernetes
    mode and namespace.
    """
    from oars.cli import lookup

    emit_one(signals.run(lookup.report(name, where)).status, output)


def emit_one(found: Status, output: str, *, members: bool = True) -> None:
    """All of it; the table's members may be left out where the cluster as a whole is of interest."""
    show.emit(output, found.to_dict(), [found.name], lambda wide: _text(found, wide, members=members or wide))


def workers(found: Status) -> str:
    return f"{found.ready}/{found.wanted}"


def _text(found: Status, wide: bool, *, members: bool) -> str:
    rows = {
        "Name": found.name,
        "Engine": f"{found.engine} on {found.place}",
        "Namespace": found.namespace,
        "Mode": found.mode,
        "Phase": _phase(found),
        "Message": found.message,
        "Workers": _groups(found),
        "Client": found.endpoints.client,
        "Dashboard": found.endpoints.dashboard,
    }
    facts = "\n".join(f"{title + ':':<11}{value}" for title, value in rows.items() if value)
    return f"{facts}\n\n{show.table(found.members, MEMBERS, wide)}" if found.members and members else facts


def _phase(found: Status) -> str:
    return show.phase(found.phase) + (f" ({found.reason})" if found.reason else "")


def _groups(found: Status) -> str:
    total = f"{workers(found)} ready"
    if len(found.groups) < 2:
        return total
    return f"{total} ({', '.join(f'{group.name} {group.ready}/{group.wanted}' for group in found.groups)})"
