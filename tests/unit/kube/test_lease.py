"""Leader election: observers, Lease metadata, suspended machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, cast

import pytest

from oars.kube import lease as lease_module
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.kube.lease import CLOCK, Elector, boot_time, find_held_lease, find_holder

DURATION = 1
RENEW_PERIOD = DURATION / 3  # as an Elector renews


class LeaseOfAnother:
    """A client that returns a Lease of another holder, whose clock is wrong by `clock_skew` seconds."""

    def __init__(
        self, *, clock_skew: float = 0.0, silent_for: float = 0.0, alive: bool = True, leader: str = "one"
    ) -> None:
        self.clock_skew, self.silent_for, self.alive, self.leader = clock_skew, silent_for, alive, leader
        self.started = time.monotonic()
        self.reads = 0

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        self.reads += 1
        renewals = int((time.monotonic() - self.started) / RENEW_PERIOD) if self.alive else 0
        renew_time = datetime.now(UTC) + timedelta(seconds=self.clock_skew - self.silent_for)
        spec = {"holderIdentity": self.leader, "renewTime": renew_time.isoformat(), "leaseDurationSeconds": DURATION}
        return {"metadata": {"resourceVersion": str(renewals)}, "spec": spec}


@pytest.mark.parametrize(
    ("server", "leader", "at_first_read"),
    [
        (lambda: LeaseOfAnother(), "one", True),
        (lambda: LeaseOfAnother(clock_skew=-3600), "one", False),
        (lambda: LeaseOfAnother(clock_skew=3600), "one", False),
        (lambda: LeaseOfAnother(alive=False, silent_for=60), None, False),
        (lambda: LeaseOfAnother(alive=False, silent_for=60, clock_skew=3600), None, False),
        (lambda: LeaseOfAnother(alive=False, leader=""), None, True),
    ],
)
def test_holder_is_found_despite_clock_skew(
    server: Callable[[], LeaseOfAnother], leader: str | None, at_first_read: bool
) -> None:
    lease = server()
    assert asyncio.run(find_holder(cast(Client, lease), "n", "l")) == leader
    assert (lease.reads == 1) is at_first_read
    assert time.monotonic() - lease.started < 30


def test_candidate_logs_once_whom_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lease = LeaseOfAnother()

    async def wait() -> bool:
        stop, elector = asyncio.Event(), Elector(cast(Client, lease), "n", "l", "two", retry_period=0.01)
        leading = asyncio.create_task(elector.lead(stop))
        while lease.reads < 5:
            await asyncio.wait([leading], timeout=0.01)
        stop.set()
        return await leading

    assert not asyncio.run(wait())
    assert [each.getMessage() for each in caplog.records] == ["waiting for leadership lease=l holder=one"]


def test_missing_lease_has_no_holder() -> None:
    class Empty:
        async def get(self, *_: object) -> Object:
            raise ApiError(404, {"reason": "NotFound"})

    assert asyncio.run(find_held_lease(cast(Client, Empty()), "n", "l")) is None


def test_lease_metadata_is_merged_into_the_lease() -> None:
    class OneLease:
        def __init__(self) -> None:
            metadata = {"name": "l", "resourceVersion": "1", "annotations": {"a": "b"}}
            self.lease: Object = {"metadata": metadata, "spec": {}}

        async def get(self, *_: object) -> Object:
            return self.lease

        async def replace(self, lease: Object) -> Object:
            self.lease = lease
            return lease

    async def body() -> None:
        server = OneLease()
        elector = Elector(cast(Client, server), "n", "l", "one")
        await elector.lead()
        assert server.lease["metadata"]["annotations"] == {"a": "b"}
        elector.lease_metadata = {"annotations": {"c": "d"}}
        await elector.release()
        assert server.lease["metadata"]["annotations"] == {"a": "b", "c": "d"}, "release() writes it"
        assert server.lease["spec"]["holderIdentity"] == ""

    asyncio.run(body())


METADATA: dict[str, Any] = {"labels": {"app": "demo"}, "ownerReferences": [{"uid": "new"}]}
RELEASED: Object = {
    "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "ownerReferences": [{"uid": "old"}]},
    "spec": {"holderIdentity": ""},
}


class LeaseStore:
    """A client that stores one Lease and rejects stale resourceVersions."""

    def __init__(self, lease: Object | None) -> None:
        self.lease = lease

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if self.lease is None:
            raise ApiError(404, {})
        return self.lease

    async def create(self, obj: Object) -> Object:
        assert self.lease is None
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
        return self.lease

    async def replace(self, obj: Object) -> Object:
        if self.lease is None or obj["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, {"reason": "Conflict"})
        version = str(int(obj["metadata"]["resourceVersion"]) + 1)
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
        return self.lease


@pytest.mark.parametrize("found", [None, RELEASED], ids=["no Lease", "Lease of a previous owner"])
def test_lease_gets_the_owner_references(found: Object | None) -> None:

    async def body() -> Object | None:
        server = LeaseStore(found)
        elector = Elector(cast(Client, server), "n", "l", "me")
        elector.lease_metadata = METADATA
        assert await elector.lead()
        await elector.release()
        return server.lease

    lease = asyncio.run(body())
    assert lease is not None
    metadata = lease["metadata"]
    assert {key: metadata[key] for key in METADATA} == METADATA
    assert (metadata["name"], metadata["namespace"]) == ("l", "n")


def test_second_release_writes_nothing() -> None:
    """Another candidate may hold the Lease by then."""

    async def body() -> None:
        server = LeaseStore(None)
        elector = Elector(cast(Client, server), "n", "l", "me")
        await elector.lead()
        await elector.release()
        released = server.lease
        await elector.release()
        assert released is not None and released["spec"]["holderIdentity"] == ""
        assert server.lease is released

    asyncio.run(body())


def test_release_does_not_recreate_a_deleted_lease() -> None:
    async def body() -> None:
        server = LeaseStore(None)
        elector = Elector(cast(Client, server), "n", "l", "me")
        await elector.lead()
        server.lease = None  # deleted with its owner
        await elector.release()
        assert server.lease is None and not elector.is_leader

    asyncio.run(body())


def test_leadership_is_lost_if_another_candidate_led_meanwhile() -> None:
    """Even if the other has released the Lease before we notice, as after a suspend. We may acquire it again."""

    async def body() -> None:
        server = LeaseStore(None)
        elector = Elector(cast(Client, server), "n", "l", "me", lease_duration=5, renew_deadline=0.4, retry_period=0.1)
        await elector.lead()
        assert server.lease is not None
        metadata = {**server.lease["metadata"], "resourceVersion": "70"}
        server.lease = {**server.lease, "metadata": metadata, "spec": {"holderIdentity": ""}}
        async with asyncio.timeout(60):
            await elector.lost.wait()
            assert not elector.is_leader
            assert await elector.lead()
        await elector.release()

    asyncio.run(body())


class Clock:
    """A clock that the test sets. Like a suspend, it does not affect the event loop's timers."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_suspended_leader_loses_leadership_when_the_lease_expires() -> None:
    """At once: the renewal task still sleeps, because its timer does not count suspended time."""

    async def body() -> None:
        clock = Clock()
        elector = Elector(cast(Client, LeaseStore(None)), "n", "l", "me", clock=clock)
        await elector.lead()
        clock.now += 14.9
        assert elector.is_leader
        clock.now += 0.2
        assert not elector.is_leader
        await elector.release()

    asyncio.run(body())


