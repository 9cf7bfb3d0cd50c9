"""Asks a running Ray: who is there, and may this one go. Through beside.py; no Ray in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire
from oars.engines.ray.shape import INCARNATION_LABEL, MEMBER_LABEL
from oars.engines.ray.texts import BESIDE
from oars.model import HEAD, Drained, MemberId, MemberView, View

Node = Mapping[str, Any]


async def look(wire: Wire) -> View:
    """Who is there. The head counts as up when its own raylet does: before that no driver can connect."""
    try:
        nodes = await _nodes(wire)
    except EngineUnreachable as error:
        return View(message=error.message)
    members = {MemberId(node["labels"][MEMBER_LABEL]): _member(node) for node in nodes if node["alive"]}
    if HEAD not in members:
        return View(message="Ray's head answers, but its raylet is not there yet")
    return View(up=True, members=members)


async def _nodes(wire: Wire) -> list[Node]:
    """All raylets of ours that the head remembers, dead ones too."""
    nodes = await wire.ask(BESIDE, {"op": "nodes", "address": _address(wire)})
    return [node for node in nodes if MEMBER_LABEL in node["labels"]]


def _address(wire: Wire) -> str:
    try:
        return wire.addresses[HEAD]["client"]
    except KeyError:
        raise EngineUnreachable("The head has no address yet.") from None


def _member(node: Node) -> MemberView:
    return MemberView(
        ready=not node.get("draining", False),
        address=node["address"],
        idle=node.get("idle", 0.0),
        held=node.get("held", 0),
        incarnation=node["labels"].get(INCARNATION_LABEL, ""),
    )


async def drain(wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
    """Ray itself refuses to let go of a raylet that works or holds the only copy of an object; we ask until it agrees.
    force: it stops taking work and goes, whatever it holds."""
    nodes = await _nodes(wire)
    found = {member: _raylet(wire, nodes, member) for member in members}
    alive = [node["node"] for node in found.values() if node is not None and node["alive"]]
    request = {"op": "drain", "address": _address(wire), "nodes": alive, "force": force}
    answers = await wire.ask(BESIDE, request) if alive else {}
    return [_drained(member, node, answers, force) for member, node in found.items()]


def _raylet(wire: Wire, nodes: Sequence[Node], member: MemberId) -> Node | None:
    """The raylet of the member as it runs now, not of one that died before it: Ray agrees to drain any id."""
    incarnation = wire.incarnations.get(member, "")
    wanted = (member, incarnation)
    mine = [n for n in nodes if (n["labels"][MEMBER_LABEL], n["labels"].get(INCARNATION_LABEL)) == wanted]
    return next((node for node in mine if node["alive"]), mine[0] if mine else None)


def _drained(member: MemberId, node: Node | None, answers: Mapping[str, Any], force: bool) -> Drained:
    gone = node is None or not node["alive"]
    if gone or force or answers[node["node"]]["accepted"]:
        return Drained(member, True)
    return Drained(member, False, _reason(node))


def _reason(node: Node) -> str:
    """Ray's own words for why it is not idle, in ours."""
    activity = " ".join(node.get("activity", ()))
    reasons = []
    if "CPU" in activity or "GPU" in activity:
        reasons.append("tasks run there")
    elif "Busy workers" in activity:
        reasons.append("an actor lives there, or a task runs")
    if "object_store_memory" in activity:
        reasons.append(f"it holds {node.get('held', 0) / 2**20:.1f} MiB of objects that are still referred to")
    return " and ".join(reasons) or "Ray says that it is not idle"
