from __future__ import annotations
import json
from collections.abc import Sequence
from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire
from oars.model import Drained, MemberId, MemberView, View

async def look(wire: Wire) -> View:
    try:
        nodes = json.loads(await wire.http("web", "/api/oars/nodes"))
    except EngineUnreachable as error:
        return View(False, error.message)
    return View(True, "", {})

async def drain(wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
    return []
