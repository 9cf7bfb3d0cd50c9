"""Pages that Oars adds to the supervisor's web server: who is there, and who is to leave. Loaded by launch.py in the
supervisor's process: standard library and Mars only, nothing of Oars.

    GET  /api/oars/nodes                                         who is there, a few bytes each
    POST /api/oars/nodes   {"STOPPED": {address: who}, …}        set the status of those that are who we think they are
    POST /api/oars/leave   {"workers": […], "force": bool}       → {address: what it waits for; "" when it may go}

Mars has the parts of a drain (its autoscaler, which no deployment of Mars' own can use) but moves data under running
tasks, which then miss it. So a worker leaves in this order: it gets no new work; what runs on it ends; tasks that began
before and may need what it holds end; what is left (results that sessions keep) is copied to others, with all that Mars
knows of it; readers that still come to it finish.
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
from dataclasses import dataclass, field, fields
from typing import Any

from tornado.web import RequestHandler

MARS = "xorbits._mars" if "xorbits" in sys.modules else "mars"
FORGOTTEN = 10.0  # seconds after which a worker that nobody asks to leave any more goes back to work
RELEASED = 120.0  # the same for one that was told it may go: whoever asked will end it
SLACK = 1.0  # seconds for which a task that has just begun may still have been planned with the worker
READ_SECONDS = 3.0  # how long the data of a worker that is otherwise free to go stay, for those who still read them


def mars(module: str) -> Any:
    return importlib.import_module(f"{MARS}.{module}")  # noqa: TID251 (a script of its own, not part of the package)


async def api(name: str, *arguments: Any) -> Any:
    """One of Mars' service APIs, such as "cluster.ClusterAPI"."""
    module, _, cls = name.rpartition(".")
    return await getattr(mars(f"services.{module}"), cls).create(*arguments)


class Page(RequestHandler):
    def initialize(self, supervisor_addr: str) -> None:
        self.address = supervisor_addr

    def body(self) -> Any:
        return json.loads(self.request.body)


class Nodes(Page):
    async def get(self) -> None:
        await take_back(self.address)
        infos = await node_infos(self.address)
        used = {address for address, _ in await (await resources(self.address)).get_used_resources()}
        self.write(json.dumps({address: describe(address, info, address in used) for address, info in infos.items()}))

    async def post(self) -> None:
        infos = await node_infos(self.address)
        for status, wanted in self.body().items():
            for address, who in wanted.items():
                if address in infos and who_is(infos[address]) == who:
                    await set_status(self.address, address, status, who)
        self.write("{}")


class Leave(Page):
    async def post(self) -> None:
        request = self.body()
        infos = await node_infos(self.address)
        known = [worker for worker in request["workers"] if worker in infos]
        for worker in known:  # all of them first, lest one hand its data to the next
            await stop_work(self.address, worker, infos[worker])
        steps = [] if request["force"] else [go_on(self.address, worker) for worker in known]
        await asyncio.gather(*steps)
        self.write(json.dumps({worker: "" if request["force"] else LEAVING[worker].waits_for for worker in known}))


# nodes

WORKED: dict[str, tuple[str | None, float]] = {}  # address → who was there, and when we last saw it work


async def node_infos(supervisor: str) -> dict[str, Any]:
    cluster = await api("cluster.ClusterAPI", supervisor)
    infos = await cluster.get_nodes_info(env=True, detail=True, resource=True, exclude_statuses=set())
    return dict(infos)


def describe(address: str, info: dict[str, Any], works: bool) -> dict[str, Any]:
    now = time.time()
    who = who_is(info)
    if works or WORKED.get(address, (None, 0.0))[0] != who:
        WORKED[address] = (who, now)
    return {
        "who": who,
        "status": info["status"].name,
        "age": max(0.0, now - info["update_time"]),
        "idle": max(0.0, now - WORKED[address][1]),
        "held": held(info),
    }


def who_is(info: dict[str, Any]) -> str:
    """launch.py puts it into the command line, which every node tells."""
    command = info["env"].get("command_line", [])
    return str(command[1]) if len(command) > 1 else ""


def held(info: dict[str, Any]) -> int:
    bands = info["detail"].get("storage", {}).values()
    return sum(int(level["size_used"] or 0) for band in bands for level in band.values())


async def set_status(supervisor: str, node: str, status: str, who: str) -> None:
    cluster = await api("cluster.ClusterAPI", supervisor)
    roles = mars("services.core").NodeRole
    role = roles.SUPERVISOR if who.startswith("head:") else roles.WORKER
    await cluster.set_node_status(node, role, mars("services.cluster.core").NodeStatus[status])


# leaving


@dataclass
class Leaving:
    """A worker that was asked to go."""

    since: float
    asked: float
    who: str
    waits_for: str = "what it holds to be looked through"
    moved: float = 0.0
    step: asyncio.Task[str] | None = field(default=None, repr=False)