def test_leader_without_renewals_is_no_leader_after_the_lease_duration() -> None:
    """The local answer needs neither the API server nor the renewal task."""

    class Silent(LeaseStore):
        async def replace(self, obj: Object) -> Object:
            await asyncio.Event().wait()
            raise AssertionError

    async def body() -> None:
        clock = Clock()
        elector = Elector(cast(Client, Silent(None)), "n", "l", "me", lease_duration=9, renew_deadline=6, clock=clock)
        assert not elector.is_leader
        await elector.lead()
        clock.now += 8.9
        assert elector.is_leader
        clock.now += 0.1
        assert not elector.is_leader
        await elector.release()

    asyncio.run(body())


@pytest.mark.parametrize("step", [-7200, 7200])
def test_wall_clock_step_does_not_change_leadership(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    class Stepped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Stepped:
            return cls.fromtimestamp(time.time() + step, tz)

    async def body() -> None:
        clock, server = Clock(), LeaseStore(None)
        leader, candidate = (Elector(cast(Client, server), "n", "l", name, clock=clock) for name in ("me", "other"))
        await leader.lead()
        assert not await candidate._try_acquire(1)
        monkeypatch.setattr(lease_module, "datetime", Stepped)
        assert leader.is_leader and not await candidate._try_acquire(1), "the Lease has not expired"
        assert await leader._try_acquire(1) and not await candidate._try_acquire(1), "a renewal with the stepped clock"
        clock.now += 14
        assert leader.is_leader and not await candidate._try_acquire(1)
        clock.now += 2
        assert not leader.is_leader and await candidate._try_acquire(1)
        await leader.release()

    asyncio.run(body())


def test_unexpected_error_ends_leadership(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LeaseStore):
        async def replace(self, obj: Object) -> Object:
            raise KeyError("bug")

    async def body() -> None:
        client, clock = cast(Client, Broken(None)), Clock()
        elector = Elector(client, "n", "l", "me", lease_duration=30, renew_deadline=20, retry_period=0.1, clock=clock)
        await elector.lead()
        clock.now += 11  # more than half of the deadline: it renews soon
        await asyncio.wait_for(elector.lost.wait(), 60)
        assert not elector.is_leader

    asyncio.run(body())
    assert "lease renewal failed" in caplog.text


def test_leading_again_after_a_suspend_leaves_one_renewal_task() -> None:
    """The first renewal task has not noticed that the Lease expired."""

    async def body() -> None:
        clock = Clock()
        elector = Elector(cast(Client, LeaseStore(None)), "n", "l", "me", clock=clock)
        await elector.lead()
        clock.now += 60
        assert await elector.lead() and elector.is_leader
        renewing = [task for task in asyncio.all_tasks() if task.get_name() == "lease l"]
        assert len(renewing) == 1
        await elector.release()

    asyncio.run(body())


def test_lease_of_another_expires_while_we_are_suspended() -> None:
    async def body() -> None:
        clock = Clock()
        theirs: Object = {**RELEASED, "spec": {"holderIdentity": "another", "leaseDurationSeconds": 15}}
        elector = Elector(cast(Client, LeaseStore(theirs)), "n", "l", "me", clock=clock)
        assert not await elector._try_acquire(1)
        clock.now += 14
        assert not await elector._try_acquire(1)
        clock.now += 2
        assert await elector._try_acquire(1)

    asyncio.run(body())


def test_clock_counts_suspended_time_on_linux() -> None:
    assert CLOCK == getattr(time, "CLOCK_BOOTTIME", CLOCK)
    before, now, after = time.clock_gettime(CLOCK), boot_time(), time.clock_gettime(CLOCK)
    assert before <= now <= after
