"""Adds GET /oars/members.json to the scheduler's web server, for the control plane. Loaded by `dask scheduler
--preload`, in its environment: stdlib and distributed only.

Dask's own /json/identity.json contains all metrics of all workers, and fails once a task has run (2026.8: metrics with
tuples as keys are not valid JSON).
"""

from __future__ import annotations

import time
from typing import Any

from tornado.web import RequestHandler


def dask_setup(scheduler: Any) -> None:
    """Dask calls this when the scheduler listens."""
    options = {"scheduler": scheduler, "idle_since": {}}
    scheduler.http_application.add_handlers(".*$", [("/oars/members.json", Members, options)])


class Members(RequestHandler):
    """The workers with their state, idle time and bytes in memory."""

    def initialize(self, scheduler: Any, idle_since: dict[str, float]) -> None:
        self.scheduler = scheduler
        self.idle_since = idle_since

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
                "incarnation": ws.extra.get("oars", {}).get("incarnation", ""),
            }
            for ws in self.scheduler.workers.values()
        ]
        self.write({"address": self.scheduler.address, "workers": workers})

    def idle_seconds(self, ws: Any) -> float:
        """Seconds since the first request that found it idle. The heartbeat shows short tasks between two requests."""
        measured = ws.metrics.get("digests_total_since_heartbeat", {})
        if ws.processing or any(isinstance(name, tuple) and name[0] == "execute" for name in measured):
            self.idle_since.pop(ws.address, None)
            return 0.0
        now = time.monotonic()
        return now - self.idle_since.setdefault(ws.address, now)
