"""Drains workers of a Dask scheduler. A script that runs next to it, in its environment: stdlib and distributed only.

    {"op": "drain", "names": […], "seconds": s, "force": bool}  → {"ok": {name: "" (drained) | what it waits for}}

Dask's own `retire_workers` moves results but does not wait for running tasks, which then run a second time elsewhere.
So it is used to move results only. The decision is made inside the scheduler, where nothing can change between checking
a worker and removing it. A drained worker is unknown to the scheduler; the control plane ends its process. A worker
that could not be drained is in service again afterwards, also if the control plane disconnects meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from distributed.core import clean_exception, rpc
from distributed.protocol import pickle
from distributed.security import Security

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0  # for a busy worker to report its running tasks
FORCE_SECONDS = 3.0  # to move results before the rest is lost
CLOSING = "closing_gracefully"
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
NAMES_SHOWN = 3  # task names in a message


# These functions are sent to the scheduler and run there.


async def drain(names: list[str], seconds: float, force: bool, dask_scheduler: Any) -> dict[str, str]:
    """Drain and remove as many of the workers as possible in that time. Returns what the others wait for."""
    known = {str(ws.name): ws for ws in dask_scheduler.workers.values() if str(ws.name) in names}
    blocked = {name: describe_actors(ws) for name, ws in known.items() if ws.actors and not force}
    draining = {name: ws for name, ws in known.items() if name not in blocked}
    for ws in draining.values():
        change_status(dask_scheduler, ws, CLOSING)
    try:
        started = await asyncio.gather(*(tasks_started(dask_scheduler, ws) for ws in draining.values()))
        running = dict(zip(draining, started, strict=True))
        return blocked | await drain_closing(dask_scheduler, draining, running, seconds)
    finally:
        for ws in draining.values():
            if force:
                await remove(dask_scheduler, ws)
            else:
                put_in_service(dask_scheduler, ws)


async def drain_closing(s: Any, draining: dict[str, Any], started: dict[str, Any], seconds: float) -> dict[str, str]:
    """Wait for workers that start no more tasks. Returns what each waits for; deletes removed ones from `draining`.

    A worker for which waiting cannot help is put back in service at once."""
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    waits_for: dict[str, str] = {}
    waiting = dict(draining)
    while waiting:
        for name, ws in waiting.items():
            reschedule_queue(s, ws, started[name])
        await move_results(s, list(waiting.values()), deadline - time.monotonic())
        for name, ws in list(waiting.items()):
            waits_for[name], is_permanent = obstacle(s, ws, started[name])
            if not waits_for[name]:
                await remove(s, ws)
                del draining[name], waiting[name]
            elif is_permanent:
                put_in_service(s, ws)
                del waiting[name]
        if not waiting or time.monotonic() + pause > deadline:
            break
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)
    return waits_for


def change_status(s: Any, ws: Any, status: str) -> None:
    """The scheduler assigns it no more tasks from now on; the worker starts no more once it receives the message."""
    stimulus = f"oars-{status}-{time.time()}"
    s.handle_worker_status_change(status, ws, stimulus)
    send_status(s, ws, status, stimulus)


def send_status(s: Any, ws: Any, status: str, stimulus: str) -> None:
    s.stream_comms[ws.address].send({"op": "worker-status-change", "status": status, "stimulus_id": stimulus})


def put_in_service(s: Any, ws: Any) -> None:
    """The worker changes its status first and informs the scheduler, as in Dask's own failed retirements."""
    if s.workers.get(ws.address) is ws and ws.status.name == CLOSING:
        send_status(s, ws, "running", f"oars-running-{time.time()}")


async def tasks_started(s: Any, ws: Any) -> Any:
    """Keys of the tasks that the worker has started, once it starts no more. None: it does not reply."""
    if not ws.processing:
        return set()
    try:
        async with rpc(ws.address, connection_args=s.connection_args) as worker:
            return await asyncio.wait_for(request_started(worker), REPLY_SECONDS)
    except (OSError, TimeoutError):
        return None


async def request_started(worker: Any) -> set[Any]:
    while True:
        reply = await worker.run(function=pickle.dumps(report_started))
        if reply["status"] != "OK":
            raise OSError("the worker could not report its running tasks")
        status, keys = reply["result"]
        if status != "running":
            return set(keys)
        await asyncio.sleep(FIRST_PAUSE)


def report_started(dask_worker: Any) -> tuple[str, list[Any]]:
    return dask_worker.status.name, [task.key for task in dask_worker.state.all_running_tasks]


