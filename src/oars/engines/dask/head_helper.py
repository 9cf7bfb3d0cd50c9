"""Drains workers of a Dask scheduler and warns its clients. A script that runs next to it, in its environment: stdlib
and distributed only.

    {"op": "drain", "names": […], "seconds": s, "force": bool}
        → {"ok": {name: {"outcome": "moved" | "finished" | "refused", "reason": what it waits for}}}
    {"op": "warn", "messages": […]}   clients issue them as Python warnings → {"ok": {}}

Dask's own `retire_workers` moves results but does not wait for running tasks, which then run a second time elsewhere.
So it is used to move results only. The decision is made inside the scheduler, where nothing can change between checking
a worker and removing it. A drained worker is unknown to the scheduler; the control plane ends its process. A worker
that could not be drained is in service again afterwards, also if the control plane disconnects meanwhile.

The scheduler preloads it, too (dask_setup): it notes scatters, whose workers a drain must not remove; and a worker that
gets SIGTERM and has OARS_HAND_OVER in its environment, as pods do, first asks it to move what the worker holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
from distributed import WorkerPlugin
from distributed.core import clean_exception, rpc
from distributed.protocol import pickle
from distributed.security import Security

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0  # for a busy worker to report its running tasks
FORCE_SECONDS = 3.0  # to move results before the rest is lost
CLOSING = "closing_gracefully"
ATTEMPT = "oars-drain"  # in a worker's `extra`: the attempt to drain it that began last
# In the scheduler's `extensions`: the numbers of the scatters that have not ended. In a worker's `extra`: those of them
# that may have chosen it, because they began before its drain.
SCATTERS = "oars-scatters"
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
NAMES_SHOWN = 3  # task names in a message
MOVE_SECONDS = 20.0  # of one attempt to move the results of a worker that ends
CLOSE_SECONDS = 3.0
UNKNOWN = "worker-heartbeat-missing"  # Dask's reason to close a worker that the scheduler does not know
REMOVAL_SECONDS = 60.0  # for which a drained worker waits to be ended; later nobody may be there who does it


# These functions are sent to the scheduler and run there.


async def drain(names: list[str], seconds: float, force: bool, attempt: str, dask_scheduler: Any) -> dict[str, Any]:
    """Drain and remove as many of the workers as possible in that time. Returns the outcome of each. `attempt`
    identifies this drain: it leaves a worker alone that a later one has begun to drain."""
    known = {str(ws.name): ws for ws in dask_scheduler.workers.values() if str(ws.name) in names}
    blocked = {name: refused(describe_actors(ws)) for name, ws in known.items() if ws.actors and not force}
    draining = {name: ws for name, ws in known.items() if name not in blocked}
    for ws in draining.values():
        ws.extra[ATTEMPT] = attempt
        change_status(dask_scheduler, ws, CLOSING)
    try:
        started = await asyncio.gather(*(tasks_started(dask_scheduler, ws) for ws in draining.values()))
        running = dict(zip(draining, started, strict=True))
        return blocked | await drain_closing(dask_scheduler, draining, running, seconds, attempt)
    finally:
        for ws in draining.values():
            if force:
                await remove(dask_scheduler, ws)
            else:
                put_in_service(dask_scheduler, ws, attempt)


async def drain_closing(
    s: Any, draining: dict[str, Any], started: dict[str, Any], seconds: float, attempt: str
) -> dict[str, Any]:
    """Wait for workers that start no more tasks. Returns the outcome of each; deletes removed ones from `draining`.

    A worker for which waiting cannot help is put back in service at once."""
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    outcomes: dict[str, Any] = {}
    holders: set[str] = set()  # addresses of workers from which results were moved
    waiting = dict(draining)
    while waiting:
        for name, ws in waiting.items():
            reschedule_queue(s, ws, started[name])
        holders |= await move_results(s, list(waiting.values()), deadline - time.monotonic())
        for name, ws in list(waiting.items()):
            reason, is_permanent = obstacle(s, ws, started[name], attempt)
            outcomes[name] = refused(reason)
            if not reason:
                outcomes[name] = {"outcome": "moved" if ws.address in holders else "finished"}
                await remove(s, ws)
                del draining[name], waiting[name]
            elif is_permanent:
                put_in_service(s, ws, attempt)
                del waiting[name]
        if not waiting or time.monotonic() + pause > deadline:
            break
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)
    return outcomes


def refused(reason: str) -> dict[str, str]:
    return {"outcome": "refused", "reason": reason}


def change_status(s: Any, ws: Any, status: str) -> None:
    """The scheduler assigns it no more tasks from now on; the worker starts no more once it receives the message."""
    if status == CLOSING:
        ws.extra[SCATTERS] = sorted(s.extensions.get(SCATTERS, ()))
    stimulus = f"oars-{status}-{time.time()}"
    s.handle_worker_status_change(status, ws, stimulus)
    send_status(s, ws, status, stimulus)


def send_status(s: Any, ws: Any, status: str, stimulus: str) -> None:
    s.stream_comms[ws.address].send({"op": "worker-status-change", "status": status, "stimulus_id": stimulus})


def put_in_service(s: Any, ws: Any, attempt: str) -> None:
    """The worker changes its status first and informs the scheduler, as in Dask's own failed retirements."""
    if s.workers.get(ws.address) is ws and ws.status.name == CLOSING and ws.extra.get(ATTEMPT) == attempt:
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


