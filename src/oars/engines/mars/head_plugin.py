"""Adds handlers for the control plane to the supervisor's web server. launch.py loads it into the supervisor: stdlib
and Mars only.

    GET  /api/oars/health                                              → {} once the supervisor serves; needs no token
    GET  /api/oars/nodes            → {"nodes": {address: {"identity": …, "status": …, …}}, "demand": [{"needs": …, …}],
                                       "idle": seconds, "no_client": seconds}
    POST /api/oars/nodes  {"current": [identity], "silent_seconds": s}    correct the status of nodes
    POST /api/oars/waiting?session=id                                     its calls wait for the first worker
    POST /api/oars/drain  {"workers": […], "seconds": s, "force": bool}   → {address: {"outcome": …, "reason": …}}

The identity of a node is "member:incarnation". The outcome of a drain is "moved", "finished", or "refused" with a
reason: what the worker waits for.

Mars' own drain (in its autoscaler, which none of its deployments uses) moves data that running tasks need, and they
fail. So a worker is drained in this order: it gets no new work; its subtasks end; older tasks that may need its data
end; the remaining data (results that sessions keep) is copied to other workers together with its metadata; pending
reads finish. A worker that is not drained when its time is up goes back to work; the next request starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import importlib
import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from tornado.web import RequestHandler

MARS = "xorbits._mars" if "xorbits" in sys.modules else "mars"
CANCEL_SECONDS = 10.0  # without a drain request, after which a worker goes back to work
REMOVE_SECONDS = 120.0  # the same for a drained worker, which the control plane should have ended
PLAN_SECONDS = 1.0  # for which a task that has just started may still have been planned with the worker
WAITING_SECONDS = 5.0  # after which an announced call counts no more; it is announced several times per second
READ_SECONDS = 3.0  # for which a drained worker keeps its data for pending reads


def mars(module: str) -> Any:
    return importlib.import_module(f"{MARS}.{module}")  # noqa: TID251 (a standalone script)


async def api(name: str, *arguments: Any) -> Any:
    """One of Mars' service APIs, such as "cluster.ClusterAPI"."""
    module, _, cls = name.rpartition(".")
    return await getattr(mars(f"services.{module}"), cls).create(*arguments)


class Handler(RequestHandler):
    def initialize(self, supervisor_addr: str) -> None:
        self.address = supervisor_addr

    def body(self) -> Any:
        return json.loads(self.request.body)


class Health(Handler):
    async def get(self) -> None:
        cluster = await api("cluster.ClusterAPI", self.address)
        await cluster.get_nodes_info(role=mars("services.core").NodeRole.SUPERVISOR)
        self.write("{}")


class Nodes(Handler):
    async def get(self) -> None:
        infos = await node_infos(self.address)
        used = await (await resources(self.address)).get_used_resources()
        busy = {address for address, _ in used}
        nodes = {address: describe(address, info, address in busy) for address, info in infos.items()}
        work = await demand(self.address, used)
        idle, no_client = await seconds_idle(self.address, work), await seconds_without_session(self.address)
        self.write(json.dumps({"nodes": nodes, "demand": work, "idle": idle, "no_client": no_client}))

    async def post(self) -> None:
        await cancel_abandoned_drains(self.address)
        request = self.body()
        for address, info in (await node_infos(self.address)).items():
            is_stopped = info["status"].name == "STOPPED"
            is_running = identity(info) in request["current"] and age(info) < request["silent_seconds"]
            if is_running == is_stopped:
                await set_status(self.address, address, "READY" if is_running else "STOPPED", identity(info))
        self.write("{}")


class Waiting(Handler):
    async def post(self) -> None:
        WAITING_CALLS[self.get_query_argument("session")] = time.monotonic()
        self.write("{}")