def reschedule_queue(s: Any, ws: Any, started: Any) -> None:
    """Let tasks that are queued on a worker run elsewhere, if they may."""
    if started is None:
        return
    for task in list(ws.processing):
        if task.key in started:
            continue
        allowed = None if task.loose_restrictions else s.valid_workers(task)
        if allowed is None or allowed - {ws}:
            s._reschedule(task.key, ws.address, stimulus_id=f"oars-reschedule-{time.time()}")


async def move_results(s: Any, workers: list[Any], seconds: float) -> None:
    addresses = [ws.address for ws in workers if only_copies(ws)]
    if not addresses or not s.running or seconds <= 0:
        return
    try:
        await asyncio.wait_for(s.retire_workers(workers=addresses, close_workers=False, remove=False), seconds)
    except TimeoutError:
        manager = s.extensions.get("amm")
        for policy in list(manager.policies if manager else ()):
            if getattr(policy, "address", None) in addresses:
                manager.policies.discard(policy)


def only_copies(ws: Any) -> list[Any]:
    """Results that no worker in service has."""
    serving = ("running", "paused")
    return [t for t in ws.has_what if not t.actor and not any(w.status.name in serving for w in t.who_has)]


def obstacle(s: Any, ws: Any, started: Any) -> tuple[str, bool]:
    """What the worker waits for, or "", and whether waiting cannot help."""
    if s.workers.get(ws.address) is not ws:
        return "", False
    if ws.status.name != CLOSING:
        return "it was put back in service", True
    if started is None:
        return f"it did not report its running tasks within {REPLY_SECONDS:.0f} s", True
    if ws.actors:
        return describe_actors(ws), True
    running = [task for task in ws.processing if task.key in started]
    if running:
        return f"{count(running, 'running task')} ({task_names(running)})", False
    if ws.processing and s.running:
        return f"{count(ws.processing, 'task')} that no other worker may run ({task_names(ws.processing)})", True
    results = only_copies(ws)
    if not results:
        return "", False
    size = sum(task.get_nbytes() for task in results) / 2**20
    described = f"{count(results, 'result')} ({size:.1f} MiB)"
    if s.running:
        return f"{described} being moved to other workers", False
    return f"{described} that no other worker can take", True


def describe_actors(ws: Any) -> str:
    return f"{count(ws.actors, 'actor')} ({task_names(ws.actors)}); actors cannot be moved, release them first"


def count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def task_names(tasks: Any) -> str:
    names = sorted({task.prefix.name for task in tasks})
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")


async def remove(s: Any, ws: Any) -> None:
    if s.workers.get(ws.address) is ws:
        await s.remove_worker(ws.address, expected=True, close=False, stimulus_id=f"oars-drained-{time.time()}")


async def cancel_drain(names: list[str], dask_scheduler: Any) -> None:
    for ws in dask_scheduler.workers.values():
        if str(ws.name) in names:
            put_in_service(dask_scheduler, ws)


# These functions run in this process.


async def run_on_scheduler(scheduler: Any, function: Any, **arguments: Any) -> Any:
    reply = await scheduler.run_function(function=pickle.dumps(function), kwargs=pickle.dumps(arguments), wait=True)
    if reply["status"] == "OK":
        return reply["result"]
    _, error, _ = clean_exception(**reply)
    raise RuntimeError(f"{type(error).__name__}: {error}")


async def handle(scheduler: Any, request: dict[str, Any]) -> Any:
    force = request["force"]
    seconds = min(request["seconds"], FORCE_SECONDS) if force else request["seconds"]
    waits_for = await run_on_scheduler(scheduler, drain, names=request["names"], seconds=seconds, force=force)
    return {name: "" if force else waits_for.get(name, "") for name in request["names"]}


async def serve(scheduler: Any, line: bytes, end: asyncio.Task[bytes]) -> None:
    """Reply to a request, or cancel it if the control plane disconnects first."""
    request = json.loads(line)
    work = asyncio.ensure_future(handle(scheduler, request))
    await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await run_on_scheduler(scheduler, cancel_drain, names=request["names"])
        return
    try:
        reply: dict[str, Any] = {"ok": work.result()}
    except (OSError, RuntimeError, TimeoutError) as error:
        reply = {"error": f"The Dask scheduler does not reply: {str(error) or type(error).__name__}"}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


async def main() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    scheduler = rpc(
        os.environ["DASK_SCHEDULER_ADDRESS"],
        timeout=CONNECT_SECONDS,
        connection_args=Security().get_connection_args("client"),
    )
    line = await reader.readline()
    while line:
        following = asyncio.ensure_future(reader.readline())
        await serve(scheduler, line, following)
        line = await following


if __name__ == "__main__":
    asyncio.run(main())