LEAVING: dict[str, Leaving] = {}
LOCKS: dict[str, asyncio.Lock] = {}


async def stop_work(supervisor: str, worker: str, info: dict[str, Any]) -> None:
    """It gets no new work from now on."""
    now = time.time()
    who = who_is(info)
    if worker not in LEAVING or LEAVING[worker].who != who:
        LEAVING[worker] = Leaving(now, now, who)
    LEAVING[worker].asked = now
    if info["status"].name == "READY":
        LEAVING[worker].since = now
        await set_status(supervisor, worker, "STOPPING", who)
        await (await resources(supervisor)).refresh_bands()


async def go_on(supervisor: str, worker: str) -> None:
    """Takes it a step further, in the background if that lasts."""
    leaving = LEAVING[worker]
    if leaving.step is None:
        leaving.step = asyncio.ensure_future(empty_alone(supervisor, worker, leaving))
    await asyncio.wait([leaving.step], timeout=0.5)
    if leaving.step.done():
        leaving.waits_for = outcome(leaving.step)
        leaving.step = None


def outcome(step: asyncio.Task[str]) -> str:
    error = step.exception()
    return step.result() if error is None else f"results that could not be moved ({type(error).__name__}: {error})"


async def take_back(supervisor: str) -> None:
    """Whoever wanted a worker gone has changed his mind, if it is still there and nobody asks any more."""
    for worker, leaving in list(LEAVING.items()):
        if time.time() - leaving.asked < (FORGOTTEN if leaving.waits_for else RELEASED):
            continue
        del LEAVING[worker]
        info = (await node_infos(supervisor)).get(worker)
        if info is None or info["status"].name != "STOPPING" or who_is(info) != leaving.who:
            continue
        if info["update_time"] > leaving.asked + FORGOTTEN / 2:
            await set_status(supervisor, worker, "READY", leaving.who)


async def empty_alone(supervisor: str, worker: str, leaving: Leaving) -> str:
    """One at a time: what moves to a worker that is asked to leave a moment later must be seen there."""
    async with LOCKS.setdefault("moving", asyncio.Lock()):  # made while the loop runs: older Pythons bind it to one
        return await empty(supervisor, worker, leaving)


async def empty(supervisor: str, worker: str, leaving: Leaving) -> str:
    """One try to get it empty; what that waits for."""
    sessions = [info.session_id for info in await (await api("session.SessionAPI", supervisor)).get_sessions()]
    bands = [(worker, band) for band in (await node_infos(supervisor))[worker]["resource"]]
    for session in sessions:
        queue = mars("services.scheduling.supervisor.queueing").SubtaskQueueingActor.gen_uid(session)
        await (await oscar().actor_ref(queue, address=supervisor)).oars_rescue()
    if await busy(supervisor, bands):
        return "work that still runs on it"
    if not await stores(bands):
        return ""
    older = await older_tasks(supervisor, sessions, leaving.since + SLACK)
    if older:
        return f"{older} running task{'s' if older > 1 else ''} that may need what it holds"
    for session in sessions:
        chunks = await held_chunks(supervisor, session, bands)
        if chunks:
            leaving.moved = time.time()
            waits_for = await move(supervisor, session, chunks)
            if waits_for:
                return waits_for
    # Whoever learnt where the data were before they moved may still be reading them.
    if time.time() - leaving.moved < READ_SECONDS and await busy(supervisor, None):
        return "the last readers of what it held"
    return ""


async def busy(supervisor: str, bands: list[tuple[str, str]] | None) -> bool:
    """Whether anything runs on these bands; None: anywhere."""
    used = await (await resources(supervisor)).get_used_resources()
    return bool(used) if bands is None else any(band in used for band in bands)


async def stores(bands: list[tuple[str, str]]) -> bool:
    """Whether a worker holds anything at all, also what only a running task knows of."""
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
    count = 0
    for session in sessions:
        results = await (await api("task.TaskAPI", session, supervisor)).get_task_results()
        count += sum(task.status.name != "terminated" and (task.start_time or 0.0) <= moment for task in results)
    return count


