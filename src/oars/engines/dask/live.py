"""Queries a running Dask scheduler and drains its workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import UNREADABLE, Wire, demands, drain_outcomes, drained
from oars.engines.dask import shape
from oars.model import HEAD, Drained, MemberId, MemberView, View

HEAD_HELPER = shape.HEAD_HELPER
IN_SERVICE = ("running", "paused")  # paused: short of memory for the moment
RESOURCES = {"GPU": "gpu"}  # Dask's names of resources that Oars knows by another
NOT_OUR_HELPER = "the reply to the drain request is not that of Oars' helper next to the scheduler"
REPLY_SECONDS = 20.0  # for the reply to arrive after the scheduler's deadline


async def look(wire: Wire) -> View:
    """One small request to the scheduler, see head_plugin.py."""
    try:
        reply = json.loads(await wire.http("dashboard", "/oars/members.json"))
        # A scheduler that finds its dashboard's port taken silently chooses another; a stranger may listen here.
        if _port(reply["address"]) != _port(wire.addresses[HEAD]["client"]):
            return View(message="another scheduler answers on the dashboard's port")
        return View(
            up=True,
            members=dict(map(_member, reply["workers"])),
            demand=demands(reply["demand"], RESOURCES),
            idle=reply.get("idle"),  # a head that an older Oars started does not report it
            no_client=reply.get("no_client"),
        )
    except EngineUnreachable as error:
        return View(message=error.message)
    except UNREADABLE:
        return View(message="the program on the dashboard's port is not a scheduler started by Oars")


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _member(worker: Mapping[str, Any]) -> tuple[MemberId, MemberView]:
    view = MemberView(
        ready=worker["status"] in IN_SERVICE,
        address=worker["address"],
        idle=worker["idle"],
        held=worker["held"],
        pinned=worker["pinned"],
        incarnation=worker["incarnation"],
        tasks=worker.get("tasks"),  # a head that an older Oars started does not report it
    )
    return MemberId(worker["name"]), view


async def reconcile(wire: Wire, view: View) -> None:
    """Warn clients of tasks that cannot run. The scheduler notices closed connections by itself."""
    if view.unservable:
        messages = [f"Oars cannot start a worker for some tasks: {each.message}" for each in view.unservable]
        await wire.ask(HEAD_HELPER, {"op": "warn", "messages": messages})


async def drain(wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
    """Move results and let running tasks end. head_helper.py does it inside the scheduler."""
    request = {"op": "drain", "names": list(members), "seconds": deadline, "force": force}
    reply = await wire.ask(HEAD_HELPER, request, seconds=deadline + REPLY_SECONDS)
    return drained(members, drain_outcomes(reply, members, NOT_OUR_HELPER))
