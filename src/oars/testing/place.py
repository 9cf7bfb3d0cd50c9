"""What any place must do, whatever the engine. Subclass it and give it a place for a cluster of a toy engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from oars.model import (
    HEAD,
    Cause,
    Desired,
    Ensure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    Observed,
    Remove,
    Retiring,
    Role,
)
from oars.places.base import Place
from oars.places.report import Report
from oars.plan import names
from oars.spec.status import Phase, Status

SECONDS = 60.0


def in_place(test: Callable[[Any, Place, Desired], Awaitable[None]]) -> Callable[[Any], None]:
    """Make a test of an async method that needs a place and what to put into it."""

    def run(self: PlaceContract) -> None:
        self.run(lambda place, desired: test(self, place, desired))

    run.__doc__ = test.__doc__
    return run


class PlaceContract:
    """`place` gives a Place for an empty cluster and the Desired to put into it (one head, a group of workers)."""

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        raise NotImplementedError

    async def reopen(self, place: Place) -> Place:
        """A second Place for the same cluster, as a loop that takes over from a dead one has it."""
        raise NotImplementedError

    async def kill(self, place: Place, member: Member) -> None:
        """End a member behind the place's back, the way its kind of member dies."""
        raise NotImplementedError

    async def inventory(self, place: Place) -> Mapping[str, str]:
        """A spy: all that exists of the cluster (processes, files, objects), by name, with a version that changes with
        every write. What `record` stores is one entry, which always exists."""
        raise NotImplementedError

    def run(self, test: Callable[[Place, Desired], Awaitable[None]]) -> None:
        async def within() -> None:
            async with self.place() as (place, desired):
                await test(place, desired)

        asyncio.run(within())

    @in_place
    async def test_empty_at_first(self, place: Place, desired: Desired) -> None:
        observed = await place.observe(desired)
        assert observed.members == () and observed.state == LoopState() and observed.deaths == {}

    @in_place
    async def test_observe_writes_nothing(self, place: Place, desired: Desired) -> None:
        variants = (desired, with_workers(desired, 5), replace(desired, head_epoch=4), replace(desired, running=False))
        for is_started in (False, True):
            if is_started:
                await self.start(place, desired)
            before, members = await self.inventory(place), (await place.observe(desired)).members
            for variant in variants:
                await place.observe(variant)
            assert await self.inventory(place) == before
            assert (await place.observe(desired)).members == members

    @in_place
    async def test_record_creates_nothing(self, place: Place, desired: Desired) -> None:
        cause = Cause("Test", "Something is wrong.", "Correct it.")
        status = Status(desired.name, desired.engine, desired.place, Phase.DEGRADED, cause.reason, cause.message)
        for is_started in (False, True):
            if is_started:
                await self.start(place, desired)
            before, members = set(await self.inventory(place)), (await place.observe(desired)).members
            await place.record(desired, LoopState(head="1", head_epoch=2))
            await place.record(desired, LoopState(head="1", head_epoch=3), Report(status, (cause,)))
            assert set(await self.inventory(place)) == before
            assert (await place.observe(desired)).members == members

    @in_place
    async def test_ensure_starts_members_and_is_idempotent(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        first = await place.observe(desired)
        assert len(workers(first)) == desired.shape.workers[0].replicas and first.member(HEAD) is not None
        await self.start(place, desired)
        assert incarnations(await place.observe(desired)) == incarnations(first)

    @in_place
    async def test_ensure_removes_nothing(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        before, members = set(await self.inventory(place)), incarnations(await place.observe(desired))
        fewer = with_workers(desired, 1)
        first = workers(await place.observe(fewer))[0].id
        for _ in range(2):
            await place.ensure(fewer, Ensure(fewer.shape.head, (HEAD,)))
            await place.ensure(fewer, Ensure(fewer.shape.workers[0], (first,)))
        assert before <= set(await self.inventory(place))
        assert incarnations(await place.observe(fewer)) == members

    @in_place
    async def test_workers_carry_the_head_epoch_they_were_started_for(self, place: Place, desired: Desired) -> None:
        await self.start(place, replace(desired, head_epoch=3))
        assert {m.head_epoch for m in workers(await place.observe(desired))} == {3}

    @in_place
    async def test_dead_member_is_reported_with_its_reason(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        victim = workers(await place.observe(desired))[0]
        await self.kill(place, victim)

        async def is_reported() -> bool:
            return victim.id in (await place.observe(desired)).deaths

        await until(is_reported)
        death = (await place.observe(desired)).deaths[victim.id]
        assert death.reason and death.count >= 1

    @in_place
    async def test_restarted_head_is_another_incarnation_at_the_same_address(
        self, place: Place, desired: Desired
    ) -> None:
        await self.start(place, desired)
        before = await place.observe(desired)
        address = place.wire(desired).fill(desired.shape.endpoints["client"])
        head = before.member(HEAD)
        assert head is not None
        await self.kill(place, head)
        await until(self._has_another_head(place, desired, before))
        assert place.wire(desired).fill(desired.shape.endpoints["client"]) == address

    @in_place
    async def test_remove_takes_exactly_the_named_workers(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        first, *rest = [member.id for member in workers(await place.observe(desired))]
        fewer = with_workers(desired, len(rest))
        await place.record(fewer, LoopState(retiring={first: Retiring(1.0, True)}))
        await self.remove(place, fewer, first)
        assert {m.id for m in workers(await place.observe(fewer))} == set(rest)
        await place.remove(fewer, Remove((first,), "again"))
        assert {m.id for m in workers(await place.observe(fewer))} == set(rest)

    @in_place
    async def test_remove_takes_the_head_alone(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        before = await place.observe(desired)
        await self.remove(place, desired, HEAD)
        kept = {member.id: member.incarnation for member in workers(before)}
        assert {member.id: member.incarnation for member in (await place.observe(desired)).members} == kept
        await until(self._has_another_head(place, desired, before))

    @in_place
    async def test_remove_takes_everyone_of_a_stopped_cluster(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        stopped = replace(desired, running=False)
        everyone = tuple(member.id for member in (await place.observe(stopped)).members)

        async def is_empty() -> bool:
            await place.remove(stopped, Remove(everyone, "stop"))
            return not (await place.observe(stopped)).members

        await until(is_empty)

    @in_place
    async def test_collect_keeps_what_is_desired(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        before = incarnations(await place.observe(desired))
        await place.collect(desired)
        assert incarnations(await place.observe(desired)) == before

    @in_place
    async def test_recorded_state_survives_the_loop(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        victim = workers(await place.observe(desired))[0].id
        state = LoopState(retiring={victim: Retiring(1.5, True, "nothing")}, head="x", head_epoch=2)
        await place.record(desired, state)
        observed = await (await self.reopen(place)).observe(desired)
        assert (observed.state.retiring, observed.state.head, observed.state.head_epoch) == (state.retiring, "x", 2)
        assert incarnations(observed) == incarnations(await place.observe(desired))

    @in_place
    async def test_wire_knows_every_member(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        wire, observed = place.wire(desired), await place.observe(desired)
        assert set(wire.incarnations) == {member.id for member in observed.members}
        ports = [address for member in wire.addresses.values() for address in member.values()]
        assert len(ports) == len(set(ports))

    def _has_another_head(self, place: Place, desired: Desired, before: Observed) -> Callable[[], Awaitable[bool]]:
        """Ensure everything again. Workers may exit when they lose their head."""

        async def is_another() -> bool:
            await self.start(place, desired, wait=False)
            await place.collect(desired)
            head = (await place.observe(desired)).member(HEAD)
            is_running = head is not None and head.state is MemberState.RUNNING
            return is_running and head is not None and head.incarnation not in ("", *incarnations(before))

        return is_another

    # for subclasses

    async def start(self, place: Place, desired: Desired, *, wait: bool = True) -> None:
        """Ensure everything; with `wait`, until all of it runs."""
        group = desired.shape.workers[0]
        existing = [member.id for member in workers(await place.observe(desired))]
        missing = names.member_ids(group, max(0, group.replicas - len(existing)), existing)
        await place.ensure(desired, Ensure(desired.shape.head, (HEAD,)))
        await place.ensure(desired, Ensure(group, (*existing, *missing)))
        if not wait:
            return

        async def all_run() -> bool:
            observed = await place.observe(desired)
            running = [member for member in observed.members if member.state is MemberState.RUNNING]
            return len(running) == 1 + group.replicas == len(observed.members)

        await until(all_run)

    async def remove(self, place: Place, desired: Desired, member: MemberId) -> None:
        async def is_gone() -> bool:
            await place.remove(desired, Remove((member,), "test"))
            await place.collect(desired)
            return (await place.observe(desired)).member(member) is None

        await until(is_gone)


def workers(observed: Observed) -> list[Member]:
    return sorted((m for m in observed.members if m.role is Role.WORKER), key=lambda member: member.id)


def incarnations(observed: Observed) -> list[str]:
    return sorted(member.incarnation for member in observed.members)


def with_workers(desired: Desired, count: int) -> Desired:
    first, *others = desired.shape.workers
    return replace(desired, shape=replace(desired.shape, workers=(replace(first, replicas=count), *others)))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + SECONDS
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.02)
