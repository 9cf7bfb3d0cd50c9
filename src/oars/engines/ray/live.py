"""Queries a running Ray head through head_helper.py and drains its raylets. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import UNREADABLE, Wire, demands, drained
from oars.engines.ray.shape import HEAD_HELPER, INCARNATION_LABEL, MEMBER_LABEL
from oars.model import HEAD, Demand, Drained, DrainOutcome, MemberId, MemberView, View

RESOURCES = {"CPU": "cpu", "GPU": "gpu"}  # Ray's names of resources that Oars knows by another
# Of one attempt to drain, whatever drain.timeout allows. A raylet that refuses stays in service, so a short attempt
# loses nothing: the loop repeats it, and reports what the worker waits for in between.
ATTEMPT_SECONDS = 5.0
REPLY_SECONDS = 10.0  # for head_helper.py, beyond the time that it is given
NOT_OUR_HELPER = "the reply is not that of Oars' helper next to the head"
NO_RAYLET = "the GCS replies, but the head's raylet has not joined yet"

Node = Mapping[str, Any]


async def look(wire: Wire) -> View:
    """The head counts as up once its own raylet has joined: no driver can connect before."""
    try:
        nodes, state = await _state(wire)
        members = {MemberId(node["labels"][MEMBER_LABEL]): _member(node) for node in nodes}
        demand = demands(state["demand"], RESOURCES)
    except EngineUnreachable as error:
        return View(message=error.message)
    except UNREADABLE:
        return View(message=NOT_OUR_HELPER)
    if HEAD not in members:
        return View(message=NO_RAYLET)
    return View(up=True, members=members, demand=demand, idle=state.get("idle"), no_client=state.get("no_client"))


async def _state(wire: Wire) -> tuple[list[Node], Mapping[str, Any]]:
    """This cluster's live raylets, current incarnations last: a replaced member may be listed twice for a moment. And
    the whole reply."""
    state = await wire.ask(HEAD_HELPER, {"op": "look", "address": _address(wire)}, seconds=REPLY_SECONDS)
    members = [node for node in state["nodes"] if MEMBER_LABEL in node["labels"]]
    return sorted(members, key=lambda node: _is_current(wire, node)), state


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
    """Report demand that no group can serve, as Ray's own autoscaler does: Ray warns its drivers, or fails the tasks
    (ray.failInfeasible). The GCS notices dead raylets by itself."""
    if view.unservable is not None:
        shapes = [_shape(each.demand) for each in view.unservable]
        request = {"op": "report", "address": _address(wire), "infeasible": shapes}
        await wire.ask(HEAD_HELPER, request, seconds=REPLY_SECONDS)


def _shape(demand: Demand) -> dict[str, Any]:
    """As head_helper.py wrote it."""
    names = {ours: name for name, ours in RESOURCES.items()}
    needs = {names.get(name, name): amount for name, amount in demand.needs.items()}
    return {"needs": needs, "labels": [(rule.key, sorted(rule.values), rule.negated) for rule in demand.labels]}


async def drain(wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
    """Repeat Ray's drain request until Ray accepts it. Ray never moves objects, and rejects the request for a raylet
    that runs tasks or has the only copy of an object, in memory or spilled: a worker has finished, or it stays.
    force: Ray takes the raylet out of service, whatever it holds."""
    # Only raylets that run now: Ray accepts a drain request for any id, even an unknown one.
    try:
        listed, _ = await _state(wire)
        nodes = {node["labels"][MEMBER_LABEL]: node for node in listed if _is_current(wire, node)}
        ids = [nodes[member]["node"] for member in members if member in nodes]
    except UNREADABLE as error:
        raise EngineUnreachable(NOT_OUR_HELPER) from error
    if HEAD not in nodes:  # who is not listed now may be listed soon
        raise EngineUnreachable(NO_RAYLET)
    if not ids:
        return drained(members, {})
    seconds = min(deadline, ATTEMPT_SECONDS)
    request = {"op": "drain", "address": _address(wire), "nodes": ids, "seconds": seconds, "force": force}
    accepted = await wire.ask(HEAD_HELPER, request, seconds=seconds + REPLY_SECONDS)
    try:
        left = {m: nodes[m] for m in members if m in nodes and not accepted[nodes[m]["node"]] and not force}
    except UNREADABLE as error:
        raise EngineUnreachable(NOT_OUR_HELPER) from error
    return drained(members, {member: (DrainOutcome.REFUSED, _obstacle(node)) for member, node in left.items()})


def _obstacle(node: Node) -> str:
    """What the raylet waits for, from Ray's description of its activity."""
    activity = " ".join(node.get("activity", ()))
    reasons = []
    if "CPU" in activity or "GPU" in activity:
        reasons.append("running tasks")
    elif "Busy workers" in activity:
        reasons.append("an actor or a running task")
    if "object_store_memory" in activity:
        held = node.get("held", 0)  # 1: Ray reports one byte for all objects that it has spilled
        amount = f"{held / 2**20:.1f} MiB of objects" if held > 1 else "objects on its disk"
        reasons.append(f"{amount} that are still referenced")
    return " and ".join(reasons) or "Ray to report it as idle"
