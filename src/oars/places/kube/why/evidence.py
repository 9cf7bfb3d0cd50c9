"""Gathering what explains a cluster that is not as wanted: events, logs of what died, nodes, quotas. Only then, and not
too often: at rest nothing is asked of the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.kinds import EVENT, LIMIT_RANGE, NODE, RESOURCE_QUOTA, Kind, Object
from oars.model import Cause
from oars.places.kube.state import observe
from oars.places.kube.why import explain

PAUSE = 2.0  # between two looks
LONG_PAUSE = 30.0  # the same, once nothing has changed for so long
STUCK = 3.0  # seconds without a change after which a pod that is on its node may need an explanation
UNHEEDED = 15.0  # the same of a Deployment that its controller does not act on; it may have much to do
LINES = 20
LOG_SECONDS = 4.0  # for the log of a container; its node may be away
_ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")


class Ground:
    """What clusters share: their namespace's events and quotas, and the nodes. Fingerprint for once for all of them."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asked: dict[tuple[str, str], tuple[float, asyncio.Task[list[Object] | None]]] = {}

    async def look(self, kind: Kind, namespace: str | None, fields: str = "") -> list[Object] | None:
        """As it was at most PAUSE seconds ago. None: we may not look, or cannot now; what is said is less exact."""
        now, key = self._clock(), (kind.plural, namespace or "")
        if key not in self._asked or now - self._asked[key][0] >= PAUSE:
            # Others are forgotten: lists of nodes and events are large.
            self._asked = {k: asked for k, asked in self._asked.items() if now - asked[0] < 2 * PAUSE}
            self._asked[key] = now, asyncio.create_task(self._fetch(kind, namespace, fields))
        return await asyncio.shield(self._asked[key][1])

    async def _fetch(self, kind: Kind, namespace: str | None, fields: str) -> list[Object] | None:
        try:
            return (await self._client.list(kind, namespace, fields=fields)).items
        except (OarsError, TimeoutError):
            return None


class Evidence:
    """Of one cluster."""

    def __init__(self, client: Client, namespace: str, ground: Ground, clock: Callable[[], float] = time.monotonic):
        self._client = client
        self._namespace = namespace
        self._ground = ground
        self._clock = clock
        self._versions: frozenset[str] = frozenset()
        self._changed = 0.0
        self.forget()

    def forget(self) -> None:
        """All is as wanted."""
        self._looked = 0.0
        self._events: list[Object] = []
        self._nodes: list[Object] | None = None
        self._quotas: list[Object] = []
        self._limits: list[Object] = []
        self._tails: dict[tuple[str, str], tuple[str, ...]] = {}

    async def causes(self, pods: Sequence[Object], deployments: Sequence[Object]) -> tuple[Cause, ...]:
        """What is wrong, as far as Kubernetes knows."""
        if self._is_due(pods, deployments):
            self._looked = self._clock()
            await self._gather(pods)
        snapshot = explain.Snapshot(
            pods=pods,
            events=self._events,
            deployments=deployments,
            unheeded=self._unheeded(deployments),
            nodes=self._nodes,
            quotas=self._quotas,
            limit_ranges=self._limits,
            log_tails=self._tails,
        )
        return explain.causes(snapshot, self._namespace)

    def _is_due(self, pods: Sequence[Object], deployments: Sequence[Object]) -> bool:
        """A cluster that takes its course has nothing to explain; one that has been broken for long, nothing new."""
        now = self._clock()
        versions = frozenset(str(obj["metadata"].get("resourceVersion")) for obj in (*pods, *deployments))
        if versions != self._versions:
            self._versions, self._changed = versions, now
        still = self._still()
        if now - self._looked < (LONG_PAUSE if still > LONG_PAUSE else PAUSE):
            return False
        if any(map(is_troubled, pods)) or any(map(is_refused, deployments)) or self._unheeded(deployments):
            return True
        return still > STUCK and any(_is_on_node(pod) and not observe.is_ready(pod) for pod in pods)

    def _still(self) -> float:
        """Seconds in which nothing has changed."""
        return self._clock() - self._changed

    def _unheeded(self, deployments: Sequence[Object]) -> list[Object]:
        return [d for d in deployments if not observe.is_acted_on(d)] if self._still() > UNHEEDED else []

    async def _gather(self, pods: Sequence[Object]) -> None:
        here, ground = self._namespace, self._ground
        self._events = await ground.look(EVENT, here, "type=Warning") or []
        self._quotas = await ground.look(RESOURCE_QUOTA, here) or []
        self._limits = await ground.look(LIMIT_RANGE, here) or []
        if any(map(_has_no_node, pods)):
            self._nodes = await ground.look(NODE, None)
        chosen = explain.logs_to_read(pods)
        tails = await asyncio.gather(*(self._tail(pod, container) for pod, container in chosen))
        read = [(pod["metadata"]["name"], container) for pod, container in chosen]
        self._tails = dict(zip(read, tails, strict=True))

    async def _tail(self, pod: Object, container: str) -> tuple[str, ...]:
        """What it said before it died: of the life that has ended, if it has another by now."""
        metadata = pod["metadata"]
        status = next(each for each in explain.all_statuses(pod) if each["name"] == container)
        previous = "terminated" not in (status.get("state") or {}) and bool(status.get("restartCount"))
        try:
            async with asyncio.timeout(LOG_SECONDS):
                lines = self._client.logs(
                    metadata["name"], metadata["namespace"], container=container, tail=LINES, previous=previous
                )
                return tuple([line async for line in lines])
        except (OarsError, TimeoutError):
            return ()


def is_troubled(pod: Object) -> bool:
    """Its own status says that something is wrong."""
    if pod.get("status", {}).get("phase") == "Failed" or _has_no_node(pod):
        return True
    for container in explain.all_statuses(pod):
        state = container.get("state") or {}
        failed = (state.get("terminated") or {}).get("exitCode")
        if failed or (state.get("waiting") or {}).get("reason", "") not in _ON_ITS_WAY:
            return True
        if container.get("restartCount") and not container.get("ready"):
            return True
    return False


def _has_no_node(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _is_on_node(pod: Object) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def is_refused(deployment: Object) -> bool:
    """Its pods are not let in."""
    conditions = deployment.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("ReplicaFailure", "True") for each in conditions)
