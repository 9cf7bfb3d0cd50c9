"""What any place must do, whatever the engine. Subclass it and give it a place for a cluster of the toy kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from oars.model import (
    HEAD,
    Desired,
    Ensure,
    LoopState,
    MemberId,
    MemberState,
    Observed,
    Remove,
    Retiring,
)
from oars.places.base import Place

SECONDS = 60.0


class PlaceContract:
    """`place` gives a Place for an empty cluster and the Desired to put into it (one head, a group of workers)."""

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        raise NotImplementedError

    async def reopen(self, place: Place) -> Place:
        """A second Place for the same cluster, as a keeper that comes after a dead one would have it."""
        raise NotImplementedError

    async def kill(self, place: Place, member: MemberId) -> None:
        """End a member behind the place's back."""
        raise NotImplementedError

    def run(self, test: Callable[[Place, Desired], Awaitable[None]]) -> None:
        async def within() -> None:
            async with self.place() as (place, desired):
                await test(place, desired)

        asyncio.run(within())

    def test_empty_at_first(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            assert await place.observe() == Observed(heals=(await place.observe()).heals)

        self.run(test)

    def test_ensure_starts_and_is_idempotent(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            first = await place.observe()
            assert {m.id for m in first.members} == {HEAD, *_workers(desired)}
            assert all(m.state is MemberState.RUNNING for m in first.members)
            await _start(place, desired)
            assert [m.incarnation for m in (await place.observe()).members] == [m.incarnation for m in first.members]

        self.run(test)

    def test_a_member_that_ends_is_seen_with_reason_and_last_lines(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            (victim, *_) = _workers(desired)
            await _until(lambda: _logged(place, victim))
            await self.kill(place, victim)
            await _until(lambda: _state_is(place, victim, MemberState.EXITED))
            member = (await place.observe()).member(victim)
            assert member is not None and "SIGKILL" in member.reason and member.tail

        self.run(test)

    def test_a_restart_is_another_incarnation_at_the_same_address(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            before, address = (await place.observe()).member(HEAD), dict(place.wire().addresses[HEAD])
            await self.kill(place, HEAD)
            await _until(lambda: _state_is(place, HEAD, MemberState.EXITED))
            await place.ensure(desired, Ensure(desired.shape.head, (HEAD,)))
            after = (await place.observe()).member(HEAD)
            assert before is not None and after is not None and after.incarnation != before.incarnation
            assert place.wire().addresses[HEAD] == address

        self.run(test)

    def test_remove_takes_away_exactly_those(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            first, *rest = _workers(desired)
            await place.remove(desired, Remove((first,), "test"))
            assert {m.id for m in (await place.observe()).members} == {HEAD, *rest}
            await place.remove(desired, Remove((first,), "again"))

        self.run(test)

    def test_notes_outlive_the_one_who_made_them(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            notes = LoopState(retiring={MemberId("worker-0"): Retiring(1.5, True, "nothing")})
            await place.record(notes)
            again = await self.reopen(place)
            observed = await again.observe()
            assert observed.notes == notes
            assert [m.incarnation for m in observed.members] == [m.incarnation for m in (await place.observe()).members]

        self.run(test)

    def test_logs_end_where_the_file_ends(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            await _until(lambda: _logged(place, HEAD))
            assert [line async for line in place.logs(HEAD, tail=1)]

        self.run(test)

    def test_the_wire_knows_everyone_s_ports(self) -> None:
        async def test(place: Place, desired: Desired) -> None:
            await _start(place, desired)
            wire = place.wire()
            assert set(wire.addresses) == {HEAD, *_workers(desired)} == set(wire.incarnations)
            ports = [address for member in wire.addresses.values() for address in member.values()]
            assert len(ports) == len(set(ports))

        self.run(test)


def _workers(desired: Desired) -> list[MemberId]:
    return [MemberId(f"worker-{number}") for number in range(desired.shape.workers[0].replicas)]


async def _start(place: Place, desired: Desired) -> None:
    await place.ensure(desired, Ensure(desired.shape.head, (HEAD,)))
    group = replace(desired.shape.workers[0])
    await place.ensure(desired, Ensure(group, tuple(_workers(desired))))
    await _until(lambda: _all_started(place))


async def _all_started(place: Place) -> bool:
    return all(m.state is not MemberState.WAITING for m in (await place.observe()).members)


async def _state_is(place: Place, member: MemberId, state: MemberState) -> bool:
    found = (await place.observe()).member(member)
    return found is not None and found.state is state


async def _logged(place: Place, member: MemberId) -> bool:
    lines: AsyncIterator[str] = place.logs(member)
    return bool([line async for line in lines])


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + SECONDS
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)