class Drain(Handler):
    async def post(self) -> None:
        request = self.body()
        infos = await node_infos(self.address)
        known = [worker for worker in request["workers"] if worker in infos]
        for worker in known:  # all of them first, or one would move its data to another
            await stop_work(self.address, worker, infos[worker], request["seconds"])
        if request["force"]:
            for worker in known:
                DRAINING[worker].is_forced = True
            self.write(json.dumps({worker: {"outcome": "finished"} for worker in known}))
            return
        outcomes = await asyncio.gather(*(continue_drain(self.address, worker) for worker in known))
        self.write(json.dumps(dict(zip(known, outcomes))))


# Nodes.

LAST_BUSY: dict[str, tuple[str | None, float]] = {}  # address → identity, and when it was last seen busy


async def node_infos(supervisor: str) -> dict[str, Any]:
    cluster = await api("cluster.ClusterAPI", supervisor)
    infos = await cluster.get_nodes_info(env=True, detail=True, resource=True, exclude_statuses=set())
    return dict(infos)


def describe(address: str, info: dict[str, Any], is_busy: bool) -> dict[str, Any]:
    now = time.monotonic()
    if is_busy or LAST_BUSY.get(address, (None, 0.0))[0] != identity(info):
        LAST_BUSY[address] = (identity(info), now)
    return {
        "identity": identity(info),
        "status": info["status"].name,
        "age": age(info),
        "idle": now - LAST_BUSY[address][1],
        "held": held(info),
    }


LAST_USED: dict[str, float] = {}  # "work", "session" → when a request last found any


def seconds_since(what: str, is_there: bool) -> float:
    """Seconds since a request last found it; from the first request on."""
    now = time.monotonic()
    if is_there or what not in LAST_USED:
        LAST_USED[what] = now
    return now - LAST_USED[what]


async def seconds_idle(supervisor: str, work: list[dict[str, Any]]) -> float:
    """Mars itself knows of tasks that ended between two requests."""
    ended = None  # as for a session that is being opened or closed
    with contextlib.suppress(oscar().ActorNotExist):
        ended = await (await api("session.SessionAPI", supervisor)).get_last_idle_time()
    seconds = seconds_since("work", bool(work) or ended is None)
    return seconds if ended is None else min(seconds, max(0.0, time.time() - ended))


async def seconds_without_session(supervisor: str) -> float:
    """A client is an open session. One that ends without closing it leaves the session, which Mars cannot tell."""
    return seconds_since("session", bool(await session_ids(supervisor)))


def age(info: dict[str, Any]) -> float:
    """Seconds since the node's last report."""
    return max(0.0, time.time() - float(info["update_time"]))


def identity(info: dict[str, Any]) -> str:
    """From the command line, which every node reports; launch.py puts it there."""
    command = info["env"].get("command_line", [])
    return str(command[1]) if len(command) > 1 else ""


def held(info: dict[str, Any]) -> int:
    bands = info["detail"].get("storage", {}).values()
    return sum(int(level["size_used"] or 0) for band in bands for level in band.values())


async def set_status(supervisor: str, node: str, status: str, node_identity: str) -> None:
    cluster = await api("cluster.ClusterAPI", supervisor)
    roles = mars("services.core").NodeRole
    role = roles.SUPERVISOR if node_identity.startswith("head:") else roles.WORKER
    await cluster.set_node_status(node, role, mars("services.cluster.core").NodeStatus[status])


# Demand.

WAITING_CALLS: dict[str, float] = {}  # session of an executor → when its calls last waited for the first worker


async def demand(supervisor: str, used: dict[tuple[str, str], Any]) -> list[dict[str, Any]]:
    """Subtasks that wait or run, by the kind of slot that they need. A subtask takes one slot. A task for which Mars
    has not planned any waits for the first worker."""
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for (_, band), resource in used.items():
        running[kind_of(band)] += round(max(resource.num_cpus, resource.num_gpus, 1))
    unplanned = 0
    for session in await session_ids(supervisor):
        queued = await (await subtask_queue(supervisor, session)).oars_queued()
        for band, count in queued.items():
            waiting[kind_of(band)] += count
        if not queued and not used:
            unplanned += await older_tasks(supervisor, [session], time.time())
            unplanned += time.monotonic() - WAITING_CALLS.get(session, -WAITING_SECONDS) < WAITING_SECONDS
    entries = [
        {"needs": {kind: 1}, "count": running[kind] + waiting[kind], "running": running[kind]}
        for kind in running | waiting
    ]
    return [*entries, {"needs": {}, "count": unplanned}] if unplanned else entries


