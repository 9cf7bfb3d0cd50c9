"""Queries and drains a running Ray. A script that runs next to the head, in its environment: stdlib and Ray only.

One JSON request per line on stdin, one reply per line on stdout, {"ok": …} or {"error": "…"}:

    {"op": "nodes", "address": "host:port"}                                     → [{"node": id, "labels": {…}, …}]
    {"op": "drain", "address": …, "nodes": [id], "seconds": s, "force": bool}   → {id: accepted}
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
DRAIN_PAUSE = 0.02
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
        return {"ok": nodes(client)}
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


def nodes(client: Any) -> list[dict[str, Any]]:
    """The live raylets."""
    alive = ray_module("core.generated.gcs_pb2").GcsNodeInfo.GcsNodeState.ALIVE
    states = activity(client)
    return [
        {
            "node": node.hex(),
            "labels": dict(info.labels),
            "address": f"{info.node_manager_address}:{info.node_manager_port}",
            **states.get(node.binary(), {}),
        }
        for node, info in client.get_all_node_info(timeout=REQUEST_SECONDS, state_filter=alive).items()
    ]


def activity(client: Any) -> dict[bytes, dict[str, Any]]:
    """The raylets' last reports to the GCS."""
    messages = ray_module("core.generated.autoscaler_pb2")
    reply = messages.GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=REQUEST_SECONDS))
    return {
        state.node_id: {
            "idle": state.idle_duration_ms / 1000,
            "held": held(state),
            "draining": state.status == messages.NodeStatus.DRAINING,
            "activity": list(state.node_activity),
        }
        for state in reply.cluster_resource_state.node_states
    }


def held(state: Any) -> int:
    """Bytes in the node's object store. Ray does not tell copies from originals."""
    name = "object_store_memory"
    return max(0, int(state.total_resources.get(name, 0) - state.available_resources.get(name, 0)))


def drain(client: Any, ids: list[str], seconds: float, force: bool) -> dict[str, bool]:
    """Repeat the request until Ray accepts one or time is up: a busy node is idle for short moments only."""
    deadline = time.monotonic() + seconds
    while True:
        accepted = {node: drain_one(client, node, min(seconds, FORCED_SECONDS), force) for node in ids}
        if any(accepted.values()) or time.monotonic() > deadline:
            return accepted
        time.sleep(DRAIN_PAUSE)


def drain_one(client: Any, node: str, grace: float, force: bool) -> bool:
    reasons = ray_module("core.generated.autoscaler_pb2").DrainNodeReason
    reason = reasons.DRAIN_NODE_REASON_PREEMPTION if force else reasons.DRAIN_NODE_REASON_IDLE_TERMINATION
    until = int((time.time() + grace) * 1000) if force else 0
    accepted, _ = client.drain_node(node, reason, "scaled down", until, timeout=REQUEST_SECONDS)
    return bool(accepted)


if __name__ == "__main__":
    main()
