"""An engine for simulated pods (kwok): its members run nothing, so each running pod is a ready member. It has no option
model: it reads `spec.options`. The file that SIMULATED_DEMAND names has the demand: what each piece of work
needs, and how many pieces there are. The file that SIMULATED_HELD names lists members that hold data; that of
SIMULATED_UNUSED has the seconds without work and without a client."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from oars.base.errors import SpecError
from oars.engines.base import Engine, Wire
from oars.model import (
    HEAD,
    Demand,
    Drained,
    DrainOutcome,
    Group,
    MemberId,
    MemberView,
    Needs,
    Port,
    Process,
    Resources,
    Role,
    Shape,
    View,
)
from oars.spec.cluster import ClusterSpec

FINISHED = DrainOutcome.FINISHED


class SimulatedPodsEngine(Engine):
    name = "simulated"
    session = "toy_engine.session"

    def __init__(self) -> None:
        self._drained: set[str] = set()  # incarnations
        self._joined: dict[str, str] = {}  # incarnation of a worker → that of the head it has joined

    def needs(self, spec: ClusterSpec) -> Needs:
        return Needs("toy-engine", ("toy_engine",), ("toy-engine==1.0",))

    def check(self, spec: ClusterSpec) -> None:
        if spec.options:
            raise SpecError(f"spec.options: simulated has no option {sorted(spec.options)[0]!r}.", "It has none.")

    def shape(self, spec: ClusterSpec) -> Shape:
        head = Process(
            argv=("simulated", "head"), env={**spec.env, **spec.head.env}, ports=(Port("client", 8786, dashboard=True),)
        )
        return Shape(
            head=Group("head", Role.HEAD, 1, head, Resources(spec.head.processors, spec.head.memory)),
            workers=tuple(
                Group(
                    group.name,
                    Role.WORKER,
                    group.replicas,
                    Process(argv=("simulated", "worker", "$(head.host)"), env={**spec.env, **group.env}),
                    Resources(group.processors, group.memory),
                )
                for group in spec.workers
            ),
            endpoints={
                "client": "simulated://$(head.host):$(head.client)",
                "dashboard": "http://$(head.host):$(head.client)",
            },
            image="oars.lab/simulated:1",
        )

    async def look(self, wire: Wire) -> View:
        """Simulated pods run nothing: every member that has an address counts as ready. Workers do not join another
        head."""
        started, head = wire.incarnations, wire.incarnations.get(HEAD, "")
        serving = {
            member
            for member in wire.addresses
            if started[member] not in self._drained and self._joined.setdefault(started[member], head) == head
        }
        holders = held()
        members = {member: MemberView(True, held=int(member in holders)) for member in serving if member != HEAD}
        wanted, idle = demand(os.environ.get("SIMULATED_DEMAND", "")), unused()
        return View(up=True, members=members, demand=wanted, idle=idle.get("idle"), no_client=idle.get("no_client"))

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        kept = set() if force else held()
        self._drained |= {wire.incarnations[each] for each in members if each in wire.incarnations and each not in kept}
        return [
            Drained(member, DrainOutcome.REFUSED, "its data") if member in kept else Drained(member, FINISHED)
            for member in members
        ]


def demand(file: str) -> tuple[Demand, ...] | None:
    if not file:
        return None
    return tuple(Demand(each["needs"], each["count"]) for each in json.loads(Path(file).read_text()))


def unused() -> dict[str, float]:
    file = os.environ.get("SIMULATED_UNUSED", "")
    return dict(json.loads(Path(file).read_text())) if file else {}


def held() -> set[str]:
    file = os.environ.get("SIMULATED_HELD", "")
    return set(json.loads(Path(file).read_text())) if file else set()


engine = SimulatedPodsEngine()
