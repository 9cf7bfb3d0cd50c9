"""What any place must do, whatever the engine. Subclass it and give it a place for a cluster of a toy engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from oars.model import HEAD, Desired, Ensure, LoopState, Member, MemberId, MemberState, Observed, Remove, Retiring, Role
from oars.places.base import Place
from oars.plan import names

SECONDS = 60.0


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

    def run(self, test: Callable[[Place, Desired], Awaitable[None]]) -> None:
        async def within() -> None:
            async with self.place() as (place, desired):
                await test(place, desired)

        asyncio.run(within())

    def test_empty_at_first(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            observed = await place.observe(desired)
            assert observed.members == () and observed.state == LoopState() and observed.deaths == {}

        self.run(test)

    def test_observe_changes_nothing(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await place.observe(desired)
            assert (await place.observe(desired)).members == ()
            await self.start(place, desired)
            first = await place.observe(desired)
            assert (await place.observe(desired)).members == first.members

        self.run(test)

    def test_record_creates_nothing(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await place.record(desired, LoopState(head="1", head_epoch=2))
            assert (await place.observe(desired)).members == ()

        self.run(test)

    def test_ensure_starts_members_and_is_idempotent(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            first = await place.observe(desired)
            assert len(workers(first)) == desired.shape.workers[0].replicas and first.member(HEAD) is not None
            await self.start(place, desired)
            again = await place.observe(desired)
            assert sorted(m.incarnation for m in again.members) == sorted(m.incarnation for m in first.members)

        self.run(test)

    def test_workers_carry_the_head_epoch_they_were_started_for(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, replace(desired, head_epoch=3))
            assert {m.head_epoch for m in workers(await place.observe(desired))} == {3}

        self.run(test)

    def test_dead_member_is_reported_with_its_reason(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            victim = workers(await place.observe(desired))[0]
            await self.kill(place, victim)

            async def is_reported() -> bool:
                return victim.id in (await place.observe(desired)).deaths

            await until(is_reported)
            death = (await place.observe(desired)).deaths[victim.id]
            assert death.reason and death.count >= 1

        self.run(test)

    def test_restarted_head_is_another_incarnation_at_the_same_address(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            before = (await place.observe(desired)).member(HEAD)
            assert before is not None
            address = place.wire(desired).fill(desired.shape.endpoints["client"])
            await self.kill(place, before)

            async def is_another() -> bool:
                await self.start(place, desired, wait=False)
                head = (await place.observe(desired)).member(HEAD)
                running = head is not None and head.state is MemberState.RUNNING
                return running and head is not None and head.incarnation not in ("", before.incarnation)

            await until(is_another)
            assert place.wire(desired).fill(desired.shape.endpoints["client"]) == address

        self.run(test)

    def test_remove_takes_exactly_the_named_workers(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            first, *rest = [member.id for member in workers(await place.observe(desired))]
            fewer = with_workers(desired, len(rest))
            await place.record(fewer, LoopState(retiring={first: Retiring(1.0, True)}))
            await self.remove(place, fewer, first)
            assert {m.id for m in workers(await place.observe(fewer))} == set(rest)
            await place.remove(fewer, Remove((first,), "again"))
            assert {m.id for m in workers(await place.observe(fewer))} == set(rest)

        self.run(test)

    def test_remove_takes_the_head_too(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            stopped = replace(desired, running=False)
            everyone = tuple(member.id for member in (await place.observe(stopped)).members)

            async def is_empty() -> bool:
                await place.remove(stopped, Remove(everyone, "stop"))
                return not (await place.observe(stopped)).members

            await until(is_empty)

        self.run(test)

    def test_collect_keeps_what_is_desired(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            before = {m.incarnation for m in (await place.observe(desired)).members}
            await place.collect(desired)
            assert {m.incarnation for m in (await place.observe(desired)).members} == before

        self.run(test)

    def test_recorded_state_survives_the_loop(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            victim = workers(await place.observe(desired))[0].id
            state = LoopState(retiring={victim: Retiring(1.5, True, "nothing")}, head="x", head_epoch=2)
            await place.record(desired, state)
            observed = await (await self.reopen(place)).observe(desired)
            assert (observed.state.retiring, observed.state.head, observed.state.head_epoch) == (state.retiring, "x", 2)
            same = await place.observe(desired)
            assert sorted(m.incarnation for m in observed.members) == sorted(m.incarnation for m in same.members)

        self.run(test)

    def test_wire_knows_every_member(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            wire, observed = place.wire(desired), await place.observe(desired)
            assert set(wire.incarnations) == {member.id for member in observed.members}
            ports = [address for member in wire.addresses.values() for address in member.values()]
            assert len(ports) == len(set(ports))

        self.run(test)

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


def with_workers(desired: Desired, count: int) -> Desired:
    first, *others = desired.shape.workers
    return replace(desired, shape=replace(desired.shape, workers=(replace(first, replicas=count), *others)))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + SECONDS
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.02)
