"""Ask a running Dask scheduler: who is there, and to empty workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire, waits_for
from oars.engines.dask.scripts import HEAD_HELPER
from oars.model import HEAD, Drained, MemberId, MemberView, View

IN_SERVICE = ("running", "paused")  # paused: short of memory for the moment, but there
STRANGER = "what answers beside the scheduler is not as Oars put it there"
DRAIN_SECONDS = 50.0  # then workers that could not be emptied are put back in service


async def look(wire: Wire) -> View:
    """One small request to the scheduler (see head_plugin.py)."""
    try:
        answer = json.loads(await wire.http("dashboard", "/oars/members.json"))
        if _port(answer["address"]) != _port(wire.addresses[HEAD]["client"]):
            return View(message="another scheduler answers on the dashboard's port")
        return View(up=True, members=dict(map(_member, answer["workers"])))
    except EngineUnreachable as error:
        return View(message=error.message)
    except (ValueError, TypeError, KeyError, AttributeError):
        return View(message="what answers on the dashboard's port is no scheduler of Oars")


def _port(address: str) -> str:
    """A scheduler that finds its dashboard's port taken moves on without a word; the one there may be a stranger."""
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


async def drain(wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
    """Move results, let running tasks end; see head_helper.py, which does it inside the scheduler."""
    request = {"op": "drain", "names": list(members), "seconds": DRAIN_SECONDS, "force": force}
    waits = waits_for(await wire.ask(HEAD_HELPER, request), members, STRANGER)
    return [Drained(member, done=not waits.get(member), waits_for=waits.get(member, "")) for member in members]
