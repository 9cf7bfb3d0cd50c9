"""Runs `dask scheduler` or `dask worker` in a process forked from a preloaded Python. A script in Dask's environment,
with sys.argv = dask scheduler … or dask worker …; other places run the plain commands.

Differences from the plain commands:
- It calls the subcommand directly. `dask` would first search all installed packages for plug-ins.
- A worker registers as soon as the scheduler listens. Started together with it, it would fail to connect and then sleep
  for increasing times between attempts.
- It reads its memory thresholds from its own environment: Dask may have been imported before the fork.
- A worker reports its incarnation to the scheduler.
- A worker that exceeds its memory limit exits, as under the nanny; spilling and pausing come first.
- A worker closes within seconds of SIGTERM, also with running tasks. Dask's own handler waits for them, and forever if
  the scheduler ends at the same moment.
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

ATTEMPTS, POLL_SECONDS = 3000, 0.02  # then Dask's own connection timeout applies
MEMORY_POLL_SECONDS = 0.2
CLOSE_SECONDS = 3.0
MEMORY = "DASK_DISTRIBUTED__WORKER__MEMORY__"
OUT_OF_MEMORY = 137  # the exit code of a process that the kernel killed, as shells report it


def main() -> None:
    import dask
    from distributed.cli import dask_scheduler, dask_worker

    role = sys.argv[1]
    sys.argv[:2] = [f"dask {role}"]
    if role == "scheduler":
        dask_scheduler.main()
        return
    thresholds = {name: value for name, value in os.environ.items() if name.startswith(MEMORY)}
    dask.config.update(dask.config.config, dask.config.collect_env(thresholds))
    # Dask finds a preload by its name among the imported modules.
    hooks = types.ModuleType("oars_worker")
    hooks.dask_setup = prepare_worker  # type: ignore[attr-defined]
    sys.modules[hooks.__name__] = hooks
    preload = dask.config.get("distributed.worker.preload")
    dask.config.set({"distributed.worker.preload": [*preload, hooks.__name__]})
    dask_worker.main()


async def prepare_worker(worker: Any) -> None:
    """Dask calls this when the worker listens, before it registers."""
    incarnation = os.environ["OARS_INCARNATION"]
    worker.startup_information["oars"] = lambda _: {"incarnation": incarnation}
    watch_memory(worker)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, close, worker)
    host, _, port = os.environ["OARS_HEALTH"].rpartition(":")
    for _ in range(ATTEMPTS):
        if await is_up(host, int(port)):
            return
        await asyncio.sleep(POLL_SECONDS)


async def is_up(host: str, port: int) -> bool:
    """The scheduler's web server accepts connections first, but replies only when the scheduler listens too."""
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
    timer = threading.Timer(CLOSE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    worker.closing_on_signal = asyncio.ensure_future(worker.close(executor_wait=False, reason="SIGTERM"))


def watch_memory(worker: Any) -> None:
    import dask

    limit = worker.memory_manager.memory_limit
    share = dask.config.get("distributed.worker.memory.terminate")
    if limit and share:
        threading.Thread(target=exit_above_limit, args=(int(limit * share),), daemon=True).start()


def exit_above_limit(limit: int) -> None:
    """Runs in a thread, so that a blocked event loop does not stop it."""
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[1]) * page
        if used > limit:
            sys.stderr.write(f"Out of memory: {used >> 20} MiB in use, limit {limit >> 20} MiB. This worker exits.\n")
            sys.stderr.flush()
            os._exit(OUT_OF_MEMORY)
        time.sleep(MEMORY_POLL_SECONDS)


main()
