"""Queries and drains a running Ray. A script that runs next to the head, in its environment: stdlib and Ray only.

One JSON request per line on stdin, one reply per line on stdout, {"ok": …} or {"error": "…"}:

    {"op": "look", "address": "host:port"}
        → {"nodes": [{"node": id, "labels": {…}, …}], "demand": [{…}], "idle": seconds, "no_client": seconds}
    {"op": "drain", "address": …, "nodes": [id], "seconds": s, "force": bool}   → {id: accepted}
    {"op": "report", "address": …, "infeasible": [{"needs": …, "labels": …}]}   → how many requests are reported
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

REQUEST_SECONDS = 2.0  # for one request to the GCS
LOOK_PAUSE = 0.05  # between two looks at the raylets' reports while one is drained
# Between two drain requests to the same raylet, also of two attempts (see DRAIN_PAUSE of the loop): with each, the GCS
# writes the row of every actor there.
REQUEST_PAUSE = 1.0
FORCED_SECONDS = 5.0  # after which Ray kills the tasks of a raylet that is drained by force


def main() -> None:
    """Ray's own output goes to stderr, the log; stdout is for replies."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(handle(json.loads(line))) + "\n")
        replies.flush()


def handle(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        client = connect(request["address"])
        if request["op"] == "drain":
            return {"ok": drain(client, request["nodes"], request["seconds"], request["force"])}
        state = resource_state(client)
        if request["op"] == "report":
            return {"ok": report(client, state, request["infeasible"])}
        found, waiting = nodes(client, state), demand(state)
        unused = {"idle": seconds_idle(found, waiting), "no_client": seconds_without_driver(client)}
        return {"ok": {"nodes": found, "demand": waiting, **unused}}
    except Exception as error:  # noqa: BLE001 (any error of Ray is the reply; the next request reconnects)
        connect.cache_clear()
        return {"error": f"{type(error).__name__}: {error}"}


@functools.cache
def connect(address: str) -> Any:
    """Check the port first: Ray's client blocks for 40 seconds if nothing listens."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), REQUEST_SECONDS).close()
    raylet = ray_module("_raylet")
    raylet.Config.initialize("")  # read the environment again: ray may have been imported before the fork
    return raylet.GcsClient(address=address)


def ray_module(name: str) -> Any:
    return importlib.import_module(f"ray.{name}")  # noqa: TID251 (a standalone script)


def resource_state(client: Any) -> Any:
    """The raylets' last reports to the GCS, and the demand; up to a second old."""
    reply = messages().GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=REQUEST_SECONDS))
    return reply.cluster_resource_state


def messages() -> Any:
    return ray_module("core.generated.autoscaler_pb2")


def nodes(client: Any, state: Any) -> list[dict[str, Any]]:
    """The live raylets."""
    alive = ray_module("core.generated.gcs_pb2").GcsNodeInfo.GcsNodeState.ALIVE
    reports = {report.node_id: report for report in state.node_states}
    return [
        {
            "node": node.hex(),
            "labels": dict(info.labels),
            "address": f"{info.node_manager_address}:{info.node_manager_port}",
            **(activity(reports[node.binary()]) if node.binary() in reports else {}),
        }
        for node, info in client.get_all_node_info(timeout=REQUEST_SECONDS, state_filter=alive).items()
    ]


def activity(report: Any) -> dict[str, Any]:
    return {
        "idle": report.idle_duration_ms / 1000,
        "held": held(report),
        "draining": report.status == messages().NodeStatus.DRAINING,
        "activity": list(report.node_activity),
    }


def seconds_idle(found: list[dict[str, Any]], waiting: list[dict[str, Any]]) -> float:
    """Seconds for which every raylet, the head's too, has reported to be idle. One that keeps an actor or an object is
    not."""
    if any(not entry.get("floor") for entry in waiting):
        return 0.0
    return float(min((node.get("idle", 0.0) for node in found), default=0.0))


def seconds_without_driver(client: Any) -> float | None:
    """Seconds since the last driver ended or, if there was none, since the first raylet joined. Ray's own jobs are in
    namespaces of their own; a GCS client, such as this script, is not a driver. None: Ray does not know."""
    jobs = client.get_all_job_info(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=REQUEST_SECONDS
    ).values()
    drivers = [job for job in jobs if not job.config.ray_namespace.startswith("_ray_internal_")]
    if any(not job.is_dead for job in drivers):
        return 0.0
    if drivers:
        last = max(job.end_time for job in drivers)
    else:
        infos = client.get_all_node_info(timeout=REQUEST_SECONDS).values()
        last = min((info.start_time_ms for info in infos), default=0)
    return max(0.0, time.time() - last / 1000) if last else None


def held(state: Any) -> int:
    """Bytes in the node's object store. Ray does not tell copies from originals."""
    name = "object_store_memory"
    return max(0, int(state.total_resources.get(name, 0) - state.available_resources.get(name, 0)))


