"""Histories of a local cluster: the real runner and loop, with members that are entries of a dictionary. Nothing but
the loop restarts them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from oars.control.loop import Loop
from oars.control.runner import Runner
from oars.engines.base import Engine
from oars.model import HEAD, Drained, DrainOutcome, MemberId, MemberState, MemberView, Pause, View
from oars.places.base import Place
from oars.plan.decide import SETTLED
from tests.memory_place import MemoryPlace, MemoryStore, MemoryWire
from tests.simulation import virtual_time
from tests.simulation.history import CONVERGE_SECONDS, REST_SECONDS, Violation
from tests.simulation.virtual_time import Clock
from tests.unit.plan.clusters import desired


@dataclass
class LocalHistory:
    """The place, the engine and the reconciler of one cluster (see control.runner.Reconciler)."""

    seed: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random, self.clock, self.store = random.Random(self.seed), Clock(), MemoryStore()
        self.acts: Counter[str] = Counter()
        self.wanted = self.random.randint(0, 4)
        self.joined: dict[str, str] = {}  # worker's incarnation → that of its head
        self.crashing: set[MemberId] = set()
        self.silent = False

    def log(self, text: str) -> None:
        self.lines.append(f"{self.clock.now:8.2f}  {text}")

    def run(self) -> None:
        """Raises Violation if an invariant does not hold."""
        virtual_time.run(self._run(), self.clock, self.seed)

    async def _run(self) -> None:
        keeper, world = asyncio.create_task(self._keep()), asyncio.create_task(self._advance())
        actions: list[Callable[[], None]] = [
            self.scale, self.kill_worker, self.kill_head, self.crash_loop, self.crash_loop, self.step_clock,
            self.step_clock, self.toggle_engine,
        ]  # fmt: skip
        try:
            for _ in range(self.random.randint(4, 12)):
                await asyncio.sleep(self.random.expovariate(1 / 3.0))
                act = self.random.choice([*actions, None])
                if act is None:
                    self.log("keeper: killed")
                    keeper.cancel()
                    await asyncio.sleep(self.random.uniform(0.1, 5))
                    keeper = asyncio.create_task(self._keep())
                else:
                    self.acts[act.__name__] += 1
                    act()
            self.crashing.clear()
            self.silent = False
            self.log("faults stop")
            await self._converge()
        finally:
            for task in (keeper, world):
                task.cancel()
            await asyncio.gather(keeper, world, return_exceptions=True)

    async def _converge(self) -> None:
        deadline = self.clock.now + CONVERGE_SECONDS
        while problem := self._not_converged():
            if self.clock.now > deadline:
                raise Violation(f"not converged after {CONVERGE_SECONDS:.0f} s: {problem}")
            await asyncio.sleep(1.0)
        await asyncio.sleep(2 * SETTLED)
        starts, changes = self.store.starts, self.store.changes
        await asyncio.sleep(REST_SECONDS)
        if problem := self._not_converged():
            raise Violation(f"it did not stay so: {problem}")
        if self.store.starts != starts:
            raise Violation(f"{self.store.starts - starts} members were started at rest")
        if self.store.changes != changes:
            raise Violation(f"{self.store.changes - changes} changes were recorded at rest")

    def _not_converged(self) -> str:
        running = [m for m in self.store.members.values() if m.state is MemberState.RUNNING]
        if len(running) != len(self.store.members) or len(running) != self.wanted + 1:
            return f"{len(running)} of {self.wanted + 1} members run"
        report = self.store.report
        return "" if report is not None and report.status.phase == "Ready" else f"not Ready: {report}"

    # The keeper

    async def _keep(self) -> None:
        place = MemoryPlace(self.store)
        self._loop = Loop(cast(Place, place), cast(Engine, SimulatedHead(self)), self.clock.wall)
        runner: Runner[str] = Runner(self, clock=self.clock.monotonic)
        runner.wake("demo")
        await runner.run()

    async def reconcile(self, key: str) -> Pause | None:
        self.store.now = self.clock.wall()
        return await self._loop.once(desired(self.wanted))

    async def report_failure(self, key: str, error: Exception) -> None:
        raise error

    # The engine

    async def _advance(self) -> None:
        """Workers join the head that runs; those that crash, crash."""
        while True:
            await asyncio.sleep(0.2)
            head = self.store.members.get(HEAD)
            for name, member in list(self.store.members.items()):
                if member.state is MemberState.RUNNING and name in self.crashing:
                    self.log(f"fault: {name} crashes")
                    self.store.exit(name, 1)
                elif member.state is MemberState.RUNNING and head is not None and head.state is MemberState.RUNNING:
                    self.joined.setdefault(member.incarnation, head.incarnation)

    # Users and faults

    def scale(self) -> None:
        self.wanted = self.random.randint(0, 5)
        self.log(f"user: scale to {self.wanted}")

    def _any(self) -> MemberId | None:
        running = [m for m, member in self.store.members.items() if member.state is MemberState.RUNNING and m != HEAD]
        return self.random.choice(running) if running else None

    def kill_worker(self) -> None:
        if name := self._any():
            self.log(f"fault: {name} is killed")
            self.store.exit(name, 137)

    def kill_head(self) -> None:
        if HEAD in self.store.members and self.store.members[HEAD].state is MemberState.RUNNING:
            self.log("fault: the head is killed")
            self.store.exit(HEAD, 137)

    def crash_loop(self) -> None:
        if name := self._any():
            self.log(f"fault: {name} crashes at every start")
            self.crashing.add(name)

    def toggle_engine(self) -> None:
        self.silent = not self.silent
        self.log(f"fault: the head is {'silent' if self.silent else 'well'}")

    def step_clock(self) -> None:
        seconds = self.random.choice((-3600.0, -30.0, 30.0, 3600.0))
        self.log(f"fault: the clock steps by {seconds:.0f} s")
        self.clock.step += seconds


@dataclass
class SimulatedHead:
    """The engine, for the loop."""

    world: LocalHistory

    async def look(self, wire: MemoryWire) -> View:
        await asyncio.sleep(self.world.random.uniform(0.001, 0.05))
        if self.world.silent:
            await asyncio.Event().wait()
        head = wire.incarnations[HEAD]
        return View(
            up=True,
            members={
                name: MemberView(True, incarnation=incarnation)
                for name, incarnation in wire.incarnations.items()
                if name != HEAD and self.world.joined.get(incarnation) == head
            },
        )

    async def reconcile(self, *_: object) -> None:
        """Nothing to do."""

    async def drain(self, wire: MemoryWire, members: Sequence[MemberId], *_: object) -> Sequence[Drained]:
        await asyncio.sleep(self.world.random.uniform(0.05, 1.0))
        for member in members:
            self.world.joined[wire.incarnations.get(member, "")] = "drained"
        return [Drained(member, DrainOutcome.FINISHED) for member in members]
