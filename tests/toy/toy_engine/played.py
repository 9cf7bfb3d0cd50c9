"""An engine for simulated pods (kwok): its members run nothing, so each running pod is a ready member. It has no option
model: it reads `spec.options`."""

from __future__ import annotations

from collections.abc import Sequence

from oars.base.errors import SpecError
from oars.engines.base import Engine, Wire
from oars.model import HEAD, Drained, Group, MemberId, MemberView, Needs, Port, Process, Resources, Role, Shape, View
from oars.spec.cluster import ClusterSpec


class PlayedEngine(Engine):
    name = "played"
    session = "toy_engine.session"

    def __init__(self) -> None:
        self._drained: set[str] = set()  # incarnations

    def needs(self, spec: ClusterSpec) -> Needs:
        return Needs("toy-engine", ("toy_engine",), ("toy-engine==1.0",))

    def check(self, spec: ClusterSpec) -> None:
        if spec.options:
            raise SpecError(f"spec.options: played has no option {sorted(spec.options)[0]!r}.", "It has none.")

    def shape(self, spec: ClusterSpec) -> Shape:
        head = Process(argv=("played", "head"), env={**spec.env, **spec.head.env}, ports=(Port("client", 8786),))
        return Shape(
            head=Group("head", Role.HEAD, 1, head, Resources(spec.head.cpu, spec.head.memory)),
            workers=tuple(
                Group(
                    group.name,
                    Role.WORKER,
                    group.replicas,
                    Process(argv=("played", "worker", "$(head.host)"), env={**spec.env, **group.env}),
                    Resources(group.cpu, group.memory),
                )
                for group in spec.workers
            ),
            endpoints={"client": "played://$(head.host):$(head.client)", "dashboard": ""},
            image="oars.lab/played:1",
        )

    async def look(self, wire: Wire) -> View:
        """Simulated pods run nothing: every member that has an address counts as ready."""
        serving = {member for member in wire.addresses if wire.incarnations[member] not in self._drained}
        return View(up=True, members={member: MemberView(True) for member in serving if member != HEAD})

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        self._drained |= {wire.incarnations[member] for member in members if member in wire.incarnations}
        return [Drained(member, True) for member in members]


engine = PlayedEngine()
