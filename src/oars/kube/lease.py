"""One leader among many, by a Lease.

A leader renews its Lease; others wait until it stood still for `duration` seconds by their own clock, so clocks need
not agree. A leader that could not renew for `renew` seconds steps down, well before another may begin.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import LEASE, Object

LONGEST_RENEWAL = 2 / 3  # of its duration: a leader that could not renew a Lease for so long steps down
LOOKS = 10  # while one waits for that; not a watch, which takes rights that not everybody has
# On Linux CLOCK_MONOTONIC, which is time.monotonic(), stands still while the machine sleeps; Leases do not.
CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_log = get_logger(__name__)


def lasting() -> float:
    """The seconds that have passed for everybody, also while this machine slept."""
    return time.clock_gettime(CLOCK)


class Elector:
    """One candidate. Its identity must be its own: a pod's name with something random, say."""

    def __init__(  # noqa: PLR0913 (the times belong together)
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        duration: float = 15,
        renew: float = 10,
        retry: float = 2,
        clock: Callable[[], float] = lasting,
    ) -> None:
        if not retry < renew < duration:
            raise ValueError("retry < renew < duration must hold")
        self.identity = identity
        self.leading = asyncio.Event()
        self.lost = asyncio.Event()
        self.error: Exception | None = None  # why there was no word on the Lease when we last asked
        # Labels, owners and annotations of the Lease, from our next word on it on; also of one that another one left.
        self.about: Mapping[str, Any] = {}
        self._client = client
        self._namespace = namespace
        self._name = name
        self._duration, self._renew, self._retry = duration, renew, retry
        self._clock = clock
        self._lease: Object = {}  # as we wrote it last
        self._renewed = float("-inf")  # when we asked for the last renewal that was granted
        self._seen: tuple[str, float] = ("", 0.0)  # the version of another's Lease, and since when we know it
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether we lead now. Also right in a process that was stopped for a while, or whose machine slept, and that
        has not noticed yet."""
        return self.leading.is_set() and self._clock() < self._renewed + self._duration

    async def lead(self, stop: asyncio.Event | None = None) -> bool:
        """Wait until we lead, then renew in the background; `lost` is set when that ends. False: `stop` came first."""
        await self._end_renewing()  # its own pauses stand still in a sleep: it may not know yet that we lead no more
        self.leading.clear()
        self.lost.clear()
        while not (stop and stop.is_set()):
            if await self._attempt(self._retry * 2):
                self.leading.set()
                _log.info(pairs("leading", lease=self._name, identity=self.identity))
                self._task = asyncio.create_task(self._keep(), name=f"lease {self._name}")
                return True
            await _pause(self._retry * random.uniform(0.8, 1.2), stop)
        return False

    async def release(self) -> None:
        """Step down in good order: the next one need not wait."""
        await self._end_renewing()
        known = bool(self._lease.get("metadata", {}).get("resourceVersion"))
        if self.leads and known:
            lease = self._written(self._lease)
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            with suppress(OarsError, TimeoutError):
                async with asyncio.timeout(self._retry * 2):
                    await self._client.replace(lease)
        self._step_down()

    async def _end_renewing(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # not the task itself: whoever cancels us must not be taken for the task's end

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._renew / 2 if self._fresh() else self._retry / 2)
            left = self._renewed + self._renew - self._clock()
            if left > 0 and await self._attempt(left):
                continue
            if self._held_by_another() or self._clock() >= self._renewed + self._renew:
                _log.warning(pairs("lost the lead", lease=self._name, identity=self.identity))
                self._step_down()
                return

    def _fresh(self) -> bool:
        return self._clock() - self._renewed < self._renew / 2

    def _step_down(self) -> None:
        self.leading.clear()
        self.lost.set()

    def _held_by_another(self) -> bool:
        return bool(self._lease.get("spec", {}).get("holderIdentity") != self.identity)

    async def _attempt(self, seconds: float) -> bool:
        """Take or renew the Lease; False when it is another's or the server does not answer in time."""
        asked = self._clock()
        try:
            async with asyncio.timeout(seconds):
                taken = await self._take()
        except (OarsError, TimeoutError) as error:
            conflict = isinstance(error, ApiError) and error.status == 409
            if conflict or isinstance(error, ApiError):
                self._lease = {**self._lease, "metadata": {}}  # what we know is out of date: read it anew
            self.error = None if conflict else error
            if not conflict:
                _log.warning(pairs("no word on the lease", lease=self._name, error=str(error).split("\n")[0]))
            return False
        self.error = None
        if taken:
            self._renewed = asked
        return taken

    async def _take(self) -> bool:
        lease = self._lease
        if self._held_by_another() or not lease["metadata"].get("resourceVersion"):
            try:
                lease = await self._client.get(LEASE, self._name, self._namespace)
            except ApiError as error:
                if not is_not_found(error):
                    raise
                self._lease = await self._client.create(self._written({}))
                return True
            if self._is_lost(lease) or not self._free(lease):
                self._lease = lease
                return False
        self._lease = await self._client.replace(self._written(lease))
        return True

    def _is_lost(self, lease: Object) -> bool:
        """Whether another has led while we thought that we do, as on a laptop that slept. We have to begin anew, also
        if nobody leads now."""
        return self.leading.is_set() and (lease.get("spec") or {}).get("holderIdentity") != self.identity

    def _free(self, lease: Object) -> bool:
        """Whether it is ours, nobody's, or has stood still for as long as its holder said it may."""
        spec, version = lease.get("spec") or {}, lease["metadata"]["resourceVersion"]
        if spec.get("holderIdentity") in (self.identity, "", None):
            return True
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        return self._clock() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._duration)

    def _written(self, lease: Object) -> Object:
        spec: dict[str, Any] = dict(lease.get("spec") or {})
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self.identity, "renewTime": now, "leaseDurationSeconds": _whole(self._duration)}
        meta = lease.get("metadata") or {"name": self._name, "namespace": self._namespace}
        annotations = {**(meta.get("annotations") or {}), **self.about.get("annotations", {})}
        meta = {**meta, **self.about, **({"annotations": annotations} if annotations else {})}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": meta, "spec": spec}