def kind_of(band: str) -> str:
    return "gpu" if band.startswith("gpu") else "cpu"


async def session_ids(supervisor: str) -> list[str]:
    return [info.session_id for info in await (await api("session.SessionAPI", supervisor)).get_sessions()]


async def subtask_queue(supervisor: str, session: str) -> Any:
    queueing = mars("services.scheduling.supervisor.queueing").SubtaskQueueingActor
    return await oscar().actor_ref(queueing.gen_uid(session), address=supervisor)


# Draining.


@dataclass
class Draining:
    """The drain of one worker. Times are monotonic but for `since`, which is compared with times of Mars."""

    identity: str
    since: float
    requested: float  # time of the last request
    deadline: float
    waits_for: str = "its data to be inspected"
    moved: float | None = None
    is_forced: bool = False  # it ends with what it holds
    step: asyncio.Task[str] | None = field(default=None, repr=False)


DRAINING: dict[str, Draining] = {}
LOCKS: dict[str, asyncio.Lock] = {}


async def stop_work(supervisor: str, worker: str, info: dict[str, Any], seconds: float) -> None:
    """Give the worker no new work."""
    now = time.monotonic()
    if worker not in DRAINING or DRAINING[worker].identity != identity(info):
        DRAINING[worker] = Draining(identity(info), time.time(), now, now + seconds)
    DRAINING[worker].requested = now
    if info["status"].name == "READY":
        DRAINING[worker].since = time.time()
        await set_status(supervisor, worker, "STOPPING", identity(info))
        await (await resources(supervisor)).refresh_bands()


async def continue_drain(supervisor: str, worker: str) -> dict[str, str]:
    """Take the next step, in the background if it takes long. Returns the outcome so far."""
    draining = DRAINING[worker]
    if draining.is_forced:
        return {"outcome": "finished"}
    if draining.step is None:
        draining.step = asyncio.ensure_future(drain_exclusively(supervisor, worker, draining))
    await asyncio.wait([draining.step], timeout=0.5)
    if draining.step.done():
        error = draining.step.exception()
        failure = f"results that could not be moved ({type(error).__name__}: {error})"
        draining.waits_for = draining.step.result() if error is None else failure
        draining.step = None
        if draining.waits_for and time.monotonic() > draining.deadline:
            del DRAINING[worker]
            await put_in_service(supervisor, worker, draining)
    if draining.waits_for:
        return {"outcome": "refused", "reason": draining.waits_for}
    return {"outcome": "finished" if draining.moved is None else "moved"}


async def cancel_abandoned_drains(supervisor: str) -> None:
    """Put workers back in service that still run but are no longer asked to drain."""
    for worker, draining in list(DRAINING.items()):
        silent = time.monotonic() - draining.requested
        if silent < (CANCEL_SECONDS if draining.waits_for else REMOVE_SECONDS):
            continue
        info = (await node_infos(supervisor)).get(worker)
        if info is not None and age(info) > silent - CANCEL_SECONDS / 2:
            continue  # it does not report: it is dead, or the clock was set forward
        del DRAINING[worker]
        await put_in_service(supervisor, worker, draining)


async def put_in_service(supervisor: str, worker: str, draining: Draining) -> None:
    info = (await node_infos(supervisor)).get(worker)
    if info is not None and info["status"].name == "STOPPING" and identity(info) == draining.identity:
        await set_status(supervisor, worker, "READY", draining.identity)
        await (await resources(supervisor)).refresh_bands()


async def drain_exclusively(supervisor: str, worker: str, draining: Draining) -> str:
    """One worker at a time: data may move to a worker that is asked to drain a moment later."""
    # Create the lock inside the running loop: older Pythons bind it to one.
    async with LOCKS.setdefault("moving", asyncio.Lock()):
        return await drain(supervisor, worker, draining)


