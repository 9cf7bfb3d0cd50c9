"""Collect what explains a cluster that is not ready: events, logs of dead containers, nodes, quotas. A healthy cluster
costs no requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.kinds import EVENT, LIMIT_RANGE, NODE, RESOURCE_QUOTA, Kind, Object
from oars.model import Cause, LogPattern
from oars.places.kube.state import observe
from oars.places.kube.state.observe import condition
from oars.places.kube.why.deaths import logs_to_read
from oars.places.kube.why.explain import causes
from oars.places.kube.why.facts import Snapshot, container_statuses

# All in seconds.
POLL = 2.0
SLOW_POLL = 30.0  # once nothing has changed for that long
STUCK = 3.0  # without a change: a pod that has a node and is not ready may need an explanation
STALLED = 15.0  # without a change: the Deployment controller, which may be busy, ignores a new generation
LOG_TIMEOUT = 4.0  # the node may not respond
LOG_LINES = 20
LOG_BYTES = 2**18  # of these lines: one may be as long as the log
# Reasons of the events by which cluster-autoscaler and Karpenter announce a node for a pod.
NODE_COMING = ("TriggeredScaleUp", "Nominated")


class SharedLists:
    """Lists of events, quotas and nodes, cached for POLL seconds and shared by the clusters of one process."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lists: dict[tuple[str, str, str], tuple[float, asyncio.Task[list[Object] | None]]] = {}

    async def get(self, kind: Kind, namespace: str | None, fields: str = "") -> list[Object] | None:
        """None if the list cannot be read, for example for lack of permission: explanations are less exact then."""
        now, key = self._clock(), (kind.plural, namespace or "", fields)
        if key not in self._lists or now - self._lists[key][0] >= POLL:
            # Drop expired lists: those of nodes and events are large.
            self._lists = {k: cached for k, cached in self._lists.items() if now - cached[0] < 2 * POLL}
            self._lists[key] = now, asyncio.create_task(self._fetch(kind, namespace, fields))
        return await asyncio.shield(self._lists[key][1])

    async def _fetch(self, kind: Kind, namespace: str | None, fields: str) -> list[Object] | None:
        try:
            return (await self._client.list(kind, namespace, fields=fields)).items
        except (OarsError, TimeoutError):
            return None


class Evidence:
    """What is known about the failures of one cluster."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        lists: SharedLists,
        clock: Callable[[], float] = time.monotonic,
        is_member: Callable[[Object], bool] = observe.is_member,
    ) -> None:
        self._client = client
        self._is_member = is_member
        self._namespace = namespace
        self._lists = lists
        self._clock = clock
        self._versions: frozenset[str] = frozenset()
        self._changed = 0.0
        self.awaiting_node: frozenset[str] = frozenset()  # pods for which a node autoscaler is adding a node
        self.forget()

    def forget(self) -> None:
        """Call when the cluster is healthy."""
        self._collected, self._known, self.awaiting_node = 0.0, Snapshot(), frozenset()

    async def causes(
        self, pods: Sequence[Object], deployments: Sequence[Object], log_patterns: Sequence[LogPattern] = ()
    ) -> tuple[Cause, ...]:
        pods = list(filter(self._is_member, pods))
        now = self._clock()
        versions = frozenset(str(obj["metadata"].get("resourceVersion")) for obj in (*pods, *deployments))
        if versions != self._versions:
            self._versions, self._changed = versions, now
        unchanged = now - self._changed
        stalled = [d for d in deployments if not observe.is_acted_on(d)] if unchanged > STALLED else []
        is_stuck = unchanged > STUCK and any(
            pod.get("spec", {}).get("nodeName") and not observe.is_ready(pod) for pod in pods
        )
        is_due = now - self._collected >= (SLOW_POLL if unchanged > SLOW_POLL else POLL)
        if is_due and (is_stuck or stalled or any(map(is_failing, pods)) or any(map(has_replica_failure, deployments))):
            self._collected = now
            self._known = await self._collect(pods)
            self.awaiting_node = await self._awaiting_node(pods)
        snapshot = replace(self._known, pods=pods, deployments=deployments, stalled=stalled, log_patterns=log_patterns)
        return causes(snapshot, self._namespace)

    async def _collect(self, pods: Sequence[Object]) -> Snapshot:
        is_unplaced, chosen = any(map(_is_unschedulable, pods)), logs_to_read(pods)
        tails = await asyncio.gather(*(self._log_tail(pod, container) for pod, container in chosen))
        keys = [(pod["metadata"]["name"], container) for pod, container in chosen]
        return Snapshot(
            events=await self._lists.get(EVENT, self._namespace, "type=Warning") or [],
            quotas=await self._lists.get(RESOURCE_QUOTA, self._namespace) or [],
            limit_ranges=await self._lists.get(LIMIT_RANGE, self._namespace) or [],
            nodes=await self._lists.get(NODE, None) if is_unplaced else self._known.nodes,
            log_tails=dict(zip(keys, tails, strict=True)),
        )

    async def _awaiting_node(self, pods: Sequence[Object]) -> frozenset[str]:
        unplaced = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods if _is_unschedulable(pod)}
        if not unplaced:
            return frozenset()
        lists = [await self._lists.get(EVENT, self._namespace, f"reason={reason}") or [] for reason in NODE_COMING]
        events = (event["involvedObject"] for listed in lists for event in listed)
        return frozenset(unplaced[each["uid"]] for each in events if each.get("uid") in unplaced)

    async def _log_tail(self, pod: Object, container: str) -> tuple[str, ...]:
        """The last lines before the container died; it may have been restarted since."""
        metadata = pod["metadata"]
        status = next(each for each in container_statuses(pod) if each["name"] == container)
        previous = "terminated" not in (status.get("state") or {}) and bool(status.get("restartCount"))
        try:
            async with asyncio.timeout(LOG_TIMEOUT):
                lines = self._client.logs(
                    metadata["name"],
                    metadata["namespace"],
                    container=container,
                    tail=LOG_LINES,
                    previous=previous,
                    limit_bytes=LOG_BYTES,
                )
                return tuple([line async for line in lines])
        except (OarsError, TimeoutError):
            return ()


def is_failing(pod: Object) -> bool:
    """True if the pod's own status reports a failure."""
    return observe.phase(pod) == "Failed" or _is_unschedulable(pod) or any(map(_has_failed, container_statuses(pod)))


def _has_failed(container: Mapping[str, Any]) -> bool:
    state = container.get("state") or {}
    return bool(
        (state.get("terminated") or {}).get("exitCode")
        or (state.get("waiting") or {}).get("reason", "") not in ("", "ContainerCreating", "PodInitializing")
        or (container.get("restartCount") and not container.get("ready"))
    )


def _is_unschedulable(pod: Object) -> bool:
    return condition(pod, "PodScheduled").get("status") == "False"


def has_replica_failure(deployment: Object) -> bool:
    """True if the API server refuses to create the Deployment's pods."""
    return condition(deployment, "ReplicaFailure").get("status") == "True"
