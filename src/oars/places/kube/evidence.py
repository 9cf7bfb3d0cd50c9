"""Gathering what explains a cluster that is not as wanted: events, logs of what died, nodes, quotas. Only then, and not
too often: at rest nothing is asked of the API server."""

from __future__ import annotations

import time
from collections.abc import Sequence

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.kinds import EVENT, LIMIT_RANGE, NODE, RESOURCE_QUOTA, Kind, Object
from oars.model import Cause
from oars.places.kube import why

PAUSE = 3.0  # between two looks
LINES = 20


class Evidence:
    """Of one cluster."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._looked = 0.0
        self._began = 0.0
        self._events: list[Object] = []
        self._nodes: list[Object] | None = None
        self._quotas: list[Object] = []
        self._limits: list[Object] = []
        self._tails: dict[str, tuple[str, ...]] = {}

    async def causes(self, pods: Sequence[Object], deployments: Sequence[Object]) -> tuple[Cause, ...]:
        """What is wrong, as far as Kubernetes knows."""
        now = time.monotonic()
        if now - self._looked > PAUSE:
            # A cluster that has just begun to start has nothing to explain yet.
            if self._looked and now - self._began < 10 * PAUSE:
                await self._gather(pods)
            elif now - self._looked > 10 * PAUSE:
                self._began = now
            self._looked = now
        snapshot = why.Snapshot(
            pods=pods,
            events=self._events,
            deployments=deployments,
            nodes=self._nodes,
            quotas=self._quotas,
            limit_ranges=self._limits,
            log_tails=self._tails,
        )
        return why.causes(snapshot, self._namespace)

    async def _gather(self, pods: Sequence[Object]) -> None:
        names = {pod["metadata"]["name"] for pod in pods}
        self._events = await self._list(EVENT, self._namespace, "type=Warning") or []
        self._quotas = await self._list(RESOURCE_QUOTA, self._namespace) or []
        self._limits = await self._list(LIMIT_RANGE, self._namespace) or []
        if any(pod.get("status", {}).get("phase") == "Pending" for pod in pods):
            self._nodes = await self._list(NODE, None)
        self._tails = {name: lines for name, lines in self._tails.items() if name in names}
        for pod in pods:
            if why.needs_log(pod):
                self._tails[pod["metadata"]["name"]] = await self._tail(pod)

    async def _list(self, kind: Kind, namespace: str | None, fields: str = "") -> list[Object] | None:
        """None: we may not look, or cannot now; what is said is then less exact."""
        try:
            return (await self._client.list(kind, namespace, fields=fields)).items
        except OarsError:
            return None

    async def _tail(self, pod: Object) -> tuple[str, ...]:
        metadata = pod["metadata"]
        container = str(metadata["labels"]["oars.dev/role"])
        statuses = pod.get("status", {}).get("containerStatuses") or ()
        mine: Object = next((status for status in statuses if status["name"] == container), {})
        previous = "terminated" not in mine.get("state", {}) and bool(mine.get("restartCount"))
        try:
            lines = self._client.logs(
                metadata["name"], metadata["namespace"], container=container, tail=LINES, previous=previous
            )
            return tuple([line async for line in lines])
        except OarsError:
            return ()
