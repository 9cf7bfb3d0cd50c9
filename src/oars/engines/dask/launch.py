"""`dask scheduler` or `dask worker` for members forked from one Python. Run as a script in Dask's environment, with
sys.argv = dask scheduler … or dask worker …; elsewhere the plain commands are run.

What it adds, and why:
- The command is called directly: `dask` would look through all installed packages for plug-ins first.
- A worker registers in the moment the scheduler listens. Started together with it, it would find nobody there and then
  sleep ever longer between tries.
- A worker tells the scheduler which incarnation of its name it is.
- A worker that grows beyond its memory ends itself, as the nanny would end it; spilling and pausing come first.
- A worker closes on SIGTERM, running tasks or not, within seconds. Dask's own way waits for them, and for ever if the
  scheduler ends in the same moment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import types
from typing import Any

TRIES, POLL_SECONDS = 3000, 0.02  # then Dask's own patience takes over
MEMORY_SECONDS = 0.2
CLOSE_SECONDS = 3.0
OUT_OF_MEMORY = 137  # what a shell reports for a process that the kernel killed


def main() -> None:
    import dask
    from distributed.cli import dask_scheduler, dask_worker

    role = sys.argv[1]
    sys.argv[:2] = [f"dask {role}"]
    if role == "scheduler":
        dask_scheduler.main()
        return
    # A module of that name, found by Dask where it looks for modules that have been imported already.
    hooks = types.ModuleType("oars_worker")
    hooks.dask_setup = prepare_worker  # type: ignore[attr-defined]
    sys.modules[hooks.__name__] = hooks
    preload = dask.config.get("distributed.worker.preload")
    dask.config.set({"distributed.worker.preload": [*preload, hooks.__name__]})
    dask_worker.main()


async def prepare_worker(worker: Any) -> None:
    """Called by Dask when the worker listens and before it registers."""
    incarnation = os.environ["OARS_INCARNATION"]
    worker.startup_information["oars"] = lambda _: {"incarnation": incarnation}
    watch_memory(worker)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, close, worker)
    host, _, port = os.environ["OARS_HEALTH"].rpartition(":")
    for _ in range(TRIES):
        if await answers(host, int(port)):
            return
        await asyncio.sleep(POLL_SECONDS)


async def answers(host: str, port: int) -> bool:
    """The scheduler's web server is there first, but answers only when all the rest listens as well."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        return bool(await reader.read(1))
    except OSError:
        return False
    finally:
        writer.close()


def close(worker: Any) -> None:
    last_resort = threading.Timer(CLOSE_SECONDS, os._exit, (0,))
    last_resort.daemon = True
    last_resort.start()
    worker.closing_on_signal = asyncio.ensure_future(worker.close(executor_wait=False, reason="SIGTERM"))


def watch_memory(worker: Any) -> None:
    import dask

    limit = worker.memory_manager.memory_limit
    share = dask.config.get("distributed.worker.memory.terminate")
    if limit and share:
        threading.Thread(target=end_when_too_large, args=(int(limit * share),), daemon=True).start()


def end_when_too_large(limit: int) -> None:
    """In a thread, so that work that keeps the event loop busy is seen too."""
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[1]) * page
        if used > limit:
            sys.stderr.write(f"Out of memory: {used >> 20} MiB in use, limit {limit >> 20} MiB. Ending this worker.\n")
            sys.stderr.flush()
            os._exit(OUT_OF_MEMORY)
        time.sleep(MEMORY_SECONDS)


main()
