"""python -m bench.autoscale_reference FILE: another decision function in the simulation of bench.autoscale.

FILE is a Python module with `targets`, as the research on elastic clusters describes it; it is no part of this project.
It gets the same signals as Oars does from Dask, once per second. Results go to bench/results/autoscale_reference.json.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

from bench import autoscale
from bench.autoscale_world import Pool, Worker, World, demand_of

LOOK = 1.0  # seconds
WHAT = (
    "Another decision function in the same simulation, with the same signals as Dask's and the same seeds (medians): "
    "what Oars is to beat."
)


class Reference:
    """The function of the module as a policy of the simulation."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._memory = module.Memory()
        self._next = 0.0

    def __call__(self, world: World) -> None:
        if world.now < self._next:
            return
        self._next = world.now + LOOK
        module, pools = self._module, world.load.pools
        groups = [module.Group(name=pool.name, room=dict(pool.room), max=pool.max, start=pool.start) for pool in pools]
        asks = [
            module.Ask(dict(shape), running + waiting, waiting, world.seconds.get(shape))
            for shape, running, waiting in demand_of(world)
        ]
        have = {pool.name: self._have(world, pool) for pool in pools}
        wanted, _, self._memory = module.targets(groups, have, asks, [], self._memory, world.now)
        for pool in pools:
            workers = world.staying(pool)
            missing = wanted[pool.name] - len(workers)
            if missing > 0:
                world.grow(pool, missing)
            elif missing < 0:
                world.remove(pool, leaving(world, workers)[:-missing])

    def _have(self, world: World, pool: Pool) -> object:
        workers = world.staying(pool)
        ready = sum(map(world.is_ready, workers))
        stuck = [world.now - worker.created for worker in workers if world.is_stuck(worker)]
        return self._module.Have(ready, len(workers) - ready, max(stuck, default=0.0))


def leaving(world: World, workers: list[Worker]) -> list[Worker]:
    """Those that are not ready, then those with the least work that have been idle for the longest time."""
    return sorted(workers, key=lambda each: (world.is_ready(each), each.running, each.idle_since))


def load_module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def main() -> int:
    (path,) = sys.argv[1:]
    module = load_module(path)
    rows = []
    for name in dict.fromkeys(name for _, name in autoscale.LOADS):
        runs = [autoscale.run(name, lambda: Reference(module), seed) for seed in autoscale.SEEDS]
        rows.append({"load": name, **autoscale.figures(runs)})
    record = {"part": "autoscale_reference", "what": WHAT, "seeds": len(autoscale.SEEDS), "rows": rows}
    (autoscale.RESULTS / "autoscale_reference.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
