"""Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oars.engines.base import Engine, Wire
from oars.engines.ray import live, shape
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:  # the user's half also runs where there is no pydantic
    from oars.spec.cluster import ClusterSpec


class Ray:
    """See oars.engines.base.Engine."""

    name = "ray"
    session = "oars.engines.ray.session"

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


engine: Engine = Ray()
