"""A third place, in memory, passes the contract: others can implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from oars.model import Desired, Member
from oars.places.base import Place
from oars.testing import PlaceContract
from tests.memory_place import MemoryPlace, MemoryStore
from tests.unit.plan.clusters import desired


class TestMemory(PlaceContract):
    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        self.store = MemoryStore()
        yield MemoryPlace(self.store), desired(2)

    async def reopen(self, place: Place) -> Place:
        return MemoryPlace(self.store)

    async def inventory(self, place: Place) -> Mapping[str, str]:
        members: dict[str, str] = {name: repr(member) for name, member in self.store.members.items()}
        return {**members, "records": f"{self.store.state} {self.store.report}"}

    async def kill(self, place: Place, member: Member) -> None:
        self.store.exit(member.id, -9, "was killed by SIGKILL")
