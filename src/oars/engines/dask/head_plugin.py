"""A page of the scheduler's own for whoever keeps the cluster: GET /oars/members.json. Loaded by `dask scheduler
--preload`, in its environment: standard library and distributed.

Dask's page for programs, /json/identity.json, carries all metrics of all workers, and fails as soon as a task has run
(2026.8: metrics with tuples for names are no JSON).
"""

from __future__ import annotations

import time
from typing import Any

from tornado.web import RequestHandler


def dask_setup(scheduler: Any) -> None:
    """Called by Dask when the scheduler listens."""
    options = {"scheduler": scheduler, "idle_since": {}}
    scheduler.http_application.add_handlers(".*$", [("/oars/members.json", Members, options)])


class Members(RequestHandler):
    """Who is there, in what state, idle for how long, with how much in memory."""

    def initialize(self, scheduler: Any, idle_since: dict[str, float]) -> None:
        self.scheduler = scheduler
        self.idle_since = idle_since

    def get(self) -> None:
        for address in self.idle_since.keys() - self.scheduler.workers.keys():
            del self.idle_since[address]
        workers = [self.describe(ws) for ws in self.scheduler.workers.values()]
        self.write({"address": self.scheduler.address, "workers": workers})

    def describe(self, ws: Any) -> dict[str, Any]:
        return {
            "name": str(ws.name),
            "address": ws.address,
            "status": ws.status.name,
            "idle": self.idle_seconds(ws),
            "held": ws.nbytes,
            "incarnation": ws.extra.get("oars", {}).get("incarnation", ""),
        }

    def idle_seconds(self, ws: Any) -> float:
        """Since it was first seen with nothing to do; short tasks between two visits show in the last heartbeat."""
        if ws.processing or worked_lately(ws):
            self.idle_since.pop(ws.address, None)
            return 0.0
        now = time.monotonic()
        return now - self.idle_since.setdefault(ws.address, now)


def worked_lately(ws: Any) -> bool:
    measured = ws.metrics.get("digests_total_since_heartbeat", {})
    return any(isinstance(name, tuple) and name[0] == "execute" for name in measured)