async def move_results(s: Any, workers: list[Any], seconds: float) -> set[str]:
    """Returns the addresses of workers whose results were to be moved."""
    addresses = {ws.address for ws in workers if only_copies(ws)}
    if not addresses or not s.running or seconds <= 0:
        return set()
    try:
        await asyncio.wait_for(s.retire_workers(workers=list(addresses), close_workers=False, remove=False), seconds)
    except TimeoutError:
        manager = s.extensions.get("amm")
        for policy in list(manager.policies if manager else ()):
            if getattr(policy, "address", None) in addresses:
                manager.policies.discard(policy)
    return addresses


def only_copies(ws: Any) -> list[Any]:
    """Results that no worker in service has."""
    serving = ("running", "paused")
    return [t for t in ws.has_what if not t.actor and not any(w.status.name in serving for w in t.who_has)]


def obstacle(s: Any, ws: Any, started: Any, attempt: str) -> tuple[str, bool]:
    """What the worker waits for, or "", and whether waiting cannot help."""
    if s.workers.get(ws.address) is not ws:
        return "", False
    if ws.extra.get(ATTEMPT) != attempt:
        return "another attempt to drain it has begun", True
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
    return obstacle_of_data(s, ws)


def obstacle_of_data(s: Any, ws: Any) -> tuple[str, bool]:
    """The same, for a worker without work."""
    if scatters := s.extensions.get(SCATTERS, set()).intersection(ws.extra.get(SCATTERS, ())):
        return f"{count(scatters, 'scatter')} of a client", False
    if not all(plugin.valid_workers_downscaling(s, [ws]) for plugin in s.plugins.values()):
        return "a shuffle, whose data cannot be moved", False
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


async def cancel_drain(attempt: str, dask_scheduler: Any) -> None:
    for ws in dask_scheduler.workers.values():
        put_in_service(dask_scheduler, ws, attempt)


async def warn(messages: list[str], dask_scheduler: Any) -> None:
    for message in messages:
        dask_scheduler.log_event("warn", message)


# In the scheduler, from its start.


def dask_setup(scheduler: Any) -> None:
    """Dask calls this when the scheduler listens. Workers receive the plugin when they register."""
    scheduler.handlers["scatter"] = noted(
        scheduler.handlers["scatter"], scheduler.extensions.setdefault(SCATTERS, set())
    )

    async def handle_hand_over(address: str) -> None:
        await hand_over(scheduler, address)

    scheduler.handlers["oars_hand_over"] = handle_hand_over
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    scheduler.worker_plugins["oars-hand-over"] = cloudpickle.dumps(HandOver())


def noted(scatter: Callable[..., Any], running: set[int]) -> Callable[..., Any]:
    """A scatter chooses its workers first, and the scheduler knows of the data only when they have it. A worker that
    ends in between fails the call of the client."""
    numbers = itertools.count()

    async def noting(*args: Any, **kwargs: Any) -> Any:
        running.add(number := next(numbers))
        try:
            return await scatter(*args, **kwargs)
        finally:
            running.discard(number)

    return noting


