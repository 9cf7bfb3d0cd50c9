"""Queries a running Ray head through head_helper.py and drains its raylets. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire, drained, script
from oars.engines.ray.shape import INCARNATION_LABEL, MEMBER_LABEL
from oars.model import HEAD, Drained, MemberId, MemberView, View

HEAD_HELPER = script(__file__, "head_helper.py")
ATTEMPT_SECONDS = 5.0  # of one drain request; the loop repeats it, and reports what the worker waits for in between

Node = Mapping[str, Any]


async def look(wire: Wire) -> View:
    """The head counts as up once its own raylet has joined: no driver can connect before."""
    try:
        nodes = await _nodes(wire)
    except EngineUnreachable as error:
        return View(message=error.message)
    members = {MemberId(node["labels"][MEMBER_LABEL]): _member(node) for node in nodes}
    if HEAD not in members:
        return View(message="the GCS replies, but the head's raylet has not joined yet")
    return View(up=True, members=members)


async def _nodes(wire: Wire) -> list[Node]:
    """This cluster's live raylets, current incarnations last: a replaced member may be listed twice for a moment."""
    nodes = await wire.ask(HEAD_HELPER, {"op": "nodes", "address": _address(wire)})
    members = [node for node in nodes if MEMBER_LABEL in node["labels"]]
    return sorted(members, key=lambda node: _is_current(wire, node))


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


async def reconcile(wire: Wire, view: View) -> None:
    """Nothing to do: the GCS notices dead raylets by itself."""


async def drain(wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
    """Repeat Ray's drain request until Ray accepts it. Ray rejects it for a raylet that runs tasks or has the only copy
    of an object. force: Ray takes the raylet out of service, whatever it holds."""
    # Only raylets that run now: Ray accepts a drain request for any id, even an unknown one.
    nodes = {node["labels"][MEMBER_LABEL]: node for node in await _nodes(wire) if _is_current(wire, node)}
    ids = [nodes[member]["node"] for member in members if member in nodes]
    if not ids:
        return drained(members, {})
    seconds = min(deadline, ATTEMPT_SECONDS)
    request = {"op": "drain", "address": _address(wire), "nodes": ids, "seconds": seconds, "force": force}
    accepted = await wire.ask(HEAD_HELPER, request)
    left = {m: nodes[m] for m in members if m in nodes and not accepted[nodes[m]["node"]] and not force}
    return drained(members, {member: _obstacle(node) for member, node in left.items()})


def _obstacle(node: Node) -> str:
    """What the raylet waits for, from Ray's description of its activity."""
    activity = " ".join(node.get("activity", ()))
    reasons = []
    if "CPU" in activity or "GPU" in activity:
        reasons.append("running tasks")
    elif "Busy workers" in activity:
        reasons.append("an actor or a running task")
    if "object_store_memory" in activity:
        reasons.append(f"{node.get('held', 0) / 2**20:.1f} MiB of objects that are still referenced")
    return " and ".join(reasons) or "Ray to report it as idle"
