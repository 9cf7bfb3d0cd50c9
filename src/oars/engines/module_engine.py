"""An engine assembled from its `shape` and `live` modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from oars.engines.base import Footprint, Shell, Wire
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.spec.cluster import ClusterSpec, Part


class ShapeModule(Protocol):
    def options_model(self) -> type[Part] | None: ...

    def needs(self, spec: ClusterSpec) -> Needs: ...

    def check(self, spec: ClusterSpec) -> None: ...

    def shape(self, spec: ClusterSpec) -> Shape: ...


class LiveModule(Protocol):
    async def look(self, wire: Wire) -> View: ...

    async def reconcile(self, wire: Wire, view: View) -> None: ...

    async def drain(
        self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool
    ) -> Sequence[Drained]: ...


@dataclass(frozen=True)
class ModuleEngine:
    """See oars.engines.base.Engine."""

    name: str
    session: str
    shaping: ShapeModule
    live: LiveModule
    shell: Shell = field(default_factory=Shell)
    immutable_options: Mapping[str, str] = field(default_factory=dict)
    footprint: Footprint = field(default_factory=Footprint)

    def options_model(self) -> type[Part] | None:
        return self.shaping.options_model()

    def needs(self, spec: ClusterSpec) -> Needs:
        return self.shaping.needs(spec)

    def check(self, spec: ClusterSpec) -> None:
        self.shaping.check(spec)

    def shape(self, spec: ClusterSpec) -> Shape:
        return self.shaping.shape(spec)

    async def look(self, wire: Wire) -> View:
        return await self.live.look(wire)

    async def reconcile(self, wire: Wire, view: View) -> None:
        await self.live.reconcile(wire, view)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        return await self.live.drain(wire, members, deadline, force)
