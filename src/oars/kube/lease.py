"""Leader election with a Lease.

The leader renews its Lease. A candidate takes the Lease over after it has not changed for its duration by the
candidate's own clock, so clocks need not agree. A leader that cannot renew within the renew deadline steps down, well
before another candidate can take over.
"""

from __future__ import annotations

import asyncio
import math
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

MAX_RENEW_DEADLINE = 2 / 3  # of the lease duration; a leader that did not renew for that long has stepped down
POLLS = 10  # while waiting for a renewal; a watch would need additional permissions
# On Linux, time.monotonic() stops while the machine is suspended. Leases expire meanwhile.
CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_log = get_logger(__name__)


def boot_time() -> float:
    """Return a monotonic time in seconds that includes the time in which the machine was suspended."""
    return time.clock_gettime(CLOCK)


class Elector:
    """A candidate for leadership. Its identity must be unique, for example a pod name and a random suffix."""

    def __init__(  # noqa: PLR0913 (the times belong together)
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float = 15,
        renew_deadline: float = 10,
        retry_period: float = 2,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        if not retry_period < renew_deadline < lease_duration:
            raise ValueError("retry_period < renew_deadline < lease_duration must hold")
        self.identity = identity
        self.lost = asyncio.Event()
        self.error: Exception | None = None  # why the last attempt to acquire or renew failed
        # Labels, owner references and annotations of the Lease, written with its next update.
        self.lease_metadata: Mapping[str, Any] = {}
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_duration, self._renew_deadline = lease_duration, renew_deadline
        self._retry_period = retry_period
        self._clock = clock
        self._lease: Object = {}  # as last read or written
        self._is_leading = False
        self._renewed_at = float("-inf")  # start of the last successful renewal
        self._observed: tuple[str, float] = ("", 0.0)  # resourceVersion of another holder's Lease, and when first seen
        self._renewal: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        """True while the Lease is ours and has not expired, even if this process was stopped or suspended meanwhile.

        Sends no request. Steps of the wall clock have no effect."""
        return self._is_leading and self._clock() < self._renewed_at + self._lease_duration

    async def lead(self, stop: asyncio.Event | None = None) -> bool:
        """Wait until we are the leader, then renew in the background; return False if `stop` is set first.

        `lost` is set when leadership ends."""
        # The renewal task may not know yet that the Lease expired: its sleep does not count suspended time.
        await self._stop_renewing()
        self._is_leading = False
        self.lost.clear()
        stop, logged = stop or asyncio.Event(), ""
        while not stop.is_set():
            if await self._try_acquire(self._retry_period * 2):
                self._is_leading = True
                _log.info(pairs("became leader", lease=self._name, identity=self.identity))
                self._renewal = asyncio.create_task(self._renew_until_lost(), name=f"lease {self._name}")
                return True
            holder = str((self._lease.get("spec") or {}).get("holderIdentity") or "")
            if holder not in ("", self.identity, logged):
                logged = holder
                _log.info(pairs("waiting for leadership", lease=self._name, holder=holder))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._retry_period * random.uniform(0.8, 1.2))
        return False

    async def release(self) -> None:
        """Give up leadership and clear the holder, so that the next candidate need not wait."""
        await self._stop_renewing()
        if self.is_leader and self._lease.get("metadata", {}).get("resourceVersion"):
            lease = self._claimed(self._lease)
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            with suppress(OarsError, TimeoutError):
                async with asyncio.timeout(self._retry_period * 2):
                    await self._client.replace(lease)
        self._step_down()

    async def _stop_renewing(self) -> None:
        task, self._renewal = self._renewal, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # awaiting the task itself would confuse its cancellation with ours

    async def _renew_until_lost(self) -> None:
        try:
            while self._is_holder() and self._clock() < self._renewed_at + self._renew_deadline:
                is_fresh = self._clock() - self._renewed_at < self._renew_deadline / 2
                await asyncio.sleep(self._renew_deadline / 2 if is_fresh else self._retry_period / 2)
                remaining = self._renewed_at + self._renew_deadline - self._clock()
                if remaining > 0:
                    await self._try_acquire(remaining)
        except Exception:  # noqa: BLE001 (any error in the renewal ends the leadership)
            _log.exception(pairs("lease renewal failed", lease=self._name))
        _log.warning(pairs("lost leadership", lease=self._name, identity=self.identity))
        self._step_down()

    def _step_down(self) -> None:
        self._is_leading = False
        self.lost.set()

    def _is_holder(self) -> bool:
        return bool(self._lease.get("spec", {}).get("holderIdentity") == self.identity)

    async def _try_acquire(self, seconds: float) -> bool:
        """Acquire or renew the Lease; return False if another candidate holds it or the server does not answer."""
        started = self._clock()
        try:
            async with asyncio.timeout(seconds):
                acquired = await self._acquire_or_renew()
        except (OarsError, TimeoutError) as error:
            self.error = error
            if isinstance(error, ApiError):
                self._lease = {**self._lease, "metadata": {}}  # out of date: read it before the next attempt
                if error.status == 409:
                    self.error = None
            if self.error:
                first_line = str(error).split("\n")[0]
                _log.warning(pairs("cannot acquire or renew lease", lease=self._name, error=first_line))
            return False
        self.error = None
        if acquired:
            self._renewed_at = started
        return acquired

    async def _acquire_or_renew(self) -> bool:
        lease = self._lease
        if not self._is_holder() or not lease["metadata"].get("resourceVersion"):
            try:
                lease = await self._client.get(LEASE, self._name, self._namespace)
            except ApiError as error:
                if not is_not_found(error):
                    raise
                self._lease = await self._client.create(self._claimed({}))
                return True
            # Another candidate led while we believed to lead, for example during a suspend. Leadership is lost even if
            # the Lease is free again.
            was_lost = self._is_leading and (lease.get("spec") or {}).get("holderIdentity") != self.identity
            if was_lost or not self._is_available(lease):
                self._lease = lease
                return False
        self._lease = await self._client.replace(self._claimed(lease))
        return True

    def _is_available(self, lease: Object) -> bool:
        """True if the Lease is ours, has no holder, or has not changed for its duration."""
        spec, version = lease.get("spec") or {}, lease["metadata"]["resourceVersion"]
        if spec.get("holderIdentity") in (self.identity, "", None):
            return True
        if version != self._observed[0]:
            self._observed = (version, self._clock())
        return self._clock() - self._observed[1] > float(spec.get("leaseDurationSeconds") or self._lease_duration)

    def _claimed(self, lease: Object) -> Object:
        """Return the Lease with us as its holder, renewed now."""
        spec: dict[str, Any] = dict(lease.get("spec") or {})
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
            spec["acquireTime"] = now
        # The field is an integer. Rounding up makes other candidates wait longer, never shorter.
        duration = max(1, math.ceil(self._lease_duration))
        spec |= {"holderIdentity": self.identity, "renewTime": now, "leaseDurationSeconds": duration}
        meta = lease.get("metadata") or {"name": self._name, "namespace": self._namespace}
        annotations = {**(meta.get("annotations") or {}), **self.lease_metadata.get("annotations", {})}
        meta = {**meta, **self.lease_metadata, **({"annotations": annotations} if annotations else {})}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": meta, "spec": spec}


