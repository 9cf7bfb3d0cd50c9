"""Answers questions about a running Ray, next to its head and in its environment: standard library and Ray only.

One JSON object a line on stdin, one answer a line on stdout, {"ok": …} or {"error": "…"}:

    {"op": "nodes", "address": "host:port"}                     → [{"node": id, "labels": {…}, …}]
    {"op": "drain", "address": …, "nodes": [id], "force": bool} → {id: accepted}
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

SECONDS = 2.0  # for one question to the head
DRAIN_SECONDS = 5.0  # for which a refusal is not taken for an answer
DRAIN_PAUSE = 0.02
FORCED_SECONDS = 5.0  # that a raylet has to finish what it does when it goes by force


def main() -> None:
    """Whatever Ray may print goes to stderr, which is the log: stdout is for answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        client = connect(request["address"])
        if request["op"] == "drain":
            return {"ok": drain(client, request["nodes"], request["force"])}
        return {"ok": nodes(client)}
    except Exception as error:  # noqa: BLE001 (whatever Ray raises is the answer; the next question connects anew)
        connect.cache_clear()
        return {"error": f"{type(error).__name__}: {error}"}


@functools.cache
def connect(address: str) -> Any:
    """Ray's client blocks for 40 seconds where nobody listens, so look first."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), SECONDS).close()
    raylet = of_ray("_raylet")
    raylet.Config.initialize("")  # it was filled when ray was imported, perhaps in a parent with another environment
    return raylet.GcsClient(address=address)


def of_ray(name: str) -> Any:
    return importlib.import_module(f"ray.{name}")  # noqa: TID251 (a script of its own, not part of the package)


def nodes(client: Any) -> list[dict[str, Any]]:
    """The raylets that are alive."""
    alive = of_ray("core.generated.gcs_pb2").GcsNodeInfo.GcsNodeState.ALIVE
    states = activity(client)
    return [
        {
            "node": node.hex(),
            "labels": dict(info.labels),
            "address": f"{info.node_manager_address}:{info.node_manager_port}",
            **states.get(node.binary(), {}),
        }
        for node, info in client.get_all_node_info(timeout=SECONDS, state_filter=alive).items()
    ]


def activity(client: Any) -> dict[bytes, dict[str, Any]]:
    """What the raylets last told the head about their work."""
    messages = of_ray("core.generated.autoscaler_pb2")
    reply = messages.GetClusterResourceStateReply()
    reply.ParseFromString(client.get_cluster_resource_state(timeout_s=SECONDS))
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
    """Bytes in the node's object store, copies included: Ray tells no more."""
    name = "object_store_memory"
    return max(0, int(state.total_resources.get(name, 0) - state.available_resources.get(name, 0)))


def drain(client: Any, wanted: list[str], force: bool) -> dict[str, bool]:
    """Ask until one agrees or time is up: on a busy node the moments in which it has nothing to do are short."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        answers = {node: drain_one(client, node, force) for node in wanted}
        if any(answers.values()) or time.monotonic() > deadline:
            return answers
        time.sleep(DRAIN_PAUSE)


def drain_one(client: Any, node: str, force: bool) -> bool:
    reasons = of_ray("core.generated.autoscaler_pb2").DrainNodeReason
    reason = reasons.DRAIN_NODE_REASON_PREEMPTION if force else reasons.DRAIN_NODE_REASON_IDLE_TERMINATION
    until = int((time.time() + FORCED_SECONDS) * 1000) if force else 0
    accepted, _ = client.drain_node(node, reason, "scaled down", until, timeout=SECONDS)
    return bool(accepted)


if __name__ == "__main__":
    main()
