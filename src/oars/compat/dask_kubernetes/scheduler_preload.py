"""Runs inside the Dask scheduler, loaded as one of its preloads: stdlib and distributed only.

It adds what the control plane needs to the scheduler: the list of members, and the operation `oars_ask`, which drains
workers. The client appends the engine's scripts to this text (PLUGIN, HELPER), as the pod has no files of Oars. It also
closes a scheduler whose client is gone, so that the workers end too."""

from __future__ import annotations

import os
import secrets
import time
import types
from typing import Any

import dask
from distributed.preloading import process_preloads
from tornado.ioloop import PeriodicCallback

PLUGIN = HELPER = ""
ORPHANED = "OARS_ORPHANED"  # environment variable: seconds after which a scheduler without a client closes; 0: never


async def dask_setup(scheduler: Any) -> None:
    """Dask calls this when the scheduler listens."""
    install(scheduler, PLUGIN, HELPER, float(os.environ.get(ORPHANED) or 0))
    # The environment variable with this text hides the preloads of the image's configuration files.
    configured = dask.config.collect(env={}).get("distributed", {}).get("scheduler", {}).get("preload") or []
    for preload in process_preloads(scheduler, configured, []):
        await preload.start()


def install(scheduler: Any, plugin_source: str, helper_source: str, orphaned: float = 0.0) -> None:
    plugin, helper = load("oars_head_plugin", plugin_source), load("oars_head_helper", helper_source)
    contact = Contact(scheduler, orphaned)

    class Members(plugin.Members):  # type: ignore[misc, name-defined]
        def get(self) -> None:
            contact.seen = time.monotonic()
            super().get()

    async def run_here(scheduler: Any, function: Any, **arguments: Any) -> Any:
        return await function(**arguments, dask_scheduler=scheduler)

    async def oars_ask(request: dict[str, Any]) -> Any:
        return await helper.handle(scheduler, request, secrets.token_hex(8))

    helper.run_on_scheduler = run_here  # the helper's functions need not be sent: this is the scheduler
    plugin.Members = Members
    plugin.dask_setup(scheduler)
    scheduler.handlers["oars_ask"] = oars_ask
    if orphaned:
        callback = PeriodicCallback(contact.check, min(orphaned, 10.0) * 1000 / 4)
        scheduler.periodic_callbacks["oars-orphaned"] = callback
        callback.start()


def load(name: str, source: str) -> Any:
    """A module that no import finds, so that its functions are pickled with their code."""
    module: Any = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


class Contact:
    """When the control plane last asked for the members."""

    def __init__(self, scheduler: Any, orphaned: float) -> None:
        self.scheduler = scheduler
        self.orphaned = orphaned
        self.seen = time.monotonic()

    async def check(self) -> None:
        """Close the scheduler if neither the control plane nor any client has been there for too long."""
        if any(client != "fire-and-forget" for client in self.scheduler.clients):
            self.seen = time.monotonic()
        elif time.monotonic() - self.seen > self.orphaned:
            await self.scheduler.close(reason="oars-client-gone")
