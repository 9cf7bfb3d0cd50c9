"""Pages that Oars adds to the supervisor's web server: who is there, and who is to go. Loaded by launch.py in the
supervisor's process: standard library and Mars only, nothing of Oars.

    GET  /api/oars/nodes    who is there, in a few bytes each
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

from tornado.web import RequestHandler

MARS = "xorbits._mars" if "xorbits" in sys.modules else "mars"
WORKER = 1


def mars(module: str) -> Any:
    return importlib.import_module(f"{MARS}.{module}")  # noqa: TID251 (a script of its own, not part of the package)


class Nodes(RequestHandler):
    def initialize(self, supervisor_addr: str) -> None:
        self.address = supervisor_addr

    async def get(self) -> None:
        api = await mars("services.cluster").ClusterAPI.create(self.address)
        infos = await api.get_nodes_info(env=True, detail=True, resource=True, exclude_statuses=set())
        now = time.time()
        self.write(json.dumps({address: node(info, now) for address, info in infos.items()}))


def node(info: dict[str, Any], now: float) -> dict[str, Any]:
    command = info["env"].get("command_line", [])
    return {
        "who": command[1] if len(command) > 1 else "",
        "status": info["status"].name,
        "age": max(0.0, now - info["update_time"]),
    }


web_handlers = {"/api/oars/nodes": Nodes}