async def held_chunks(supervisor: str, session: str, bands: list[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """(chunk, band) of all that a session has on these bands."""
    meta = await api("meta.MetaAPI", session, supervisor)
    return [(key, band) for band in bands for key in await meta.get_band_chunks(band)]


# moving


async def move(supervisor: str, session: str, chunks: list[tuple[str, tuple[str, str]]]) -> str:
    """Copies what nobody else has, then strikes the worker off the list of those who have it; what that waits for."""
    meta = await api("meta.MetaAPI", session, supervisor)
    ready = await (await api("cluster.ClusterAPI", supervisor)).get_all_bands()
    turns = {name: itertools.cycle([band for band in ready if band[1] == name]) for _, (_, name) in chunks}
    for key, band in chunks:
        known = await meta.get_chunk_meta(key, fields=["bands"], error="ignore")
        if known is None or band not in known["bands"]:
            continue  # freed meanwhile
        holder = next((other for other in known["bands"] if other in ready), None)
        if holder is None:
            holder = next(turns[band[1]], None)
            if holder is None:
                return "results that no other worker can take"
            await copy(session, key, band, holder)
            await meta.add_chunk_bands(key, [holder])
        await copy_description(session, key, band[0], holder[0])
        await meta.remove_chunk_bands(key, [band])
    return ""


async def copy(session: str, key: str, source: tuple[str, str], target: tuple[str, str]) -> None:
    storage = await api("storage.StorageAPI", session, target[0], target[1])
    await storage.fetch(key, band_name=source[1], remote_address=source[0])
    await storage.unpin(key, error="ignore")


async def copy_description(session: str, key: str, source: str, target: str) -> None:
    """Shape, types and so on, which only the worker that made a chunk knows; Mars asks the first that holds it."""
    described = await (await worker_meta(session, source)).get_meta(key, error="ignore")
    if described is not None:
        await (await worker_meta(session, target)).set_meta(key, rebuild(described))


async def worker_meta(session: str, worker: str) -> Any:
    manager = mars("services.meta.worker.core").WorkerMetaStoreManagerActor
    ref = await oscar().actor_ref(manager.default_uid(), address=worker)
    return await ref.new_session_meta_store(session)


def rebuild(described: dict[str, Any]) -> Any:
    """Mars takes its descriptions apart when it sends them; this puts one together again."""
    mars("services.meta.metas")
    pending = [mars("services.meta.core")._ChunkMeta]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if {part.name for part in fields(cls)} == described.keys():
            return cls(**described)
    raise RuntimeError(f"no description with {', '.join(described)} is known")


# what Mars itself should do


def forgive_the_dead() -> None:
    """A session can be ended, and what it holds be freed, though a worker that served it is gone."""
    store = mars("services.meta.supervisor.core").MetaStoreActor
    plain = store.__pre_destroy__

    async def __pre_destroy__(self: Any) -> None:
        with contextlib.suppress(OSError, oscar().ServerClosed, oscar().ActorNotExist):
            await plain(self)

    store.__pre_destroy__ = __pre_destroy__


def know_the_bands() -> None:
    """Work that is queued for a worker that leaves is given to others, but by one who may not have heard of it yet."""
    assigner = mars("services.scheduling.supervisor.assigner").AssignerActor
    plain = assigner.reassign_subtasks

    async def reassign_subtasks(self: Any, queued: Any) -> Any:
        self._update_bands(list(await self._cluster_api.get_all_bands()))
        return await plain(self, queued)

    assigner.reassign_subtasks = reassign_subtasks


def keep_queues_clean() -> None:
    """What was cancelled while it was queued makes Mars lose other work when it gives a queue to others. And work that
    comes to the queue in the very moment in which its worker is asked to leave would stay there for ever."""
    queueing = mars("services.scheduling.supervisor.queueing").SubtaskQueueingActor
    plain = queueing.balance_queued_subtasks

    async def balance_queued_subtasks(self: Any) -> None:
        for queue in self._band_queues.values():
            queue[:] = [item for item in queue if self._stid_to_items.get(item.subtask.subtask_id) is item]
            heapq.heapify(queue)
        await plain(self)

    async def oars_rescue(self: Any) -> None:
        ready = await self._cluster_api.get_all_bands()
        if any(queue for band, queue in self._band_queues.items() if band not in ready):
            await self.balance_queued_subtasks()
            await self._slots_ref.refresh_bands()

    queueing.balance_queued_subtasks = balance_queued_subtasks
    queueing.oars_rescue = oars_rescue


def heed_nodes_alone() -> None:
    """Mars takes a status that somebody else sets for a sign of life: a dead worker would seem to be back with it."""
    collector = mars("services.cluster.supervisor.node_info").NodeInfoCollectorActor
    plain = collector.update_node_info

    async def update_node_info(self: Any, address: str, role: Any, *told: Any, status: Any = None, **news: Any) -> None:
        known = self._node_infos.get(address)
        spoke = known.update_time if known is not None and not told and not news else None
        await plain(self, address, role, *told, status=status, **news)
        if spoke is not None:
            self._node_infos[address].update_time = spoke

    collector.update_node_info = update_node_info


for mend in (forgive_the_dead, know_the_bands, keep_queues_clean, heed_nodes_alone):
    mend()
web_handlers = {"/api/oars/nodes": Nodes, "/api/oars/leave": Leave}