async def drain(supervisor: str, worker: str, draining: Draining) -> str:
    """One attempt. Returns what it waits for, or "" if the worker is drained."""
    sessions = await session_ids(supervisor)
    bands = [(worker, band) for band in (await node_infos(supervisor))[worker]["resource"]]
    for session in sessions:
        await (await subtask_queue(supervisor, session)).oars_rebalance()
    if await is_busy(supervisor, bands):
        return "its running subtasks"
    if not await has_data(bands):
        return ""
    older = await older_tasks(supervisor, sessions, draining.since + PLAN_SECONDS)
    if older:
        return f"{older} running task{'s' if older > 1 else ''} that may need its data"
    for session in sessions:
        meta = await api("meta.MetaAPI", session, supervisor)
        chunks = [(key, band) for band in bands for key in await meta.get_band_chunks(band)]
        if chunks:
            draining.moved = time.monotonic()
            waits_for = await move(supervisor, session, chunks)
            if waits_for:
                return waits_for
    # Subtasks that looked up the data before it moved may still read it.
    is_recent = draining.moved is not None and time.monotonic() - draining.moved < READ_SECONDS
    return "pending reads of its data" if is_recent and await is_busy(supervisor, None) else ""


async def is_busy(supervisor: str, bands: list[tuple[str, str]] | None) -> bool:
    """True if anything runs on these bands; None: anywhere."""
    used = await (await resources(supervisor)).get_used_resources()
    return bool(used) if bands is None else any(band in used for band in bands)


async def has_data(bands: list[tuple[str, str]]) -> bool:
    """True if the worker stores anything, including data that only a running task knows."""
    manager = mars("services.storage.core").DataManagerActor
    ref = await oscar().actor_ref(manager.default_uid(), address=bands[0][0])
    levels = mars("storage").StorageLevel.__members__.values()
    return any([await ref.list(level, band) for _, band in bands for level in levels])


async def resources(supervisor: str) -> Any:
    manager = mars("services.scheduling.supervisor").GlobalResourceManagerActor
    return await oscar().actor_ref(manager.default_uid(), address=supervisor)


def oscar() -> Any:
    return importlib.import_module("xoscar" if MARS != "mars" else "mars.oscar")  # noqa: TID251


async def older_tasks(supervisor: str, sessions: list[str], moment: float) -> int:
    """Number of unfinished tasks that started before that moment."""
    count = 0
    for session in sessions:
        results = await (await api("task.TaskAPI", session, supervisor)).get_task_results()
        count += sum(task.status.name != "terminated" and (task.start_time or 0.0) <= moment for task in results)
    return count


# Moving data.


async def move(supervisor: str, session: str, chunks: list[tuple[str, tuple[str, str]]]) -> str:
    """Copy chunks that no other worker has, then delete this worker from their bands. Returns what it waits for."""
    meta = await api("meta.MetaAPI", session, supervisor)
    ready = await (await api("cluster.ClusterAPI", supervisor)).get_all_bands()
    targets = {name: itertools.cycle([band for band in ready if band[1] == name]) for _, (_, name) in chunks}
    for key, band in chunks:
        known = await meta.get_chunk_meta(key, fields=["bands"], error="ignore")
        if known is None or band not in known["bands"]:
            continue  # freed meanwhile
        holder = next((other for other in known["bands"] if other in ready), None)
        if holder is None:
            holder = next(targets[band[1]], None)
            if holder is None:
                return "results that no other worker can take"
            storage = await api("storage.StorageAPI", session, holder[0], holder[1])
            await storage.fetch(key, band_name=band[1], remote_address=band[0])
            await storage.unpin(key, error="ignore")
            await meta.add_chunk_bands(key, [holder])
        await copy_metadata(session, key, band[0], holder[0])
        await meta.remove_chunk_bands(key, [band])
    return ""


