"""Asks the running supervisor, through the HTTP handlers of head_plugin.py, which workers it knows and drains them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire, waits_for
from oars.model import HEAD, Drained, MemberId, MemberView, View

# Every node reports once a second. One that is silent for so long is not there, whatever Mars still believes.
SILENT = 10.0
STRANGER = "what answers at the supervisor's web address is not Mars as Oars starts it"


async def look(wire: Wire) -> View:
    """Also puts right what Mars has wrong: it keeps workers that are gone for a long time, failing all work it sends
    them, and never takes back one that it gave up while the machine slept."""
    try:
        nodes = json.loads(await wire.http("web", "/api/oars/nodes"))
        if _who(wire, HEAD) not in [node["who"] for node in nodes.values()]:
            return View(message="the supervisor is starting, or a stranger answers at its address")
        changes = _corrections(wire, nodes)
        if any(changes.values()):
            await wire.http("web", "/api/oars/nodes", method="POST", body=json.dumps(changes).encode())
    except EngineUnreachable as error:
        return View(message=error.message)
    except (ValueError, TypeError, KeyError, AttributeError):
        return View(message=STRANGER)
    return View(up=True, members=dict(_members(wire, nodes)))


def _who(wire: Wire, member: MemberId) -> str:
    return f"{member}:{wire.incarnations.get(member, '')}"


def _members(wire: Wire, nodes: Mapping[str, Any]) -> list[tuple[MemberId, MemberView]]:
    found = []
    for address, node in nodes.items():
        member, _, incarnation = node["who"].rpartition(":")
        if node["who"] == _who(wire, MemberId(member)):
            ready = node["status"] == "READY" and node["age"] < SILENT
            found.append((MemberId(member), MemberView(ready, address, node["idle"], node["held"], incarnation)))
    return found


def _corrections(wire: Wire, nodes: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """status → {address: who}."""
    changes: dict[str, dict[str, str]] = {"STOPPED": {}, "READY": {}}
    for address, node in nodes.items():
        ours = node["who"] == _who(wire, MemberId(node["who"].rpartition(":")[0]))
        there = ours and node["age"] < SILENT
        if node["status"] != "STOPPED" and not there:
            changes["STOPPED"][address] = node["who"]
        elif node["status"] == "STOPPED" and there:
            changes["READY"][address] = node["who"]
    return changes


async def drain(wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
    """One step further for each of them; see head_plugin.py for the steps."""
    known = wire.addresses
    addresses = {member: known[member]["worker"] for member in members if "worker" in known.get(member, ())}
    request = json.dumps({"workers": list(addresses.values()), "force": force}).encode()
    answers = _waits(await wire.http("web", "/api/oars/leave", method="POST", body=request), set(addresses.values()))
    waits = {member: answers.get(address, "") for member, address in addresses.items()}
    return [Drained(member, done=not waits.get(member), waits_for=waits.get(member, "")) for member in members]


def _waits(text: bytes, asked: Collection[str]) -> Mapping[str, str]:
    """By address."""
    try:
        answers = json.loads(text)
    except ValueError as error:
        raise EngineUnreachable(STRANGER) from error
    return waits_for(answers, asked, STRANGER)
