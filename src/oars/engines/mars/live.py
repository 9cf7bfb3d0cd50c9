"""Queries a running Mars supervisor and drains its workers, through the HTTP handlers of head_plugin.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import UNREADABLE, Wire, demands, drain_outcomes, drained
from oars.model import HEAD, Drained, DrainOutcome, MemberId, MemberView, View

# Every node reports once per second. One that is silent for this long has gone or hangs, whatever Mars has on record.
SILENT_SECONDS = 10.0
NOT_OUR_SUPERVISOR = "the program at the supervisor's web address is not a Mars supervisor started by Oars"


async def look(wire: Wire) -> View:
    try:
        reply = json.loads(await wire.http("web", "/api/oars/nodes"))
        nodes = reply["nodes"]
        if _identity(wire, HEAD) not in [node["identity"] for node in nodes.values()]:
            return View(message="the supervisor is starting, or another program answers at its address")
        return View(
            up=True,
            members=dict(_members(wire, nodes)),
            demand=demands(reply["demand"], {}),
            idle=reply.get("idle"),  # a head that an older Oars started does not report it
            no_client=reply.get("no_client"),
        )
    except EngineUnreachable as error:
        return View(message=error.message)
    except UNREADABLE:
        return View(message=NOT_OUR_SUPERVISOR)


def _identity(wire: Wire, member: MemberId) -> str:
    return f"{member}:{wire.incarnations.get(member, '')}"


def _members(wire: Wire, nodes: Mapping[str, Any]) -> list[tuple[MemberId, MemberView]]:
    """A silent node counts as not listed, so that a worker that hangs is replaced after a while."""
    found = []
    for address, node in nodes.items():
        member, _, incarnation = node["identity"].rpartition(":")
        if node["identity"] == _identity(wire, MemberId(member)) and node["age"] < SILENT_SECONDS:
            ready = node["status"] == "READY"
            found.append((MemberId(member), MemberView(ready, address, node["idle"], node["held"], incarnation)))
    return found


async def reconcile(wire: Wire, view: View) -> None:
    """Report to Mars which members run. Mars keeps dead workers for minutes and fails the work it sends them, and never
    restores a worker that it gave up while the machine slept."""
    current = [_identity(wire, member) for member in wire.incarnations]
    body = json.dumps({"current": current, "silent_seconds": SILENT_SECONDS}).encode()
    await wire.http("web", "/api/oars/nodes", method="POST", body=body)


async def drain(wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
    """Take the next step for each worker; head_plugin.py has the steps and keeps each worker's deadline."""
    known = wire.addresses
    addresses = {member: known[member]["worker"] for member in members if "worker" in known.get(member, ())}
    request = {"workers": list(addresses.values()), "seconds": deadline, "force": force}
    text = await wire.http("web", "/api/oars/drain", method="POST", body=json.dumps(request).encode())
    try:
        reply = json.loads(text)
    except ValueError as error:
        raise EngineUnreachable(NOT_OUR_SUPERVISOR) from error
    by_address = drain_outcomes(reply, set(addresses.values()), NOT_OUR_SUPERVISOR)
    outcomes: dict[str, tuple[DrainOutcome, str]] = {
        member: by_address[address] for member, address in addresses.items() if address in by_address
    }
    if not force:  # a worker that runs, but at a port that is not known, is not empty for that
        lost = (DrainOutcome.REFUSED, "its port is not known")
        outcomes |= {member: lost for member in members if member in known and member not in addresses}
    return drained(members, outcomes)
