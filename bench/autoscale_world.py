"""A simulated cluster for scaling policies: tasks arrive, workers start, run them and leave. Fake clock, no I/O."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

TICK = 0.5
REVERSAL = 60.0  # two opposite changes of a group within this time are a reversal
NEVER = math.inf

Shape = tuple[tuple[str, float], ...]  # what one task needs: ((resource, amount), …)

CPU: Shape = (("cpu", 1.0),)
GPU: Shape = (("cpu", 1.0), ("gpu", 1.0))


@dataclass(frozen=True)
class Pool:
    """A group of simulated workers. `room`: what one offers; `start`: seconds until one is ready; `places`: how many
    the nodes have room for."""

    name: str
    room: Mapping[str, float]
    max: int = 100
    start: float = 12.0
    places: float = math.inf

    @property
    def has_gpu(self) -> bool:
        return "gpu" in self.room


@dataclass(frozen=True)
class Task:
    at: float
    shape: Shape
    seconds: float


@dataclass(frozen=True)
class Load:
    """Tasks over time, and the pools that serve them. `end`: seconds of simulated time."""

    name: str
    end: float
    pools: tuple[Pool, ...]
    tasks: tuple[Task, ...]


@dataclass(eq=False)
class Worker:
    id: int
    pool: Pool
    created: float
    ready_at: float  # NEVER: no node has room for it
    free: dict[str, float]
    running: int = 0
    idle_since: float = 0.0
    leaving: bool = False
    used: float = 0.0  # the largest used fraction of a resource


@dataclass
class Figures:
    """What a policy costs. `idle`: worker-seconds without work, those of starting workers included; `wait`: mean
    seconds from arrival to start of a task; `reversals`: see REVERSAL; `left`: tasks that never ran."""

    idle: float = 0.0
    wait: float = 0.0
    writes: int = 0
    starts: int = 0
    reversals: int = 0
    left: int = 0
    peak: int = 0


@dataclass
class World:
    """The state of one simulation. A policy reads it, and acts by `grow` and `remove`."""

    load: Load
    seed: int = 0
    now: float = 0.0
    workers: dict[str, dict[int, Worker]] = field(default_factory=dict)  # pool → id → worker
    waiting: dict[Shape, deque[Task]] = field(default_factory=dict)
    running: Counter[Shape] = field(default_factory=Counter)
    seconds: dict[Shape, float] = field(default_factory=dict)  # moving average of durations, as Dask's scheduler has it
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._arrivals = deque(sorted(self.load.tasks, key=lambda task: task.at))
        self._ends: list[tuple[float, int, Worker, Task]] = []
        self._count = 0
        self._used = 0.0  # sum over workers
        self._placed = 0  # workers that start, work or leave
        self._started = 0
        self._waited = 0.0
        self._last_change: dict[str, tuple[int, float]] = {}
        self.workers = {pool.name: {} for pool in self.load.pools}

    # What a policy sees

    def staying(self, pool: Pool) -> list[Worker]:
        return [worker for worker in self.workers[pool.name].values() if not worker.leaving]

    def is_ready(self, worker: Worker) -> bool:
        return worker.ready_at <= self.now and not worker.leaving

    def is_stuck(self, worker: Worker) -> bool:
        return worker.ready_at == NEVER

    # What a policy does

    def grow(self, pool: Pool, count: int) -> None:
        mine = self.workers[pool.name]
        for _ in range(count):
            placed = sum(1 for worker in mine.values() if not self.is_stuck(worker))
            ready_at = self.now + pool.start if placed < pool.places else NEVER
            self._count += 1
            mine[self._count] = Worker(self._count, pool, self.now, ready_at, dict(pool.room), idle_since=ready_at)
            self._placed += ready_at != NEVER
        self.figures.starts += count
        self._note_change(pool, 1)

    def remove(self, pool: Pool, victims: Sequence[Worker]) -> None:
        for worker in victims:
            worker.leaving = True
            if worker.running == 0:
                self._delete(worker)
        self._note_change(pool, -1)

    # Time

    def tick(self) -> None:
        self.now += TICK
        self._end_tasks()
        while self._arrivals and self._arrivals[0].at <= self.now:
            task = self._arrivals.popleft()
            self.waiting.setdefault(task.shape, deque()).append(task)
        for shape, queue in self.waiting.items():
            if queue:
                self._dispatch(shape, queue)
        self.figures.idle += TICK * (self._placed - self._used)
        self.figures.peak = max(self.figures.peak, sum(map(len, self.workers.values())))

    def finish(self) -> Figures:
        self.figures.wait = self._waited / max(1, self._started)
        self.figures.left = len(self._arrivals) + sum(map(len, self.waiting.values())) + len(self._ends)
        return self.figures

    def _end_tasks(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, _, worker, task = heapq.heappop(self._ends)
            before = self.seconds.get(task.shape, task.seconds)
            self.seconds[task.shape] = (before + task.seconds) / 2
            self.running[task.shape] -= 1
            self._use(worker, task.shape, -1)
            if worker.running == 0:
                worker.idle_since = self.now
                if worker.leaving:
                    self._delete(worker)

    def _dispatch(self, shape: Shape, queue: deque[Task]) -> None:
        """To the worker with the fewest tasks; work that needs no GPU uses workers with one last."""
        wants_gpu = "gpu" in dict(shape)
        order = [
            (self._rank(worker, wants_gpu), worker.id, worker)
            for mine in self.workers.values()
            for worker in mine.values()
            if self.is_ready(worker) and _fits(worker, shape)
        ]
        heapq.heapify(order)
        while queue and order:
            _, _, worker = heapq.heappop(order)
            task = queue.popleft()
            self._started += 1
            self._waited += self.now - task.at
            self.running[shape] += 1
            self._use(worker, shape, 1)
            heapq.heappush(self._ends, (self.now + task.seconds, self._started, worker, task))
            if _fits(worker, shape):
                heapq.heappush(order, (self._rank(worker, wants_gpu), worker.id, worker))

    def _rank(self, worker: Worker, wants_gpu: bool) -> tuple[bool, int, float]:
        return worker.pool.has_gpu and not wants_gpu, worker.running, self._random.random()

    def _use(self, worker: Worker, shape: Shape, sign: int) -> None:
        for name, amount in shape:
            worker.free[name] -= sign * amount
        worker.running += sign
        used = max((room - worker.free[name]) / room for name, room in worker.pool.room.items())
        self._used += used - worker.used
        worker.used = used

    def _delete(self, worker: Worker) -> None:
        del self.workers[worker.pool.name][worker.id]
        self._placed -= not self.is_stuck(worker)

    def _note_change(self, pool: Pool, direction: int) -> None:
        self.figures.writes += 1
        before = self._last_change.get(pool.name)
        if before and before[0] != direction and self.now - before[1] < REVERSAL:
            self.figures.reversals += 1
        self._last_change[pool.name] = direction, self.now


def _fits(worker: Worker, shape: Shape) -> bool:
    return all(worker.free.get(name, 0.0) >= amount for name, amount in shape)


def simulate(load: Load, policy: Callable[[World], None], seed: int = 0) -> Figures:
    world = World(load, seed)
    while world.now < load.end:
        world.tick()
        policy(world)
    return world.finish()


# The loads of the research


def loads(seed: int = 0) -> Iterator[Load]:
    """Nine loads; workers have four slots and start in 12 s unless the load says otherwise."""
    numbers = random.Random(seed)
    cpu = Pool("cpu", {"cpu": 4.0})
    few = Pool("cpu", {"cpu": 4.0}, max=20)
    slow = Pool("cpu", {"cpu": 4.0}, start=120.0)
    room = {"cpu": 4.0, "gpu": 1.0}
    burst = _burst(60.0, 2000, 10.0)
    yield Load("burst", 1200, (cpu,), burst)
    yield Load("square", 1200, (cpu,), _waves(120, 120, 8.0, 1170, numbers))
    yield Load("flapping", 1200, (cpu,), _waves(20, 20, 8.0, 1170, numbers))
    tail = (min(600.0, numbers.lognormvariate(2.3, 1.2)) for _ in range(400))
    yield Load("long tail", 1800, (cpu,), tuple(Task(60.0, CPU, seconds) for seconds in tail))
    cells = (task for number in range(25) for task in _burst(30.0 + 45 * number, 50, 0.5))
    yield Load("notebook", 1200, (cpu,), tuple(cells))
    yield Load("slow nodes", 3600, (slow,), _waves(300, 300, 8.0, 3300, numbers))
    waves = _waves(200, 100, 4.0, 1700, numbers)
    gpus = tuple(task for number in range(5) for task in _burst(60.0 + 300 * number, 20, 30.0, GPU))
    yield Load("CPU and GPU", 1800, (few, Pool("gpu", room, max=10, start=60.0)), waves + gpus)
    waves = _waves(200, 100, 4.0, 1700, numbers)
    full = Pool("gpu", room, max=50, start=60.0, places=3)
    yield Load("GPU blocked", 1800, (few, full), waves + _burst(60.0, 40, 30.0, GPU))
    trickle = tuple(Task(150 + number * 0.5, CPU, 1.0) for number in range(3000))
    yield Load("trickle", 1800, (cpu,), burst + trickle)


def _burst(at: float, count: int, seconds: float, shape: Shape = CPU) -> tuple[Task, ...]:
    return (Task(at, shape, seconds),) * count


def _waves(on: float, off: float, rate: float, end: float, numbers: random.Random) -> tuple[Task, ...]:
    """Tasks of 5 s on average that arrive at random at this rate, for `on` seconds and then not for `off`, from the
    thirtieth second on."""
    tasks, at = [], 30.0
    while at < end:
        if (at - 30.0) % (on + off) < on:
            tasks.append(Task(at, CPU, numbers.expovariate(1 / 5)))
        at += numbers.expovariate(rate)
    return tuple(tasks)


def demand_of(world: World) -> Iterable[tuple[Shape, int, int]]:
    """(shape, running, waiting) of everything that runs or waits."""
    for shape in sorted({*world.waiting, *world.running}):
        running, waiting = world.running[shape], len(world.waiting.get(shape, ()))
        if running + waiting:
            yield shape, running, waiting
