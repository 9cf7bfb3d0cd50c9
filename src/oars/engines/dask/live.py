"""Queries a running Dask scheduler and drains its workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire, drained, obstacles, script
from oars.model import HEAD, Drained, MemberId, MemberView, View

HEAD_HELPER = script(__file__, "head_helper.py")
IN_SERVICE = ("running", "paused")  # paused: short of memory for the moment
NOT_OUR_HELPER = "the reply to the drain request is not that of Oars' helper next to the scheduler"
REPLY_SECONDS = 20.0  # for the reply to arrive after the scheduler's deadline


async def look(wire: Wire) -> View:
    """One small request to the scheduler, see head_plugin.py."""
    try:
        reply = json.loads(await wire.http("dashboard", "/oars/members.json"))
        # A scheduler that finds its dashboard's port taken silently chooses another; a stranger may listen here.
        if _port(reply["address"]) != _port(wire.addresses[HEAD]["client"]):
            return View(message="another scheduler answers on the dashboard's port")
        return View(up=True, members=dict(map(_member, reply["workers"])))
    except EngineUnreachable as error:
        return View(message=error.message)
    except (ValueError, TypeError, KeyError, AttributeError):
        return View(message="the program on the dashboard's port is not a scheduler started by Oars")


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _member(worker: Mapping[str, Any]) -> tuple[MemberId, MemberView]:
    view = MemberView(
        ready=worker["status"] in IN_SERVICE,
        address=worker["address"],
        idle=worker["idle"],
        held=worker["held"],
        incarnation=worker["incarnation"],
    )
    return MemberId(worker["name"]), view


async def reconcile(wire: Wire, view: View) -> None:
    """Nothing to do: the scheduler notices closed connections by itself."""


async def drain(wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
    """Move results and let running tasks end. head_helper.py does it inside the scheduler."""
    request = {"op": "drain", "names": list(members), "seconds": deadline, "force": force}
    reply = await wire.ask(HEAD_HELPER, request, seconds=deadline + REPLY_SECONDS)
    return drained(members, obstacles(reply, members, NOT_OUR_HELPER))
