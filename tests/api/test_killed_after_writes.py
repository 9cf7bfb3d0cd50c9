"""The operator and a direct client are killed after every single write of a life cycle: a process makes one change and
dies, and the next one continues. All of it converges, no result is lost, nothing is orphaned, and nothing is written at
rest.

In this process, so that a life costs no second. The Lease of a dead process is deleted instead of waited for. Set
OARS_FIGURES to a directory to store there after which writes they were killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab.api import ApiError
from lab.faultproxy import FaultProxy
from lab.faults import DieOnChange, Pass, Rule, Script
from tests.api.stage import SIMULATED_POD, Stage, resource

from oars import engines
from oars.base.errors import OarsError
from oars.client import deletion
from oars.client.direct import Direct
from oars.engines.base import Wire
from oars.kube import config
from oars.kube.client import Client
from oars.model import HEAD, Drained, MemberId, MemberView, View
from oars.operator import RunOptions
from oars.operator.main import Operator
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.state.root import dump_intent, read_intent, report_of
from oars.spec import load
from oars.spec.status import Phase

Proxies = Callable[..., FaultProxy]
SECONDS = 240.0
REST_SECONDS = 12.0
# Each life begins with the Event of a new leader; if nothing else were written before it, no life would get further.
SPARED = (Rule(Pass(), resource="leases"), Rule(Pass(), resource="events", times=1))
pytestmark = [pytest.mark.timeout(900)]


def data_engine() -> Any:
    """The simulated engine, whose workers hold results: a drain moves them, and a worker that goes with some is
    noted."""
    from toy_engine.simulated import SimulatedPodsEngine

    class Holding(SimulatedPodsEngine):
        def __init__(self) -> None:
            super().__init__()
            self.held: dict[str, int] = {}  # incarnation → results

        async def look(self, wire: Wire) -> View:
            view = await super().look(wire)
            members = {
                member: MemberView(True, held=self.held.setdefault(wire.incarnations[member], 1))
                for member in view.members
            }
            return View(up=True, members=members)

        async def drain(
            self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool
        ) -> Sequence[Drained]:
            others = [i for m, i in wire.incarnations.items() if m not in members and m != HEAD]
            for member in members:
                held = self.held.pop(wire.incarnations.get(member, ""), 0)
                if held and others:
                    self.held[others[0]] = self.held.get(others[0], 0) + held
            return await super().drain(wire, members, deadline, force)

    return Holding()


@dataclass
class Mode(ABC):
    """Who reconciles the cluster "demo", and what its users do."""

    stage: Stage
    lease: str = ""

    @abstractmethod
    async def live(self, client: Client) -> None:
        """One life of the process that reconciles."""

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def change(self, **changes: Any) -> None:
        """Change `replicas` or `env`."""

    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    async def delete(self, lives: Lives) -> None: ...


class Lives:
    """Runs one process after the other. Each is killed after its first write that changes an object other than the
    Lease, and that is not its first Event."""

    def __init__(self, mode: Mode, proxy: FaultProxy) -> None:
        self.mode, self.proxy = mode, proxy
        self.is_mortal = True

    async def run(self) -> None:
        while True:
            await self.run_once(self.mode.live)

    async def run_once(self, live: Callable[[Client], Any]) -> bool:
        """One life. True if the process ended by itself."""
        self.proxy.script = Script((*SPARED, *([Rule(DieOnChange(), verb="write")] if self.is_mortal else [])))
        self.proxy.revive()
        async with Client(config.load({}, kubeconfig=self.proxy.kubeconfig)) as client:
            life = asyncio.create_task(live(client))
            try:
                while not self.proxy.dead and not life.done():  # noqa: ASYNC110 (the proxy runs in a thread)
                    await asyncio.sleep(0.02)
                has_ended = life.done() and not self.proxy.dead
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
        await asyncio.to_thread(self._forget_lease)
        return has_ended

    def _forget_lease(self) -> None:
        kube = self.mode.stage.kube
        with contextlib.suppress(ApiError):
            kube.api.delete(kube.path(f"leases/{self.mode.lease}", "apis/coordination.k8s.io/v1"))


@contextlib.asynccontextmanager
async def living(lives: Lives, *, is_mortal: bool = True) -> AsyncIterator[None]:
    lives.is_mortal = is_mortal
    task = asyncio.create_task(lives.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(_quietly, holds):  # noqa: ASYNC110 (a request)
            await asyncio.sleep(0.2)


def _quietly(holds: Callable[[], Any]) -> Any:
    try:
        return holds()
    except (ApiError, KeyError, OarsError):
        return None


@dataclass
class LifeCycle:
    """A cluster from its creation to its end. `kills`: phase → the writes after which the process was killed."""

    mode: Mode
    lives: Lives
    engine: Any
    kills: dict[str, Counter[str]] = field(default_factory=dict)

    async def run(self) -> None:
        stage = self.mode.stage
        async with living(self.lives):
            await self.phase("create", self.mode.create, lambda: self.has(3))
            await self.phase("scale up", lambda: self.mode.change(replicas=5), lambda: self.has(5))
            held = self.results()
            await self.phase("scale down", lambda: self.mode.change(replicas=2), lambda: self.has(2))
            assert self.results() >= held, "results were lost"
            changed = {"name": "A", "value": "1"}
            await self.phase(
                "change",
                lambda: self.mode.change(env={"A": "1"}),
                lambda: self.has(2) and all(changed in _env(pod) for pod in stage.pods("demo")),
            )
            before, old = stage.pods("demo", "head")[0]["metadata"], stage.workers("demo")
            await self.phase(
                "head loss",
                lambda: stage.kube.api.delete(stage.kube.path(f"pods/{before['name']}")),
                lambda: self.has(2) and not old & stage.workers("demo"),
            )
            await self.phase("settle", lambda: None, self.is_settled)
        async with living(self.lives, is_mortal=False):
            await asyncio.sleep(2.0)
            before = _writes(self.lives.proxy)
            await asyncio.sleep(REST_SECONDS)
            assert _writes(self.lives.proxy) == before, "writes at rest"
        deaths = len(self.lives.proxy.deaths)
        self.lives.is_mortal = True
        await self.mode.delete(self.lives)
        await until(lambda: not stage.left("demo"))
        self.note("delete", deaths)

    async def phase(self, name: str, act: Callable[[], object], is_done: Callable[[], Any]) -> None:
        deaths = len(self.lives.proxy.deaths)
        await asyncio.to_thread(act)
        try:
            await until(is_done)
        finally:  # pytest shows it with a failed test
            self.note(name, deaths)
            print(name, dict(self.kills[name]))  # noqa: T201

    def note(self, name: str, deaths: int) -> None:
        requests = self.lives.proxy.deaths[deaths:]
        self.kills[name] = Counter(f"{each.verb} {each.resource}" for each in requests)

    def has(self, workers: int) -> bool:
        stage = self.mode.stage
        sizes = len(stage.pods("demo", "worker")), len(stage.pods("demo", "head"))
        return self.mode.is_ready() and sizes == (workers, 1)

    def is_settled(self) -> bool:
        """What protects the head, and workers that hold data, comes last."""
        workers = self.mode.stage.pods("demo", "worker")
        is_protected = all(names.PROTECTED in pod["metadata"].get("annotations", {}) for pod in workers)
        return is_protected and "poddisruptionbudgets/demo-head" in self.mode.stage.left("demo")

    def results(self) -> int:
        workers = self.mode.stage.pods("demo", "worker")
        return sum(self.engine.held.get(pod["metadata"]["uid"], 0) for pod in workers)


def _env(pod: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["spec"]["containers"][0].get("env", [])
    return found


def _writes(proxy: FaultProxy) -> int:
    return sum(record.request.resource not in ("leases", "events") for record in proxy.writes)


class OperatorMode(Mode):
    async def live(self, client: Client) -> None:
        namespace = self.stage.kube.namespace
        options = RunOptions(
            namespaces=(namespace,), lease_namespace=namespace, metrics_port=0, health_port=0, trust_authors=True
        )
        await Operator(client, options).run()

    def create(self) -> None:
        self.stage.create(resource("demo"))

    def change(self, **changes: Any) -> None:
        self.stage.edit("demo", changes)

    def is_ready(self) -> bool:
        return self.stage.is_ready("demo") is not None

    async def delete(self, lives: Lives) -> None:
        """Kubernetes removes what the ComputeCluster owns; the operator watches it happen."""
        async with living(lives):
            await asyncio.to_thread(self.stage.delete, "demo")
            await until(lambda: not self.stage.left("demo"))


class DirectMode(Mode):
    @property
    def path(self) -> str:
        return self.stage.kube.path(f"configmaps/{names.root('demo')}")

    async def live(self, client: Client) -> None:
        direct = Direct(client, self.stage.kube.namespace, "demo", f"client-{secrets.token_hex(3)}")
        try:
            await direct.start()
            async for _ in direct.watch():
                pass
        finally:
            await direct.close()

    def create(self) -> None:
        size = {"cpu": "0.1", "memory": "64Mi", "pod": SIMULATED_POD}
        given = {"engine": "simulated", "head": size, "workers": [{"replicas": 3, **size}]}
        spec = load.build(given, option_model=engines.option_model).spec.model_dump(mode="json", exclude_unset=True)
        metadata = {"name": names.root("demo"), "labels": names.labels("demo", "simulated")}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dump_intent(Intent(spec))}
        self.stage.kube.api.create(self.stage.kube.path("configmaps"), json.loads(json.dumps(body)))

    def change(self, **changes: Any) -> None:
        intent = read_intent(self.stage.kube.api.get(self.path))
        worker = {**intent.spec["workers"][0], **({"replicas": changes["replicas"]} if "replicas" in changes else {})}
        spec = {**intent.spec, "workers": [worker], **({"env": changes["env"]} if "env" in changes else {})}
        self.stage.kube.api.patch(self.path, {"data": dump_intent(intent.changed(spec=spec))})

    def is_ready(self) -> bool:
        root = self.stage.kube.api.get(self.path)
        report = report_of(root)
        if report is None or report.status.generation != read_intent(root).generation:
            return False
        return report.status.phase is Phase.READY

    async def delete(self, lives: Lives) -> None:
        """`oars down`, which its user starts again until it ends by itself."""

        async def remove(client: Client) -> None:
            await deletion.remove(client, "demo", self.stage.kube.namespace)
            await deletion.await_end(client, "demo", self.stage.kube.namespace, SECONDS)

        async with asyncio.timeout(SECONDS):
            while not await lives.run_once(remove):
                continue


# What each phase writes at least, and so what the process must have been killed after.
STATUS = {OperatorMode: "patch computeclusters", DirectMode: "patch configmaps"}
EXPECTED = {
    "create": {
        "patch services", "patch networkpolicies", "patch serviceaccounts", "patch deployments",
    },
    "scale up": {"patch deployments"},
    "scale down": {"patch pods", "patch deployments"},
    "change": {"patch deployments"},
    "head loss": {"patch deployments"},
}  # fmt: skip


@pytest.mark.parametrize("make", [OperatorMode, DirectMode], ids=["operator", "direct client"])
def test_life_cycle_survives_a_kill_after_every_single_write(
    make: type[Mode], stage: Stage, fault_proxy: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, get = data_engine(), engines.get
    monkeypatch.setattr(engines, "get", lambda name: engine if name == "simulated" else get(name))
    mode = make(stage, "oars-operator" if make is OperatorMode else names.root("demo"))
    cycle = LifeCycle(mode, Lives(mode, fault_proxy()), engine)
    asyncio.run(cycle.run())
    for phase, writes in EXPECTED.items():
        assert {*writes, STATUS[make]} <= cycle.kills[phase].keys(), (phase, cycle.kills)
    assert any("patch poddisruptionbudgets" in writes for writes in cycle.kills.values()), cycle.kills
    assert make is OperatorMode or cycle.kills["delete"]["delete configmaps"] == 1
    if folder := os.environ.get("OARS_FIGURES"):
        found = {phase: dict(writes) for phase, writes in cycle.kills.items()}
        (Path(folder) / f"kills-{make.__name__}.json").write_text(json.dumps(found, indent=1))