def drain(client: Any, ids: list[str], seconds: float, force: bool) -> dict[str, bool]:
    """Send the request to raylets that report to be idle, until Ray accepts one or time is up. A busy node is idle for
    short moments only. Others are not asked: Ray would mark the actors of a node as preempted, even if it refuses."""
    deadline = time.monotonic() + seconds
    next_request: dict[str, float] = {}
    while True:
        idle = set(ids) if force else idle_nodes(resource_state(client))
        now = time.monotonic()
        due = [node for node in ids if node in idle and now >= next_request.get(node, now)]
        next_request |= dict.fromkeys(due, now + REQUEST_PAUSE)
        accepted = [node for node in due if drain_one(client, node, min(seconds, FORCED_SECONDS), force)]
        if accepted or force or time.monotonic() > deadline:
            return {node: node in accepted for node in ids}
        time.sleep(LOOK_PAUSE)


def idle_nodes(state: Any) -> set[str]:
    """Nodes that report to be idle, or are being drained already: then Ray accepts the request again."""
    reports = ((report.node_id.hex(), activity(report)) for report in state.node_states)
    return {node for node, report in reports if report["idle"] or report["draining"]}


def drain_one(client: Any, node: str, grace: float, force: bool) -> bool:
    reasons = messages().DrainNodeReason
    reason = reasons.DRAIN_NODE_REASON_PREEMPTION if force else reasons.DRAIN_NODE_REASON_IDLE_TERMINATION
    until = int((time.time() + grace) * 1000) if force else 0
    accepted, _ = client.drain_node(node, reason, "scaled down", until, timeout=REQUEST_SECONDS)
    return bool(accepted)


# Demand.


def demand(state: Any) -> list[dict[str, Any]]:
    """Tasks, actors and placement groups that wait, what each node has in use, and the floor of request_resources."""
    entries = [entry(each.request, each.count) for each in state.pending_resource_requests]
    for number, gang in enumerate(state.pending_gang_resource_requests):
        bundles = [entry(request, 1) for request in gang.requests]
        placement = strategy(gang)
        entries += [{**bundle, "gang": f"{number}", "placement": placement} for bundle in bundles if bundle]
    for constraint in state.cluster_resource_constraints:
        wanted = [entry(each.request, each.count) for each in constraint.resource_requests]
        entries += [{**each, "floor": True} for each in wanted if each]
    return [*filter(None, entries), *filter(None, map(in_use, state.node_states))]


def entry(request: Any, count: int) -> dict[str, Any] | None:
    """None for what more nodes would not serve: tasks that wait for a certain node, or for a placement group, which is
    an entry of its own."""
    needs = dict(request.resources_bundle)
    if count <= 0 or any("_group_" in name or name.startswith("node:") for name in needs):
        return None
    negated = ray_module("core.generated.common_pb2").LABEL_OPERATOR_NOT_IN
    constraints = [each for selector in request.label_selectors[:1] for each in selector.label_constraints]
    labels = [(each.label_key, sorted(each.label_values), each.operator == negated) for each in constraints]
    return {"needs": needs, "count": count, "labels": labels}


def strategy(gang: Any) -> str:
    """Ray appends the strategy of a placement group to its id: "id|STRICT_SPREAD|PENDING". Others are wishes only."""
    if any(request.placement_constraints and has_anti_affinity(request) for request in gang.requests):
        return "spread"
    return "pack" if "|STRICT_PACK|" in gang.details else ""


def has_anti_affinity(request: Any) -> bool:
    return any(each.HasField("anti_affinity") for each in request.placement_constraints)


def in_use(report: Any) -> dict[str, Any] | None:
    """What a worker node has in use, as one piece of work that runs there. A resource that is used up is missing from
    the available ones."""
    member, group = report.labels.get("oars.dev/member"), report.labels.get("oars.dev/group")
    total, free = report.total_resources, report.available_resources
    needs = {
        name: total[name] - free.get(name, 0.0)
        for name in total
        if not name.startswith(("node:", "object_store_memory")) and "_group_" not in name
    }
    used = {name: amount for name, amount in needs.items() if amount > 0}
    if member in (None, "head") or report.idle_duration_ms or not (used or list(report.node_activity)):
        return None
    labels = [("oars.dev/group", [group], False)]
    return {"needs": used, "count": 1, "running": 1, "labels": labels}


# Demand that no group can serve.


def report(client: Any, state: Any, shapes: list[dict[str, Any]]) -> int:
    """Report waiting requests of these shapes to the GCS as infeasible, and no others."""

    def is_infeasible(request: Any) -> bool:
        found = entry(request, 1)
        labels = [list(label) for label in found["labels"]] if found else []
        return found is not None and {"needs": found["needs"], "labels": labels} in shapes

    found = messages().AutoscalingState(
        last_seen_cluster_resource_state_version=state.cluster_resource_state_version,
        autoscaler_state_version=int(time.time() * 1000),  # the GCS ignores older ones
        infeasible_resource_requests=[
            each.request for each in state.pending_resource_requests if is_infeasible(each.request)
        ],
        infeasible_gang_resource_requests=[
            gang for gang in state.pending_gang_resource_requests if any(map(is_infeasible, gang.requests))
        ],
    )
    client.report_autoscaling_state(found.SerializeToString())
    return len(found.infeasible_resource_requests) + len(found.infeasible_gang_resource_requests)


if __name__ == "__main__":
    main()