async def copy_metadata(session: str, key: str, source: str, target: str) -> None:
    """Copy shape, types and so on, which only the worker that made a chunk has; Mars asks the first holder."""
    metadata = await (await worker_meta(session, source)).get_meta(key, error="ignore")
    if metadata is not None:
        await (await worker_meta(session, target)).set_meta(key, rebuild(metadata))


async def worker_meta(session: str, worker: str) -> Any:
    manager = mars("services.meta.worker.core").WorkerMetaStoreManagerActor
    ref = await oscar().actor_ref(manager.default_uid(), address=worker)
    return await ref.new_session_meta_store(session)


def rebuild(metadata: dict[str, Any]) -> Any:
    """The metadata object: Mars sends it as a dictionary."""
    mars("services.meta.metas")
    pending = [mars("services.meta.core")._ChunkMeta]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if {part.name for part in fields(cls)} == metadata.keys():
            return cls(**metadata)
    raise RuntimeError(f"unknown metadata: {', '.join(metadata)}")


# Patches of Mars.


def patch_session_close() -> None:
    """Let a session close and free its data although a worker that served it is gone."""
    store = mars("services.meta.supervisor.core").MetaStoreActor
    original = store.__pre_destroy__

    async def __pre_destroy__(self: Any) -> None:
        with contextlib.suppress(OSError, oscar().ServerClosed, oscar().ActorNotExist):
            await original(self)

    store.__pre_destroy__ = __pre_destroy__


def patch_reassignment() -> None:
    """Update the bands before queued subtasks of a stopping worker are reassigned: the actor may be late."""
    assigner = mars("services.scheduling.supervisor.assigner").AssignerActor
    original = assigner.reassign_subtasks

    async def reassign_subtasks(self: Any, queued: Any) -> Any:
        self._update_bands(list(await self._cluster_api.get_all_bands()))
        return await original(self, queued)

    assigner.reassign_subtasks = reassign_subtasks


def patch_queues() -> None:
    """Delete cancelled subtasks before a queue is rebalanced: Mars would lose others with them. And rebalance queues of
    stopping workers on request: a subtask that was queued just before would stay there forever."""
    queueing = mars("services.scheduling.supervisor.queueing").SubtaskQueueingActor
    original = queueing.balance_queued_subtasks

    async def balance_queued_subtasks(self: Any) -> None:
        for queue in self._band_queues.values():
            queue[:] = [item for item in queue if self._stid_to_items.get(item.subtask.subtask_id) is item]
            heapq.heapify(queue)
        await original(self)

    async def oars_rebalance(self: Any) -> None:
        ready = await self._cluster_api.get_all_bands()
        if any(queue for band, queue in self._band_queues.items() if band not in ready):
            await self.balance_queued_subtasks()
            await self._slots_ref.refresh_bands()

    async def oars_queued(self: Any) -> dict[str, int]:
        """Name of a band → how many subtasks are queued for bands of that name."""
        found: dict[str, int] = {}
        for (_, band), queue in self._band_queues.items():
            if queue:
                found[band] = found.get(band, 0) + len(queue)
        return found

    queueing.balance_queued_subtasks = balance_queued_subtasks
    queueing.oars_queued = oars_queued
    queueing.oars_rebalance = oars_rebalance


def patch_node_status() -> None:
    """Do not count a status change as a report of the node: a dead worker would seem to be alive."""
    collector = mars("services.cluster.supervisor.node_info").NodeInfoCollectorActor
    original = collector.update_node_info

    async def update_node_info(
        self: Any, address: str, role: Any, *args: Any, status: Any = None, **kwargs: Any
    ) -> None:
        known = self._node_infos.get(address)
        last_report = known.update_time if known is not None and not args and not kwargs else None
        await original(self, address, role, *args, status=status, **kwargs)
        if last_report is not None:
            self._node_infos[address].update_time = last_report

    collector.update_node_info = update_node_info


for patch in (patch_session_close, patch_reassignment, patch_queues, patch_node_status):
    patch()
web_handlers = {"/api/oars/health": Health, "/api/oars/nodes": Nodes, "/api/oars/drain": Drain}
web_handlers["/api/oars/waiting"] = Waiting
