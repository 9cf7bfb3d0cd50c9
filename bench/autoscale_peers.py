"""Models of the autoscalers that Oars is compared with. Each decides as its source does; constants are its defaults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from bench.autoscale_world import Pool, Shape, Worker, World, demand_of

UNKNOWN_TASK = 0.5  # Dask: distributed.scheduler.unknown-task-duration
TARGET_DURATION = 5.0  # Dask: distributed.adaptive.target-duration
WAIT_COUNT = 3  # Dask: distributed.adaptive.wait-count
KUBE_INTERVAL, KUBE_SHARE, KUBE_COOL_DOWN = 5.0, 0.25, 15.0  # dask-kubernetes' controller
RAY_INTERVAL, RAY_IDLE = 5.0, 60.0  # Ray: AUTOSCALER_UPDATE_INTERVAL_S; KubeRay: idleTimeoutSeconds
RAY_LAUNCHES = 10  # Ray: AUTOSCALER_MAX_CONCURRENT_LAUNCHES


def _adaptive_target(world: World, pool: Pool) -> int:
    """Scheduler.adaptive_target: one figure for the cluster, from seconds of work."""
    demand = list(demand_of(world))
    seconds = sum((running + waiting) * world.seconds.get(shape, UNKNOWN_TASK) for shape, running, waiting in demand)
    slots = min(math.ceil(seconds / TARGET_DURATION), sum(running + waiting for _, running, waiting in demand))
    ready = [worker for worker in world.staying(pool) if world.is_ready(worker)]
    target = math.ceil(slots / pool.room["cpu"]) if ready else slots
    if not ready and any(waiting for _, _, waiting in demand):
        target = max(1, target)
    if target < len(ready):
        target = len(ready) - sum(worker.running == 0 for worker in ready)
    return min(target, pool.max)


class DaskAdaptive:
    """distributed.deploy.Adaptive. It knows one kind of worker: that of the first pool."""

    def __init__(self) -> None:
        self._next = 0.0
        self._proposed: Counter[int] = Counter()

    def __call__(self, world: World) -> None:
        if world.now < self._next:
            return
        self._next = world.now + 1.0
        pool = world.load.pools[0]
        workers = world.staying(pool)
        target = _adaptive_target(world, pool)
        if target >= len(workers):
            self._proposed.clear()
            if target > len(workers):
                world.grow(pool, target - len(workers))
            return
        starting = [worker for worker in workers if not world.is_ready(worker)]
        idle = [worker for worker in workers if world.is_ready(worker) and worker.running == 0]
        chosen = {worker.id: worker for worker in (*starting, *idle)[: len(workers) - target]}
        self._proposed = Counter({each: self._proposed[each] + 1 for each in chosen})
        firm = [worker for each, worker in chosen.items() if self._proposed[each] >= WAIT_COUNT]
        if firm:
            world.remove(pool, firm)


class DaskKubernetes:
    """The DaskAutoscaler of dask-kubernetes' operator; the default worker group only."""

    def __init__(self) -> None:
        self._next = 0.0
        self._cool_until = 0.0

    def __call__(self, world: World) -> None:
        if world.now < self._next:
            return
        self._next = world.now + KUBE_INTERVAL
        if world.now < self._cool_until:
            return
        pool = world.load.pools[0]
        workers = world.staying(pool)
        present = len(workers)
        target = _adaptive_target(world, pool)
        if target < present:
            target = max(target, present - max(1, int(present * KUBE_SHARE)))
        if target == present:
            return
        self._cool_until = world.now + KUBE_COOL_DOWN
        if target > present:
            world.grow(pool, target - present)
        else:
            candidates = [worker for worker in workers if world.is_ready(worker)] or workers
            candidates.sort(key=lambda worker: (worker.running, worker.id))
            world.remove(pool, candidates[: present - target])


class RayV2:
    """Ray's autoscaler v2 under KubeRay. `launches`: how many workers of a pool one update may ask for."""

    def __init__(self, launches: float = RAY_LAUNCHES) -> None:
        self._next = 0.0
        self._launches = launches

    def __call__(self, world: World) -> None:
        if world.now < self._next:
            return
        self._next = world.now + RAY_INTERVAL
        rooms = {worker: dict(worker.free) for pool in world.load.pools for worker in world.staying(pool)}
        new: dict[str, list[dict[str, float]]] = {pool.name: [] for pool in world.load.pools}
        waiting = [(shape, waiting) for shape, _, waiting in demand_of(world) if waiting]
        for shape, count in sorted(waiting, key=lambda each: (-len(each[0]), each[0])):
            left = _fill([*rooms.values(), *(room for added in new.values() for room in added)], shape, count)
            for pool in sorted(world.load.pools, key=lambda pool: pool.has_gpu and "gpu" not in dict(shape)):
                left = self._open(world, pool, shape, left, new[pool.name])
        for pool in world.load.pools:
            if new[pool.name]:
                world.grow(pool, int(min(len(new[pool.name]), self._launches)))
            elif idle := list(self._idle(world, pool, rooms)):
                world.remove(pool, idle)

    @staticmethod
    def _open(world: World, pool: Pool, shape: Shape, left: int, new: list[dict[str, float]]) -> int:
        present = len(world.staying(pool))
        while left and present + len(new) < pool.max and _room_for(dict(pool.room), shape):
            new.append(dict(pool.room))
            left = _fill(new[-1:], shape, left)
        return left

    @staticmethod
    def _idle(world: World, pool: Pool, rooms: Mapping[Worker, Mapping[str, float]]) -> Iterable[Worker]:
        """Workers without work for RAY_IDLE seconds that nothing was packed onto."""
        for worker in world.staying(pool):
            unused = world.is_ready(worker) and worker.running == 0 and rooms[worker] == worker.free
            if unused and world.now - worker.idle_since > RAY_IDLE:
                yield worker


def _room_for(room: Mapping[str, float], shape: Shape) -> int:
    return int(min(room.get(name, 0.0) // amount for name, amount in shape))


def _fill(rooms: Iterable[dict[str, float]], shape: Shape, count: int) -> int:
    """How many of `count` tasks find no room; the rooms shrink."""
    for room in rooms:
        if not count:
            break
        placed = min(count, _room_for(room, shape))
        for name, amount in shape:
            if placed:
                room[name] -= placed * amount
        count -= placed
    return count
