"""An engine as a third party would write it: a head that lists its workers, workers that hold items, and a drain that
moves them. Real processes and sockets, standard library only; it starts in a tenth of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oars.base.errors import EngineUnreachable
from oars.engines.base import Engine, Shell, Wire, drain_outcomes, drained
from oars.model import (
    Drained,
    Group,
    LogPattern,
    MemberId,
    MemberView,
    Needs,
    Port,
    Process,
    Resources,
    Role,
    Shape,
    Stop,
    View,
)

if TYPE_CHECKING:  # the shell and drivers also run in environments without pydantic
    from oars.spec.cluster import ClusterSpec

    from .options import ToyOptions


CONNECT = """
import os
from toy_library import Client
client = Client(os.environ["TOY_ADDRESS"])
"""


class ToyEngine(Engine):
    name = "toy"
    session = "toy_engine.session"
    shell = Shell(CONNECT, "`client` is a toy client.")
    immutable_options: Mapping[str, str] = {"wireFormat": "running members use the old one"}

    def options_model(self) -> type[ToyOptions]:
        from .options import ToyOptions

        return ToyOptions

    def options(self, spec: ClusterSpec) -> ToyOptions:
        from oars.spec.options import parse_options

        return parse_options(self.options_model(), spec)

    def needs(self, spec: ClusterSpec) -> Needs:
        return Needs("toy-engine", ("toy_engine",), ("toy-engine==1.0",))

    def check(self, spec: ClusterSpec) -> None:
        self.options(spec)

    def shape(self, spec: ClusterSpec) -> Shape:
        head = Process(
            argv=("toy", "head", "$(host)", "$(port.client)", "$(port.http)"),
            env={**spec.env, **spec.head.env},
            ports=(Port("client", 7001), Port("http", 7002, dashboard=True)),
            entry="toy_engine.member:head",
            preload=("toy_engine.member",),
            stop=Stop("TERM", 2.0),
        )
        return Shape(
            head=Group("head", Role.HEAD, 1, head, Resources(spec.head.processors, spec.head.memory)),
            workers=tuple(self._workers(spec, number) for number in range(len(spec.workers))),
            endpoints={"client": "toy://$(head.host):$(head.http)", "dashboard": "http://$(head.host):$(head.http)/"},
            secrets=("token",),
            driver_env={"TOY_ADDRESS": "http://$(head.host):$(head.http)", "TOY_TOKEN_FILE": "$(secret.token)"},
            image="toy:1",
            log_patterns=(LogPattern(r"toy: worker (\S+) gave up", "worker {0} gave up", "Play with it less."),),
        )

    def _workers(self, spec: ClusterSpec, number: int) -> Group:
        group, options = spec.workers[number], self.options(spec)
        process = Process(
            argv=("toy", "worker", "$(head.host)", "$(head.client)", "$(member)", "$(incarnation)"),
            env={**spec.env, "TOY_CRASH": options.crash, "TOY_GIVE_UP": options.give_up, **group.env},
            entry="toy_engine.member:worker",
            preload=("toy_engine.member",),
            late_env=("TOY_CRASH", "TOY_GIVE_UP"),
            stop=Stop("TERM", 2.0),
            litter=("/tmp/oars-toy-$(tag)",),
        )
        return Group(group.name, Role.WORKER, group.replicas, process, Resources(group.processors, group.memory))

    async def look(self, wire: Wire) -> View:
        try:
            workers: dict[str, Any] = json.loads(await wire.http("http", "/workers"))
        except EngineUnreachable as error:
            return View(message=error.message)
        views = {
            MemberId(name): MemberView(True, w["address"], held=len(w["items"]), incarnation=w["incarnation"])
            for name, w in workers.items()
        }
        return View(up=True, members=views)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        body = json.dumps({"members": members, "force": force}).encode()
        answers = json.loads(await wire.http("http", "/drain", method="POST", body=body))
        return drained(members, drain_outcomes(answers, members, "another program answers at the head's address"))


engine = ToyEngine()
