"""Nodes that are about to end: cordoned ones, and those that an autoscaler or a termination handler has tainted.
Reading nodes is an optional right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import is_denied
from oars.kube.informer import Informer, stop_all
from oars.kube.kinds import NODE, Object
from oars.model import Member, Role

DENIED_SECONDS = 300.0  # between two attempts to read nodes without the right to

# Keys of taints, or what they begin with → who announces the end of the node, as a clause.
TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler removes {node}",
    "karpenter.sh/disrupted": "Karpenter removes {node}",
    "karpenter.sh/disruption": "Karpenter removes {node}",
    "aws-node-termination-handler/": "{node} got a termination notice",
    "cloud.google.com/impending-node-termination": "{node} got a termination notice",
    "node.kubernetes.io/out-of-service": "{node} is out of service",
    "node.cloudprovider.kubernetes.io/shutdown": "{node} is shut down",
}

log = get_logger(__name__)


@dataclass(frozen=True)
class Departure:
    """Why a node ends, as a clause, and whether it does so within minutes."""

    reason: str
    is_soon: bool


Nodes = Mapping[str, Departure]


def departure(node: Object) -> Departure | None:
    """None: the node stays. A cordoned node may stay for long, or get back into service."""
    name, spec = node["metadata"]["name"], node.get("spec") or {}
    keys = [str(taint.get("key", "")) for taint in spec.get("taints") or ()]
    for start, clause in TAINTS.items():
        if any(key == start or (start.endswith("/") and key.startswith(start)) for key in keys):
            return Departure(clause.format(node=name), is_soon=True)
    return Departure(f"{name} is cordoned", is_soon=False) if spec.get("unschedulable") else None


def departing(members: tuple[Member, ...], pods: Iterable[Object], nodes: Nodes) -> tuple[Member, ...]:
    """The members, with why those on nodes that end must leave."""
    if not nodes:
        return members
    node_of = {pod["metadata"]["name"]: pod.get("spec", {}).get("nodeName", "") for pod in pods}
    found = []
    for member in members:
        leaves = nodes.get(node_of.get(member.id, "")) if member.role is Role.WORKER else None
        found.append(replace(member, departing=leaves.reason, is_doomed=leaves.is_soon) if leaves else member)
    return tuple(found)


class NodeWatch:
    """Watches the nodes, if that is allowed. `departing` has those that are about to end; `on_change` is called with
    the name of a node that enters or leaves it."""

    def __init__(self, client: Client, on_change: Callable[[str], None]) -> None:
        self.departing: dict[str, Departure] = {}
        self._client = client
        self._on_change = on_change

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            informer = Informer(self._client, NODE, transform=_trimmed, on_change=self._changed)
            task = asyncio.create_task(informer.run())
            try:
                await informer.wait_synced()
                await task
            except OarsError as error:
                if not is_denied(error):
                    raise
                log.info(pairs("nodes are not watched", reason="the right to list and watch nodes is missing"))
            finally:
                await stop_all([task])
            await asyncio.sleep(DENIED_SECONDS)

    def _changed(self, key: tuple[str, str], old: Object | None, new: Object | None) -> None:
        name, before = key[1], self.departing.get(key[1])
        after = departure(new) if new is not None else None
        if after is not None:
            self.departing[name] = after
        else:
            self.departing.pop(name, None)
        if before != after:
            self._on_change(name)


def _trimmed(node: Object) -> Object:
    metadata, spec = node["metadata"], node.get("spec") or {}
    kept = {key: spec[key] for key in ("unschedulable", "taints") if key in spec}
    return {"metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion")}, "spec": kept}
