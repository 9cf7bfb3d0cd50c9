"""Mars, as xorbits or as pymars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oars.engines.base import Engine, Wire
from oars.engines.mars import live, shape
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


class Mars:
    """See oars.engines.base.Engine."""

    name = "mars"
    session = "oars.engines.mars.session"

    def needs(self, spec: ClusterSpec) -> Needs:
        return shape.needs(spec)

    def check(self, spec: ClusterSpec) -> None:
        shape.check(spec)

    def shape(self, spec: ClusterSpec) -> Shape:
        return shape.shape(spec)

    async def look(self, wire: Wire) -> View:
        return await live.look(wire)

    async def drain(self, wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
        return await live.drain(wire, members, force)


engine: Engine = Mars()
