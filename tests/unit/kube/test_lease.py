"""Who leads, as somebody sees it who only looks; and what a leader writes besides its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.kube.lease import CLOCK, Elector, held, holder, lasting

DURATION = 1
RENEWALS = DURATION / 3  # as an Elector has them


class Server:
    """With a Lease whose leader renews it until some time, by a clock that is wrong by so many seconds."""

    def __init__(self, *, wrong: float = 0.0, silent_for: float = 0.0, alive: bool = True, leader: str = "one") -> None:
        self.wrong, self.silent_for, self.alive, self.leader = wrong, silent_for, alive, leader
        self.begun = time.monotonic()
        self.looks = 0

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        self.looks += 1
        renewals = int((time.monotonic() - self.begun) / RENEWALS) if self.alive else 0
        moment = datetime.now(UTC) + timedelta(seconds=self.wrong - self.silent_for)
        spec = {"holderIdentity": self.leader, "renewTime": moment.isoformat(), "leaseDurationSeconds": DURATION}
        return {"metadata": {"resourceVersion": str(renewals)}, "spec": spec}


@pytest.mark.parametrize(
    ("server", "leader", "at_once"),
    [
        (lambda: Server(), "one", True),
        (lambda: Server(wrong=-3600), "one", False),
        (lambda: Server(wrong=3600), "one", False),
        (lambda: Server(alive=False, silent_for=60), None, False),
        (lambda: Server(alive=False, silent_for=60, wrong=3600), None, False),
        (lambda: Server(alive=False, leader=""), None, True),
    ],
)
def test_whoever_renews_leads_whatever_the_clocks_say(
    server: Callable[[], Server], leader: str | None, at_once: bool
) -> None:
    made = server()
    assert asyncio.run(holder(cast(Client, made), "n", "l")) == leader
    assert (made.looks == 1) is at_once
    assert time.monotonic() - made.begun < DURATION


def test_no_lease_is_nobody() -> None:
    class Empty:
        async def get(self, *_: object) -> Object:
            raise ApiError(404, {"reason": "NotFound"})

    assert asyncio.run(held(cast(Client, Empty()), "n", "l")) is None


def test_what_a_leader_says_of_itself_stands_in_the_lease() -> None:
    class Kept:
        def __init__(self) -> None:
            metadata = {"name": "l", "resourceVersion": "1", "annotations": {"a": "b"}}
            self.lease: Object = {"metadata": metadata, "spec": {}}

        async def get(self, *_: object) -> Object:
            return self.lease

        async def replace(self, lease: Object) -> Object:
            self.lease = lease
            return lease

    async def body() -> None:
        kept = Kept()
        elector = Elector(cast(Client, kept), "n", "l", "one")
        await elector.lead()
        assert kept.lease["metadata"]["annotations"] == {"a": "b"}
        elector.about = {"annotations": {"mine": "1"}}
        await elector.release()
        assert kept.lease["metadata"]["annotations"] == {"a": "b", "mine": "1"}, "with the last word at the latest"
        assert kept.lease["spec"]["holderIdentity"] == ""

    asyncio.run(body())


ABOUT: dict[str, Any] = {"labels": {"of": "demo"}, "ownerReferences": [{"uid": "now"}]}
LEFT: Object = {
    "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "ownerReferences": [{"uid": "before"}]},
    "spec": {"holderIdentity": ""},
}


class Holding:
    """Holds one Lease, or none."""

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


@pytest.mark.parametrize("found", [None, LEFT], ids=["none is there", "one is left of a cluster before"])
def test_it_goes_with_its_owner(found: Object | None) -> None:
    """One that is made anew while we lead, too: somebody, or the garbage collector, may have deleted the first."""

    async def body() -> Object | None:
        server = Holding(found)
        elector = Elector(cast(Client, server), "n", "l", "me")
        elector.about = ABOUT
        assert await elector.lead()
        await elector.release()
        return server.lease

    lease = asyncio.run(body())
    assert lease is not None
    metadata = lease["metadata"]
    assert {key: metadata[key] for key in ABOUT} == ABOUT
    assert (metadata["name"], metadata["namespace"]) == ("l", "n")


def test_a_second_release_says_nothing() -> None:
    """Somebody else may hold it by then."""

    async def body() -> None:
        server = Holding(None)
        elector = Elector(cast(Client, server), "n", "l", "me")
        await elector.lead()
        await elector.release()
        released = server.lease
        await elector.release()
        assert released is not None and released["spec"]["holderIdentity"] == ""
        assert server.lease is released

    asyncio.run(body())


def test_a_lease_that_is_gone_is_not_made_to_be_released() -> None:
    async def body() -> None:
        server = Holding(None)
        elector = Elector(cast(Client, server), "n", "l", "me")
        await elector.lead()
        server.lease = None  # with its owner
        await elector.release()
        assert server.lease is None and not elector.leads

    asyncio.run(body())


def test_a_lead_that_another_had_meanwhile_is_lost() -> None:
    """It was given back before we noticed, as on a laptop that slept: it is ours to take, but by leading anew."""

    async def body() -> None:
        server = Holding(None)
        elector = Elector(cast(Client, server), "n", "l", "me", duration=5, renew=0.4, retry=0.1)
        await elector.lead()
        assert server.lease is not None
        metadata = {**server.lease["metadata"], "resourceVersion": "70"}
        server.lease = {**server.lease, "metadata": metadata, "spec": {"holderIdentity": ""}}
        async with asyncio.timeout(5):
            await elector.lost.wait()
            assert not elector.leads
            assert await elector.lead()
        await elector.release()

    asyncio.run(body())


class Clock:
    """As far as it is set; the pauses of the event loop do not move it, nor it them, as in a sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_whoever_slept_too_long_leads_no_more() -> None:
    """At once: the pause until the next renewal has only just begun, by the clock of the event loop."""

    async def body() -> None:
        clock = Clock()
        elector = Elector(cast(Client, Holding(None)), "n", "l", "me", clock=clock)
        await elector.lead()
        clock.now += 14.9
        assert elector.leads
        clock.now += 0.2
        assert not elector.leads
        await elector.release()

    asyncio.run(body())


def test_whoever_slept_leads_anew_once() -> None:
    """Nobody else took the Lease meanwhile. The renewals of the first lead have not noticed that it is over."""

    async def body() -> None:
        clock = Clock()
        elector = Elector(cast(Client, Holding(None)), "n", "l", "me", clock=clock)
        await elector.lead()
        clock.now += 60
        assert await elector.lead() and elector.leads
        renewing = [task for task in asyncio.all_tasks() if task.get_name() == "lease l"]
        assert len(renewing) == 1
        await elector.release()

    asyncio.run(body())


def test_a_lease_that_stood_still_while_we_slept_is_free() -> None:
    async def body() -> None:
        clock = Clock()
        theirs: Object = {**LEFT, "spec": {"holderIdentity": "another", "leaseDurationSeconds": 15}}
        elector = Elector(cast(Client, Holding(theirs)), "n", "l", "me", clock=clock)
        assert not await elector._attempt(1)
        clock.now += 14
        assert not await elector._attempt(1)
        clock.now += 2
        assert await elector._attempt(1)

    asyncio.run(body())


def test_the_clock_counts_the_sleep() -> None:
    """Where there is one that does, as on Linux."""
    assert CLOCK == getattr(time, "CLOCK_BOOTTIME", CLOCK)
    before, found, after = time.clock_gettime(CLOCK), lasting(), time.clock_gettime(CLOCK)
    assert before <= found <= after
