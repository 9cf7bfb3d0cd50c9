"""Passes that each rule of pacing saves: the operator's own watches and runner, with simulated changes of pods.

Each row counts passes with the rule ("ours") and without it ("theirs"). Real time, no API server, no engine.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from oars.control import runner
from oars.control.runner import Runner
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.model import Pause
from oars.operator import index
from oars.operator.index import Watches
from oars.operator.resources import RESOURCE_KINDS, Key
from oars.places.kube import names
from oars.places.kube.place import PACE

CLUSTERS, WORKERS = 200, 3
RESTING, RESTING_SECONDS = 1000, 20.0  # clusters at rest
LARGE = 300  # pods of one cluster that fail or are deleted
SECONDS = 6.0  # of the other measurements
PASS_SECONDS = 0.01  # a pass mostly waits for responses
STATES: tuple[dict[str, Any], ...] = (
    {"phase": "Pending"},
    {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
)
PULL_ERRORS = ("ErrImagePull", "ImagePullBackOff")

Change = tuple[float, Key, Object | None, Object | None]  # when, of which cluster, before, after


class Passes:
    """A reconciler that counts passes (see control.runner.Reconciler)."""

    def __init__(self, pause: Pause) -> None:
        self.counts: Counter[Key] = Counter()
        self._pause = pause

    async def reconcile(self, key: Key) -> Pause | None:
        self.counts[key] += 1
        await asyncio.sleep(PASS_SECONDS)
        return self._pause

    async def report_failure(self, key: Key, error: Exception) -> None:
        raise error


def key_of(number: int) -> Key:
    return Key("ComputeCluster", "bench", f"c{number}")


def pod(key: Key, name: str, status: Object) -> Object:
    labels = names.pod_labels(key.name, "head" if name == "head" else "default")
    metadata = {"name": f"{key.name}-{name}", "namespace": key.namespace, "uid": name, "creationTimestamp": ""}
    return {"metadata": {**metadata, "labels": labels}, "spec": {}, "status": status}


def starts() -> list[Change]:
    """The pods of all clusters start within the measurement."""
    numbers = random.Random(1)
    changes: list[Change] = []
    for number in range(CLUSTERS):
        created = numbers.uniform(0.0, SECONDS / 2)
        for name in ("head", *(f"w{worker}" for worker in range(WORKERS))):
            times = sorted(created + numbers.uniform(0.0, SECONDS / 3) for _ in STATES)
            pods = [pod(key_of(number), name, status) for status in STATES]
            changes += [
                (at, key_of(number), before, after)
                for at, before, after in zip(times, [None, *pods], pods, strict=False)
            ]
    return sorted(changes, key=lambda change: change[0])


def failures() -> list[Change]:
    """Every pod of one cluster alternates between two errors."""
    changes: list[Change] = []
    for number in range(LARGE):
        before: Object | None = None
        for attempt in range(4):
            waiting = {"waiting": {"reason": PULL_ERRORS[attempt % 2]}}
            after = pod(key_of(0), f"w{number}", {"containerStatuses": [{"name": "worker", "state": waiting}]})
            changes.append(((attempt + number / LARGE) * SECONDS / 4, key_of(0), before, after))
            before = after
    return sorted(changes, key=lambda change: change[0])


def deletions() -> list[Change]:
    """All pods of one cluster become ready, and are then deleted one after another."""
    pods = [pod(key_of(0), f"w{number}", STATES[-1]) for number in range(LARGE)]
    changes: list[Change] = [(0.0, key_of(0), None, each) for each in pods]
    return changes + [(number / LARGE * SECONDS, key_of(0), each, None) for number, each in enumerate(pods)]


async def count_passes(clusters: int, changes: list[Change], pause: Pause, seconds: float = SECONDS) -> int:
    """Passes within the measurement, without the first of each cluster."""
    passes = Passes(pause)
    driver: Runner[Key] = Runner(passes, workers=16)
    watches = Watches(Client(Target("https://localhost")), (), RESOURCE_KINDS, driver.wake)
    watches.resources |= {key_of(number): {} for number in range(clusters)}
    changed = next(each for each in watches if each._kind.plural == "pods")._on_change
    for key in watches.resources:
        driver.wake(key)
    running = asyncio.create_task(driver.run())
    started = asyncio.get_running_loop().time()
    for at, key, before, after in [*changes, (seconds, key_of(0), None, None)]:
        await asyncio.sleep(max(0.0, started + at - asyncio.get_running_loop().time()))
        changed((key.namespace, key.name), before, after)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return passes.counts.total() - clusters


@contextmanager
def changed_to(module: Any, **values: object) -> Iterator[None]:
    """The module with other constants, meanwhile."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def bench_pacing() -> list[dict[str, Any]]:
    return asyncio.run(_rows())


async def _rows() -> list[dict[str, Any]]:
    waiting, resting = Pause(PACE.waiting, limited=True), Pause(PACE.resting, limited=True)
    urgent, unbatched = {"PROGRESS": index.BATCHED}, {"BATCHED": Pause(0.0)}
    unlimited = {"POLLS_PER_SECOND": 1e9, "POLL_BURST": 1e9}
    rests = partial(count_passes, RESTING, [], resting, RESTING_SECONDS)
    return [
        await _row(
            f"{CLUSTERS} clusters start: progress is limited / every change is urgent",
            partial(count_passes, CLUSTERS, starts(), waiting),
            changed_to(index, **urgent),
        ),
        await _row(
            f"{LARGE} pods of one cluster are deleted: batched for 0.1 s / not",
            partial(count_passes, 1, deletions(), waiting),
            changed_to(index, **unbatched),
        ),
        await _row(
            f"{LARGE} pods of one cluster fail: batched for 1 s / for 0.1 s",
            partial(count_passes, 1, failures(), waiting),
            changed_to(index, FAILURE=index.BATCHED),
        ),
        await _row(f"{RESTING} clusters at rest: one token bucket / none", rests, changed_to(runner, **unlimited)),
    ]


async def _row(
    name: str, measure: Callable[[], Coroutine[Any, Any, int]], without: AbstractContextManager[None]
) -> dict[str, Any]:
    ours = await measure()
    with without:
        theirs = await measure()
    ratio = ours / max(theirs, 1)
    return {"name": name, "ours": ours, "theirs": theirs, "ratio": ratio, "limit": 1.0, "ok": ratio < 1.0}