async def hand_over(scheduler: Any, address: str) -> None:
    """Drain a worker that is about to end. It is not put back in service, and what no other worker can take now may
    fit on its successor, so this ends only when the worker is drained or gone."""
    ws, attempt, started = scheduler.workers.get(address), secrets.token_hex(8), None
    while ws is not None and scheduler.workers.get(address) is ws:
        if ws.extra.get(ATTEMPT) != attempt:  # also after an attempt of the control plane, which may have put it back
            ws.extra[ATTEMPT] = attempt
            change_status(scheduler, ws, CLOSING)
            started = None
        if started is None:
            started = await tasks_started(scheduler, ws)
        reschedule_queue(scheduler, ws, started)
        await move_results(scheduler, [ws], MOVE_SECONDS)
        reason, _ = obstacle(scheduler, ws, started, attempt)
        if not reason:
            await remove(scheduler, ws)
        else:
            await asyncio.sleep(LONGEST_PAUSE)


class HandOver(WorkerPlugin):  # type: ignore[misc]
    """Makes a worker hand over at SIGTERM; then it closes, also with running tasks.

    A drained worker closes when it notices that the scheduler has removed it. Here it waits for SIGTERM first: its pod
    is about to be deleted. The kubelet would start its container again. The new process would join and take work; and
    if it gets its SIGTERM before it handles signals, it would keep its pod until the grace period has passed."""

    def setup(self, worker: Any) -> None:
        if os.environ.get("OARS_HAND_OVER"):
            self.stopping = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.start, worker)
            worker.close = functools.partial(self.close, worker, worker.close)

    async def close(self, worker: Any, close: Any, *args: Any, **options: Any) -> Any:
        """Workers that somebody else retires, or whose scheduler is gone, close at once."""
        is_drained = worker.status.name == CLOSING and options.get("reason") == UNKNOWN
        if is_drained and not self.stopping.is_set():
            worker.periodic_callbacks["heartbeat"].stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), REMOVAL_SECONDS)
        return await close(*args, **options)

    def start(self, worker: Any) -> None:
        self.stopping.set()
        self.ending = asyncio.ensure_future(self.end(worker))

    async def end(self, worker: Any) -> None:
        try:
            await worker.scheduler.oars_hand_over(address=worker.address)
        except (OSError, TimeoutError) as error:
            sys.stderr.write(f"The scheduler does not take over the results of this worker: {error}\n")
        finally:
            timer = threading.Timer(CLOSE_SECONDS, os._exit, (0,))
            timer.daemon = True
            timer.start()
            await worker.close(executor_wait=False, reason="SIGTERM")


# These functions run in this process.


async def run_on_scheduler(scheduler: Any, function: Any, **arguments: Any) -> Any:
    reply = await scheduler.run_function(function=pickle.dumps(function), kwargs=pickle.dumps(arguments), wait=True)
    if reply["status"] == "OK":
        return reply["result"]
    _, error, _ = clean_exception(**reply)
    raise RuntimeError(f"{type(error).__name__}: {error}")


async def handle(scheduler: Any, request: dict[str, Any], attempt: str) -> Any:
    if request["op"] == "warn":
        await run_on_scheduler(scheduler, warn, messages=request["messages"])
        return {}
    names, force = request["names"], request["force"]
    seconds = min(request["seconds"], FORCE_SECONDS) if force else request["seconds"]
    outcomes = await run_on_scheduler(scheduler, drain, names=names, seconds=seconds, force=force, attempt=attempt)
    finished = {"outcome": "finished"}
    replies = {name: outcomes.get(name, finished) for name in names}
    return {name: finished if force and reply["outcome"] == "refused" else reply for name, reply in replies.items()}


async def serve(scheduler: Any, line: bytes, end: asyncio.Task[bytes]) -> None:
    """Reply to a request, or cancel it if the control plane disconnects first."""
    request, attempt = json.loads(line), secrets.token_hex(8)
    work = asyncio.ensure_future(handle(scheduler, request, attempt))
    await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await run_on_scheduler(scheduler, cancel_drain, attempt=attempt)
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