async def holder(client: Client, namespace: str, name: str) -> str | None:
    """Who leads now; None when nobody does."""
    lease = await held(client, namespace, name)
    return str(lease["spec"]["holderIdentity"]) if lease else None


async def held(client: Client, namespace: str, name: str) -> Object | None:
    """The Lease, if somebody leads by it. Renewed just now, by our clock, it is; else a clock may be wrong, the
    leader's or ours, and we look for as long as a leader may take to renew it."""
    lease = await _look(client, namespace, name)
    if lease is None or _is_just_renewed(lease["spec"]):
        return lease
    seconds = _duration(lease["spec"]) * LONGEST_RENEWAL
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(seconds / LOOKS)
        now = await _look(client, namespace, name)
        if now is None or now["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            return now
    return None


async def _look(client: Client, namespace: str, name: str) -> Object | None:
    """The Lease, if somebody's name is on it."""
    try:
        lease = await client.get(LEASE, name, namespace)
    except ApiError as error:
        if is_not_found(error):
            return None
        raise
    return lease if (lease.get("spec") or {}).get("holderIdentity") else None


def _is_just_renewed(spec: Object) -> bool:
    if not spec.get("renewTime"):
        return False
    age = (datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])).total_seconds()
    return abs(age) <= _duration(spec)


def _duration(spec: Object) -> float:
    return float(spec.get("leaseDurationSeconds") or 0)


def _whole(seconds: float) -> int:
    """A Lease has whole seconds: rounded up, others wait rather longer."""
    return max(1, -int(-seconds // 1))


async def _pause(seconds: float, stop: asyncio.Event | None) -> None:
    if stop is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
