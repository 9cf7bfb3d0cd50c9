"""What each rule of pacing saves: the operator's own watches and runner, with simulated changes of pods.

Each row counts passes, requests or milliseconds, with the rule ("ours") and without it ("theirs"). No API server, no
engine.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

from oars.control import runner
from oars.control.runner import Runner
from oars.kube.client import Client, Listing
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.model import Pace, Pause
from oars.operator import index
from oars.operator.index import Watches
from oars.operator.resources import RESOURCE_KINDS, Key
from oars.places.kube import evidence, names
from oars.places.kube.evidence import Evidence, SharedLists
from oars.places.kube.place import PACE
from oars.plan.autoscale import LOOK

CLUSTERS, WORKERS = 200, 3
RESTING, RESTING_SECONDS = 1000, 20.0  # clusters at rest
AUTOSCALED = 100  # clusters at rest that look for new work
LARGE = 300  # pods of one cluster that fail or are deleted
SECONDS = 6.0  # of the other measurements
STUCK_SECONDS = 600.0  # for which a cluster whose image cannot be pulled is watched, in virtual time
LOCAL_PACE = Pace()  # of processes, whose changes nothing announces
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
    is_head = name == "head"
    labels = {**names.pod_labels(key.name, "head" if is_head else "default"), "pod-template-hash": "1"}
    creator = names.head(key.name) if is_head else names.workers(key.name, "default")
    owner = {"kind": "ReplicaSet", "name": f"{creator}-1", "uid": creator, "controller": True}
    metadata = {
        "name": f"{key.name}-{name}",
        "generateName": f"{creator}-1-",
        "namespace": key.namespace,
        "uid": name,
        "creationTimestamp": "",
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": {"containers": [{"name": "worker"}]}, "status": status}


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


class CountedRequests:
    """A Kubernetes client whose lists and logs are empty."""

    def __init__(self) -> None:
        self.count = 0

    async def list(self, *arguments: object, **options: object) -> Listing:
        self.count += 1
        return Listing([], "")

    async def logs(self, *arguments: object, **options: object) -> AsyncIterator[str]:
        self.count += 1
        yield "no log"


async def count_requests() -> int:
    """Requests for events, quotas and logs that explain one cluster whose pods cannot start."""
    client, now = CountedRequests(), 0.0
    known = SharedLists(cast(Client, client), lambda: now)
    explained = Evidence(cast(Client, client), "bench", known, lambda: now, lambda pod: True)
    waiting = {"containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": PULL_ERRORS[1]}}}]}
    pods = [pod(key_of(0), f"w{number}", waiting) for number in range(WORKERS)]
    while now < STUCK_SECONDS:
        await explained.causes(pods, [])
        now += PACE.waiting
    return client.count


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
    eager = {"POLL": 0.0, "SLOW_POLL": 0.0}
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
        await _pace_row(),
        await _look_row(),
        await _row(
            f"requests that explain a stuck cluster in {STUCK_SECONDS:.0f} s: every 2 s, then 30 s / in every pass",
            count_requests,
            changed_to(evidence, **eager),
        ),
    ]


async def _pace_row() -> dict[str, Any]:
    """Few clusters, so that the token bucket does not limit either."""
    ours, theirs = [
        await count_passes(10, [], Pause(pace.resting, limited=True), RESTING_SECONDS) for pace in (PACE, LOCAL_PACE)
    ]
    return _compared("10 clusters at rest: the pace of pods / of processes", ours, theirs)


async def _look_row() -> dict[str, Any]:
    """New work waits for the next look, which nothing but time brings."""
    looks = [Pause(LOOK, limited=True, is_look=is_look) for is_look in (True, False)]
    counts = [await count_passes(AUTOSCALED, [], look, RESTING_SECONDS) for look in looks]
    ours, theirs = [round(1000 * RESTING_SECONDS * AUTOSCALED / count) for count in counts]
    return _compared(
        f"ms between two looks of {AUTOSCALED} autoscaled clusters: own bucket / that of polls", ours, theirs
    )


async def _row(
    name: str, measure: Callable[[], Coroutine[Any, Any, int]], without: AbstractContextManager[None]
) -> dict[str, Any]:
    ours = await measure()
    with without:
        theirs = await measure()
    return _compared(name, ours, theirs)


def _compared(name: str, ours: int, theirs: int) -> dict[str, Any]:
    ratio = ours / max(theirs, 1)
    return {"name": name, "ours": ours, "theirs": theirs, "ratio": ratio, "limit": 1.0, "ok": ratio < 1.0}
