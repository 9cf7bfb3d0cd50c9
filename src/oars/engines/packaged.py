"""An engine put together from its two halves of the control plane: a pure `shape` module and a `live` one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from oars.engines.base import Wire
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:  # the user's half of an engine also runs in environments without pydantic
    from oars.spec.cluster import ClusterSpec


class ShapeModule(Protocol):
    def needs(self, spec: ClusterSpec) -> Needs: ...

    def check(self, spec: ClusterSpec) -> None: ...

    def shape(self, spec: ClusterSpec) -> Shape: ...


class LiveModule(Protocol):
    async def look(self, wire: Wire) -> View: ...

    async def drain(self, wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]: ...


@dataclass(frozen=True)
class PackagedEngine:
    """See oars.engines.base.Engine."""

    name: str
    session: str
    shaping: ShapeModule
    live: LiveModule

    def needs(self, spec: ClusterSpec) -> Needs:
        return self.shaping.needs(spec)

    def check(self, spec: ClusterSpec) -> None:
        self.shaping.check(spec)

    def shape(self, spec: ClusterSpec) -> Shape:
        return self.shaping.shape(spec)

    async def look(self, wire: Wire) -> View:
        return await self.live.look(wire)

    async def drain(self, wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
        return await self.live.drain(wire, members, force)
