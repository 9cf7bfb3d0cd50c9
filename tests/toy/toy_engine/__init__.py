"""An engine as a third party would write it: a head that knows its workers, workers that hold items, and a drain that
moves them. Real processes and sockets, standard library only, up in a tenth of a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from oars.base.errors import EngineUnreachable, SpecError
from oars.engines.base import Wire
from oars.model import Drained, Group, MemberId, MemberView, Needs, Port, Process, Resources, Role, Shape, Stop, View
from oars.spec.cluster import ClusterSpec


class ToyEngine:
    name = "toy"
    session = "toy_engine.session"

    def needs(self, spec: ClusterSpec) -> Needs:
        return Needs("toy-engine", ("toy_engine",), ("toy-engine==1.0",))

    def check(self, spec: ClusterSpec) -> None:
        unknown = set(spec.options) - {"crash"}
        if unknown:
            raise SpecError(f"spec.options: toy has no option {sorted(unknown)[0]!r}.", "It has: crash.")

    def shape(self, spec: ClusterSpec) -> Shape:
        head = Process(
            argv=("toy", "head", "$(host)", "$(port.client)", "$(port.http)"),
            env={**spec.env, **spec.head.env},
            ports=(Port("client", 1), Port("http", 2)),
            entry="toy_engine.member:head",
            preload=("toy_engine.member",),
            stop=Stop("TERM", 2.0),
        )
        return Shape(
            head=Group("head", Role.HEAD, 1, head, Resources(spec.head.cpu, spec.head.memory)),
            workers=tuple(self._workers(spec, number) for number in range(len(spec.workers))),
            endpoints={"client": "toy://$(head.host):$(head.http)", "dashboard": "http://$(head.host):$(head.http)/"},
            secrets=("token",),
            driver_env={"TOY_ADDRESS": "http://$(head.host):$(head.http)", "TOY_TOKEN_FILE": "$(secret.token)"},
        )

    def _workers(self, spec: ClusterSpec, number: int) -> Group:
        group = spec.workers[number]
        process = Process(
            argv=("toy", "worker", "$(head.host)", "$(head.client)", "$(member)", "$(incarnation)"),
            env={**spec.env, "TOY_CRASH": str(spec.options.get("crash", "")), **group.env},
            entry="toy_engine.member:worker",
            preload=("toy_engine.member",),
            late_env=("TOY_CRASH",),
            stop=Stop("TERM", 2.0),
            litter=("/tmp/oars-toy-$(tag)",),
        )
        return Group(group.name, Role.WORKER, group.replicas, process, Resources(group.cpu, group.memory))

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

    async def drain(self, wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
        body = json.dumps({"members": members, "force": force}).encode()
        answers = json.loads(await wire.http("http", "/drain", method="POST", body=body))
        return [Drained(MemberId(m), not waits, waits) for m, waits in answers.items()]


engine = ToyEngine()
