"""Asks a running Ray: who is there, and may this one go. Through head_helper.py; no Ray in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire
from oars.engines.ray.scripts import HEAD_HELPER
from oars.engines.ray.shape import INCARNATION_LABEL, MEMBER_LABEL
from oars.model import HEAD, Drained, MemberId, MemberView, View

Node = Mapping[str, Any]


async def look(wire: Wire) -> View:
    """Who is there. The head counts as up when its own raylet is: before that no driver can connect."""
    try:
        nodes = await _nodes(wire)
    except EngineUnreachable as error:
        return View(message=error.message)
    members = {MemberId(node["labels"][MEMBER_LABEL]): _member(node) for node in nodes}
    if HEAD not in members:
        return View(message="Ray's head answers, but its raylet is not there yet")
    return View(up=True, members=members)


async def _nodes(wire: Wire) -> list[Node]:
    """The raylets of ours that are alive. Of a member that was just replaced both may be, for a moment: the newer
    one counts."""
    nodes = await wire.ask(HEAD_HELPER, {"op": "nodes", "address": _address(wire)})
    ours = [node for node in nodes if MEMBER_LABEL in node["labels"]]
    return sorted(ours, key=lambda node: _is_current(wire, node))


def _is_current(wire: Wire, node: Node) -> bool:
    labels = node["labels"]
    return bool(labels.get(INCARNATION_LABEL) == wire.incarnations.get(MemberId(labels[MEMBER_LABEL])))


def _address(wire: Wire) -> str:
    try:
        return wire.addresses[HEAD]["client"]
    except KeyError:
        raise EngineUnreachable("the head has no address yet") from None


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
    # Only raylets that run now: Ray agrees to drain any id, also one that it does not know.
    nodes = {node["labels"][MEMBER_LABEL]: node for node in await _nodes(wire) if _is_current(wire, node)}
    ids = [nodes[member]["node"] for member in members if member in nodes]
    request = {"op": "drain", "address": _address(wire), "nodes": ids, "force": force}
    accepted = await wire.ask(HEAD_HELPER, request) if ids else {}
    return [_drained(member, nodes.get(member), accepted, force) for member in members]


def _drained(member: MemberId, node: Node | None, accepted: Mapping[str, bool], force: bool) -> Drained:
    if node is None or force or accepted[node["node"]]:
        return Drained(member, True)
    return Drained(member, False, _reason(node))


def _reason(node: Node) -> str:
    """Ray's words for why it is not idle, in ours."""
    activity = " ".join(node.get("activity", ()))
    reasons = []
    if "CPU" in activity or "GPU" in activity:
        reasons.append("tasks run there")
    elif "Busy workers" in activity:
        reasons.append("an actor lives there, or a task runs")
    if "object_store_memory" in activity:
        reasons.append(f"it holds {node.get('held', 0) / 2**20:.1f} MiB of objects that are still referred to")
    return " and ".join(reasons) or "Ray says that it is not idle"
