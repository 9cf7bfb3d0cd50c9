"""Empties workers of a Dask scheduler. Run as a script beside it, in its environment: standard library and distributed.

    {"op": "drain", "names": […], "seconds": s, "force": bool}  → {"ok": {name: "" (empty, gone) | what it waits for}}

Dask's own `retire_workers` moves results, but does not wait for running tasks: they run a second time elsewhere. So it
is used for moving only. What decides runs inside the scheduler, where nothing can change between looking at a worker
and letting it go. A worker that is let go is out of the scheduler's books; its process is ended by whoever asked. One
that is not is in service again afterwards, also if whoever asked goes away meanwhile.
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
ANSWER_SECONDS = 10.0  # a worker that is too busy to say what it runs
FORCE_SECONDS = 3.0  # given to moving what can be moved before the rest is lost
CLOSING, PAUSES = "closing_gracefully", (0.02, 0.5)
NAMED = 3  # tasks named in a message


# Inside the scheduler.


async def empty(names: list[str], seconds: float, force: bool, dask_scheduler: Any) -> dict[str, str]:
    """Empty and let go as many of the workers as can be in that time; what the others wait for."""
    found = {str(ws.name): ws for ws in dask_scheduler.workers.values() if str(ws.name) in names}
    waits = {name: actors(ws) for name, ws in found.items() if ws.actors and not force}
    left = {name: ws for name, ws in found.items() if name not in waits}
    for ws in left.values():
        change_status(dask_scheduler, ws, CLOSING)
    try:
        started = await asyncio.gather(*(tasks_started(dask_scheduler, ws) for ws in left.values()))
        running = dict(zip(left, started, strict=True))
        return waits | await empty_closing(dask_scheduler, left, running, seconds)
    finally:
        for ws in left.values():
            if force:
                await let_go(dask_scheduler, ws)
            else:
                back_in_service(dask_scheduler, ws)


async def empty_closing(s: Any, left: dict[str, Any], started: dict[str, Any], seconds: float) -> dict[str, str]:
    """What they wait for. Those that are let go are taken out of `left`. One for which waiting is in vain waits no
    longer: it is of more use in service."""
    deadline, (pause, longest) = time.monotonic() + seconds, PAUSES
    waits: dict[str, str] = {}
    waiting = dict(left)
    while waiting:
        for name, ws in waiting.items():
            hand_over_queue(s, ws, started[name])
        await move_results(s, list(waiting.values()), deadline - time.monotonic())
        for name, ws in list(waiting.items()):
            waits[name], in_vain = obstacle(s, ws, started[name])
            if not waits[name]:
                await let_go(s, ws)
                del left[name], waiting[name]
            elif in_vain:
                back_in_service(s, ws)
                del waiting[name]
        if not waiting or time.monotonic() + pause > deadline:
            break
        await asyncio.sleep(pause)
        pause = min(longest, pause * 1.5)
    return waits


def change_status(s: Any, ws: Any, status: str) -> None:
    """The scheduler stops giving it tasks now; the worker stops starting those it has when it hears of it."""
    stimulus = f"oars-{status}-{time.time()}"
    s.handle_worker_status_change(status, ws, stimulus)
    tell_status(s, ws, status, stimulus)


def tell_status(s: Any, ws: Any, status: str, stimulus: str) -> None:
    s.stream_comms[ws.address].send({"op": "worker-status-change", "status": status, "stimulus_id": stimulus})


def back_in_service(s: Any, ws: Any) -> None:
    """The worker changes first and tells the scheduler, as Dask does it when a retirement fails."""
    if s.workers.get(ws.address) is ws and ws.status.name == CLOSING:
        tell_status(s, ws, "running", f"oars-running-{time.time()}")


async def tasks_started(s: Any, ws: Any) -> Any:
    """Keys of what the worker has begun. Fingerprint once it starts nothing more; None: it does not answer."""
    if not ws.processing:
        return set()
    try:
        async with rpc(ws.address, connection_args=s.connection_args) as worker:
            return await asyncio.wait_for(ask_started(worker), ANSWER_SECONDS)
    except (OSError, TimeoutError):
        return None


async def ask_started(worker: Any) -> set[Any]:
    while True:
        answer = await worker.run(function=pickle.dumps(report_started))
        if answer["status"] != "OK":
            raise OSError("the worker could not say what it runs")
        status, keys = answer["result"]
        if status != "running":
            return set(keys)
        await asyncio.sleep(PAUSES[0])


def report_started(dask_worker: Any) -> tuple[str, list[Any]]:
    return dask_worker.status.name, [task.key for task in dask_worker.state.all_running_tasks]


def hand_over_queue(s: Any, ws: Any, started: Any) -> None:
    """Tasks that wait on a worker which starts nothing more run elsewhere instead."""
    if started is None:
        return
    for task in list(ws.processing):
        if task.key not in started and may_run_elsewhere(s, task, ws):
            s._reschedule(task.key, ws.address, stimulus_id=f"oars-hand-over-{time.time()}")


def may_run_elsewhere(s: Any, task: Any, ws: Any) -> bool:
    allowed = None if task.loose_restrictions else s.valid_workers(task)
    return allowed is None or bool(allowed - {ws})


async def move_results(s: Any, workers: list[Any], seconds: float) -> None:
    addresses = [ws.address for ws in workers if unsafe(s, ws)]
    if not addresses or not s.running or seconds <= 0:
        return
    try:
        await asyncio.wait_for(s.retire_workers(workers=addresses, close_workers=False, remove=False), seconds)
    except TimeoutError:
        manager = s.extensions.get("amm")
        for policy in list(manager.policies if manager else ()):
            if getattr(policy, "address", None) in addresses:
                manager.policies.discard(policy)


def unsafe(s: Any, ws: Any) -> list[Any]:
    """Results that no worker in service has."""
    return [task for task in ws.has_what if not task.actor and not any(is_in_service(w) for w in task.who_has)]


def is_in_service(ws: Any) -> bool:
    return bool(ws.status.name in ("running", "paused"))


def obstacle(s: Any, ws: Any, started: Any) -> tuple[str, bool]:
    """Why the worker cannot go yet, if anything; and whether waiting is in vain."""
    if s.workers.get(ws.address) is not ws:
        return "", False
    if ws.status.name != CLOSING:
        return "it was put back in service", True
    if started is None:
        return f"it did not say within {ANSWER_SECONDS:.0f} s what it runs", True
    if ws.actors:
        return actors(ws), True
    running = [task for task in ws.processing if task.key in started]
    if running:
        return f"{count(running, 'running task')} ({named(running)})", False
    if ws.processing and s.running:
        return f"{count(ws.processing, 'task')} that no other worker may run ({named(ws.processing)})", True
    return obstacle_in_memory(s, unsafe(s, ws))


def obstacle_in_memory(s: Any, results: list[Any]) -> tuple[str, bool]:
    if not results:
        return "", False
    size = sum(task.get_nbytes() for task in results) / 2**20
    what = f"{count(results, 'result')} ({size:.1f} MiB)"
    if s.running:
        return f"{what} on the way to other workers", False
    return f"{what} that no other worker can take", True


def actors(ws: Any) -> str:
    return f"{count(ws.actors, 'actor')} ({named(ws.actors)}); actors cannot be moved, release them first"


def count(things: Any, what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def named(tasks: Any) -> str:
    names = sorted({task.prefix.name for task in tasks})
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


async def let_go(s: Any, ws: Any) -> None:
    if s.workers.get(ws.address) is ws:
        await s.remove_worker(ws.address, expected=True, close=False, stimulus_id=f"oars-drained-{time.time()}")


async def put_back(names: list[str], dask_scheduler: Any) -> None:
    for ws in dask_scheduler.workers.values():
        if str(ws.name) in names:
            back_in_service(dask_scheduler, ws)


# Beside it.


async def run_inside(scheduler: Any, function: Any, **arguments: Any) -> Any:
    answer = await scheduler.run_function(function=pickle.dumps(function), kwargs=pickle.dumps(arguments), wait=True)
    if answer["status"] == "OK":
        return answer["result"]
    _, error, _ = clean_exception(**answer)
    raise RuntimeError(f"{type(error).__name__}: {error}")


async def answer(scheduler: Any, request: dict[str, Any]) -> Any:
    force = request["force"]
    seconds = min(request["seconds"], FORCE_SECONDS) if force else request["seconds"]
    waits = await run_inside(scheduler, empty, names=request["names"], seconds=seconds, force=force)
    return {name: "" if force else waits.get(name, "") for name in request["names"]}


async def serve(scheduler: Any, line: bytes, end: asyncio.Task[bytes]) -> None:
    """Answer, unless whoever asked is gone before."""
    request = json.loads(line)
    work = asyncio.ensure_future(answer(scheduler, request))
    await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await run_inside(scheduler, put_back, names=request["names"])
        return
    try:
        reply: dict[str, Any] = {"ok": work.result()}
    except (OSError, RuntimeError, TimeoutError) as error:
        reply = {"error": f"The Dask scheduler does not answer: {str(error) or type(error).__name__}"}
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
