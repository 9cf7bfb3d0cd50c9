"""Adds GET /oars/members.json to the scheduler's web server, for the control plane, and keeps Dask from warning about
patch releases of Python. Loaded by `dask scheduler --preload`, in its environment: stdlib and distributed only.

Dask's own /json/identity.json contains all metrics of all workers, and fails once a task has run (2026.8: metrics with
tuples as keys are not valid JSON).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from distributed import SchedulerPlugin, versions
from tornado.web import RequestHandler

SAMPLE = 5000  # tasks that one request reads; more are extrapolated from them. A task takes a few microseconds
WAITING_SCATTERS: Counter[str] = Counter()  # client → how many of its scatters wait for a worker


def dask_setup(scheduler: Any) -> None:
    """Dask calls this when the scheduler listens."""
    clients = Clients()
    scheduler.add_plugin(clients)
    options = {"scheduler": scheduler, "idle_since": {}, "clients": clients}
    scheduler.handlers["scatter"] = counted(scheduler.handlers["scatter"])
    scheduler.http_application.add_handlers(".*$", [("/oars/members.json", Members, options)])
    ignore_patch_releases()


def ignore_patch_releases() -> None:
    """Dask prints a table of versions at every client whose Python is 3.11.7 if the cluster's is 3.11.2. They work
    together; a difference in the first two numbers is still reported."""
    compare: Any = versions.error_message

    def compare_minor(scheduler: Any, workers: Mapping[str, Any], source: Any, source_name: str = "Client") -> Any:
        listed = {name: without_patch(each) for name, each in workers.items()}
        return compare(without_patch(scheduler), listed, without_patch(source), source_name)

    versions.error_message = compare_minor


def without_patch(info: Any) -> Any:
    """What a member reports of itself, with Python 3.11 in place of 3.11.7.final.0. It may have reported nothing."""
    if not info or "python" not in info.get("packages", {}):
        return info
    python = ".".join(str(info["packages"]["python"]).split(".")[:2])
    return {**info, "packages": {**info["packages"], "python": python}}


class Clients(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Knows when the last client left. A client that a task opened on a worker stays connected after it, and does not
    count."""

    def __init__(self) -> None:
        self.left_at = time.monotonic()

    def remove_client(self, scheduler: Any, client: str) -> None:
        if is_users(client):
            self.left_at = time.monotonic()

    def seconds_without(self, scheduler: Any) -> float:
        return 0.0 if any(map(is_users, scheduler.clients)) else time.monotonic() - self.left_at


def is_users(client: str) -> bool:
    return client != "fire-and-forget" and not client.startswith("Client-worker-")


class Members(RequestHandler):
    """The workers with their state, idle time and bytes in memory; the demand; how long the cluster has been without
    work and without a client."""

    def initialize(self, scheduler: Any, idle_since: dict[str, float], clients: Clients) -> None:
        self.scheduler = scheduler
        self.idle_since = idle_since
        self.clients = clients

    def get(self) -> None:
        for address in self.idle_since.keys() - self.scheduler.workers.keys():
            del self.idle_since[address]
        workers = [
            {
                "name": str(ws.name),
                "address": ws.address,
                "status": ws.status.name,
                "idle": self.idle_seconds(ws),
                "held": ws.nbytes,
                "tasks": len(ws.processing),
                "pinned": bool(ws.actors),
                "incarnation": ws.extra.get("oars", {}).get("incarnation", ""),
            }
            for ws in self.scheduler.workers.values()
        ]
        self.write(
            {
                "address": self.scheduler.address,
                "workers": workers,
                "demand": demand(self.scheduler),
                "idle": seconds_idle(self.scheduler),
                "no_client": self.clients.seconds_without(self.scheduler),
            }
        )

    def idle_seconds(self, ws: Any) -> float:
        """Seconds since the first request that found it idle. The heartbeat shows short tasks between two requests."""
        measured = ws.metrics.get("digests_total_since_heartbeat", {})
        if ws.processing or any(isinstance(name, tuple) and name[0] == "execute" for name in measured):
            self.idle_since.pop(ws.address, None)
            return 0.0
        now = time.monotonic()
        return now - self.idle_since.setdefault(ws.address, now)


def seconds_idle(scheduler: Any) -> float:
    """Seconds since Dask itself found the cluster idle: no task ran or changed its state since its last check."""
    since = scheduler.check_idle()
    return 0.0 if since is None or WAITING_SCATTERS.total() else max(0.0, time.time() - since)


# Demand.


def counted(scatter: Callable[..., Any]) -> Callable[..., Any]:
    """Count scatters that have not ended. Without workers they create no task: they wait, and fail after a while."""

    async def counting(*args: Any, client: str = "", **kwargs: Any) -> Any:
        WAITING_SCATTERS[client] += 1
        try:
            return await scatter(*args, client=client, **kwargs)
        finally:
            WAITING_SCATTERS[client] -= 1

    return counting


def demand(scheduler: Any) -> list[dict[str, Any]]:
    """Tasks that can run or do: by what they need, and by the prefix of their name, which predicts their duration."""
    shapes: dict[tuple[Any, ...], dict[str, Any]] = {}
    waiting = len(scheduler.queued) + len(scheduler.unrunnable)
    running = sum(len(ws.processing) for ws in scheduler.workers.values())
    sources = (
        (waiting, ((ts, False) for ts in itertools.chain(scheduler.queued, scheduler.unrunnable))),
        (running, processing(scheduler.workers.values())),
    )
    for total, tasks in sources:
        add(shapes, tasks, max(1.0, total / SAMPLE), scheduler)
    entries = [
        {**shape, "count": round(shape["count"]), "running": round(shape["running"])} for shape in shapes.values()
    ]
    scatters = WAITING_SCATTERS.total()
    return [*entries, {"needs": {}, "count": scatters}] if scatters else entries


def add(
    shapes: dict[tuple[Any, ...], dict[str, Any]], tasks: Iterable[tuple[Any, bool]], weight: float, scheduler: Any
) -> None:
    """Each of the first tasks stands for `weight` tasks."""
    for ts, is_running in itertools.islice(tasks, SAMPLE):
        workers = () if is_running or ts.loose_restrictions else tuple(sorted(restrictions(ts)))
        if workers and ts.processing_on is not None:
            continue  # its worker is busy: another one would not help
        needs = {"cpu": 1.0, **(ts.resource_restrictions or {})}
        key = (ts.prefix.name, workers, *sorted(needs.items()))
        if key not in shapes:
            seconds = scheduler._get_prefix_duration(ts.prefix)
            shapes[key] = {"needs": needs, "count": 0.0, "running": 0.0, "seconds": seconds}
            if workers:  # none of them exists: no group can serve it
                shapes[key]["labels"] = [("worker", workers, False)]
        shapes[key]["count"] += weight
        shapes[key]["running"] += weight * is_running


def restrictions(ts: Any) -> set[str]:
    """Names, addresses and hosts of the workers that may run the task; empty: any."""
    return {*(ts.worker_restrictions or ()), *(ts.host_restrictions or ())}


def processing(workers: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Tasks that workers have, and whether they run: a worker gets a few more than it has threads."""
    for ws in workers:
        for number, ts in enumerate(ws.processing):
            yield ts, number < ws.nthreads