async def find_holder(client: Client, namespace: str, name: str) -> str | None:
    """Return the identity of the current leader, or None."""
    lease = await find_held_lease(client, namespace, name)
    return str(lease["spec"]["holderIdentity"]) if lease else None


async def find_held_lease(client: Client, namespace: str, name: str) -> Object | None:
    """Return the Lease if it has a live holder.

    If renewTime is not recent, the leader is dead or one of the clocks is wrong: wait as long as a live leader may take
    to renew."""
    lease = await _get_lease(client, namespace, name)
    if lease is None:
        return None
    duration = float(lease["spec"].get("leaseDurationSeconds") or 0)
    if is_held(lease):
        return lease
    seconds = duration * MAX_RENEW_DEADLINE
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(seconds / POLLS)
        current = await _get_lease(client, namespace, name)
        if current is None or current["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            return current
    return None


def is_held(lease: Object, tolerance: float = 1.0) -> bool:
    """True if the Lease names a holder that renewed it within `tolerance` of its durations, by this machine's clock."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    age = (datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])).total_seconds()
    return abs(age) <= tolerance * float(spec.get("leaseDurationSeconds") or 0)


async def _get_lease(client: Client, namespace: str, name: str) -> Object | None:
    """Return the Lease if it exists and names a holder."""
    try:
        lease = await client.get(LEASE, name, namespace)
    except ApiError as error:
        if is_not_found(error):
            return None
        raise
    return lease if (lease.get("spec") or {}).get("holderIdentity") else None
