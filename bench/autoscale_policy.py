"""Oars' autoscaling as a policy of the simulation, with the signals of Dask or of Ray."""

from __future__ import annotations

from bench.autoscale_world import Pool, Worker, World, demand_of
from oars.model import Autoscale, Demand, Group, Process, Role
from oars.plan.autoscale import Memory, Scaling, Situation, Supply, targets
from oars.plan.starts import Starts, observe


class Oars:
    """With Dask's signals, durations are known and any worker can be emptied. With Ray's, durations are unknown and
    only workers that have been idle for the whole delay may leave."""

    def __init__(self, *, durations: bool, policy: Autoscale | None = None) -> None:
        self._durations = durations
        self._policy = policy or Autoscale(enabled=True)
        self._memory = Memory()
        self._starts = Starts()
        self._next = 0.0

    def __call__(self, world: World) -> None:
        if world.now < self._next:
            return
        scaling = self._decide(world)
        self._memory = scaling.memory
        self._next = world.now + scaling.next_look
        for pool in world.load.pools:
            workers = world.staying(pool)
            missing = scaling.groups[pool.name].target - len(workers)
            if missing > 0:
                world.grow(pool, missing)
            elif missing < 0:
                world.remove(pool, self._leaving(world, workers)[:-missing])

    def _decide(self, world: World) -> Scaling:
        groups = [
            Group(pool.name, Role.WORKER, 0, Process(()), min=0, max=pool.max, offers=pool.room)
            for pool in world.load.pools
        ]
        demand = [
            Demand(dict(shape), running + waiting, running, world.seconds.get(shape) if self._durations else None)
            for shape, running, waiting in demand_of(world)
        ]
        everyone = ((w.id, w.pool.name, world.is_ready(w)) for mine in world.workers.values() for w in mine.values())
        self._starts = observe(self._starts, everyone, world.now)
        supply = {pool.name: self._supply(world, pool) for pool in world.load.pools}
        return targets(Situation(groups, supply, demand), self._policy, self._memory, world.now)

    def _supply(self, world: World, pool: Pool) -> Supply:
        workers = world.staying(pool)
        stuck = [worker for worker in workers if world.is_stuck(worker)]
        ready = sum(map(world.is_ready, workers))
        return Supply(
            ready=ready,
            starting=len(workers) - ready - len(stuck),
            stuck=len(stuck),
            stuck_since=min((worker.created for worker in stuck), default=0.0),
            stuck_reason="no node has room" if stuck else "",
            removable=None if self._durations else sum(self._is_removable(world, worker) for worker in workers),
            start_seconds=self._starts.typical(pool.name),
        )

    def _is_removable(self, world: World, worker: Worker) -> bool:
        idle = world.now - worker.idle_since
        return world.is_ready(worker) and worker.running == 0 and idle >= self._policy.scale_down_delay

    def _leaving(self, world: World, workers: list[Worker]) -> list[Worker]:
        """Workers that may leave, in this order: not ready, the latest first; then the least work, idle longest."""
        waiting = [worker for worker in workers if not world.is_ready(worker)]
        waiting.sort(key=lambda worker: -worker.ready_at)
        others = [w for w in workers if world.is_ready(w) and (self._durations or self._is_removable(world, w))]
        others.sort(key=lambda worker: (worker.running, worker.idle_since))
        return waiting + others
