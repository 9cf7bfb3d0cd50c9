"""Starts one Mars process, supervisor or worker, in the engine's environment: standard library and Mars only, nothing
of Oars. Run as a script, by itself or forked from a Python that has imported Mars already:

    launch.py -- DISTRIBUTION ROLE WHO DIRECTORY [--plugin FILE | --joined HOST:PORT] MARS' OWN ARGUMENTS…

What it adds to Mars' own command:
- its sub-processes are forked from a copy of this one, taken before any loop or thread of Mars runs: Mars is imported
  once, not once for each of them;
- everything it leaves outside itself (shared memory, semaphores, sockets) is named "oars-TAG-…" or lies in DIRECTORY,
  so that it can be found when the process was killed;
- SIGTERM ends it as cleanly as SIGINT does;
- a worker waits for its supervisor: pymars would never find one that comes later;
- a worker ends with its supervisor: Mars' own would wait for ever and never find the next one;
- whoever can connect to HOST:PORT knows that the worker has joined: its own ports are open long before.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import importlib.util
import math
import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.synchronize
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from types import ModuleType
from typing import Any

HEAD_PLUGIN = "oars_mars_inside"  # the name under which the supervisor's web server finds our handlers
CONNECT_SECONDS = 10.0
SOCKET_ROOM = 50  # what Mars and multiprocessing append to a directory to name a socket; the kernel allows 107 in all
LIBRARIES = ("tensor", "dataframe", "learn", "remote")
HELD: list[Any] = []  # what must not be freed
PARTS = {
    "xorbits": {"mars": "xorbits._mars", "oscar": "xoscar", "pool": "xoscar.backends.indigen.pool"},
    "pymars": {"mars": "mars", "oscar": "mars.oscar", "pool": "mars.oscar.backends.mars.pool"},
}


def main() -> None:
    distribution, role, who, directory, *arguments = sys.argv[sys.argv.index("--") + 1 :]
    sys.argv = [f"{distribution}-{role}", who, *arguments]  # Mars tells this to its supervisor: so we know who is who
    parts = PARTS[distribution]
    for name in (f"deploy.oscar.{role}", *LIBRARIES):
        part(parts["mars"], name)  # before anything is forked from here, unless we were forked from where it is loaded
    joined = ""
    if arguments[0] == "--plugin":
        install_handlers(arguments[1])
        arguments = arguments[2:]
    elif arguments[0] == "--joined":
        joined, arguments = arguments[1], arguments[2:]
    keep_together(parts, f"oars-{os.environ.get('OARS_TAG') or os.getpid()}", short(directory))
    apply_totals(part(parts["mars"], "resource"))
    wrap_sub_pools(importlib.import_module(parts["pool"]), parts)  # noqa: TID251
    fork_server(short(directory))
    awake(parts)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        runner(parts, role, joined)(arguments)
    finally:
        atexit._run_exitfuncs()  # whoever forked us will not


def part(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")  # noqa: TID251 (a script of its own, not part of the package)


def short(directory: str) -> str:
    """The same directory by a name that leaves room for sockets in it."""
    if len(directory) + SOCKET_ROOM <= 107:
        return directory
    if not hasattr(short, "handle"):
        short.handle = os.open(directory, os.O_RDONLY)  # type: ignore[attr-defined]
    return f"/proc/{os.getpid()}/fd/{short.handle}"  # type: ignore[attr-defined]


def install_handlers(path: str) -> None:
    """Makes a file a module that the web server can discover by name."""
    spec = importlib.util.spec_from_file_location(HEAD_PLUGIN, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[HEAD_PLUGIN] = module
    spec.loader.exec_module(module)


def keep_together(parts: dict[str, str], tag: str, directory: str) -> None:
    """What this process and its children make outside their memory is named so that it can be found again."""
    os.environ["TMPDIR"] = directory
    tempfile.tempdir = directory
    names: Any = multiprocessing.synchronize.SemLock
    names._make_name = staticmethod(lambda: f"/{tag}-{secrets.token_hex(6)}")
    sockets: Any = part(parts["oscar"], "backends.communication.socket")
    if hasattr(sockets, "TEMPDIR"):
        sockets.TEMPDIR = directory
    if hasattr(sockets, "XOSCAR_UNIX_SOCKET_DIR"):
        sockets.XOSCAR_UNIX_SOCKET_DIR = os.path.join(directory, "s")
    memory = part(parts["mars"], "storage.shared_memory").SharedMemoryStorage
    memory._generate_object_id = classmethod(lambda _: f"{tag}-{secrets.token_hex(12)}")


def apply_totals(resource: Any) -> None:
    """Mars reads these when it is imported, which was before we knew them."""
    if "MARS_CPU_TOTAL" in os.environ:
        resource._cpu_total = math.ceil(float(os.environ["MARS_CPU_TOTAL"]))
    if "MARS_MEMORY_TOTAL" in os.environ:
        resource._mem_total = int(os.environ["MARS_MEMORY_TOTAL"])


def wrap_sub_pools(pool: Any, parts: dict[str, str]) -> None:
    """Sub-processes begin with what a fresh import would have given them."""
    plain = pool.MainActorPool._start_sub_pool.__func__

    @functools.wraps(plain)
    def start(cls: type, *arguments: Any) -> Any:
        awake(parts)
        return plain(cls, *arguments)

    pool.MainActorPool._start_sub_pool = classmethod(start)


def awake(parts: dict[str, str]) -> None:
    """A forked process must not draw its parent's random numbers, nor rely on threads it does not have."""
    part(parts["mars"], "utils").reset_id_random_seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    caller = getattr(part(parts["oscar"], "backends.core"), "ActorCaller", None)
    if caller is not None and hasattr(caller, "_close_thread") and not caller._close_thread.is_alive():
        # The parent's loop must neither be used nor freed: its descriptors may be somebody else's in this process.
        HELD.append(caller._close_loop)
        atexit.unregister(caller._close_loop.call_soon_threadsafe)
        caller._close_loop = asyncio.new_event_loop()
        caller._close_thread = threading.Thread(target=caller._close_loop.run_forever, daemon=True)
        caller._close_thread.start()


def fork_server(directory: str) -> None:
    """multiprocessing's own fork server, but forked from here, where Mars is imported, instead of started afresh.

    A sub-process that has died is replaced by Mars with "spawn"; this makes that a fork from the same server."""
    start_tracker()
    server: Any = multiprocessing.forkserver._forkserver
    # A container that is started again finds the files of the one before, which had the same process id.
    address = os.path.join(directory, f"fork-{os.getpid()}-{secrets.token_hex(3)}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    os.chmod(address, 0o600)
    listener.listen()
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        serve_forks(listener.detach(), alive)
    os.close(alive)
    listener.close()
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, held, pid
    contexts = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = contexts["forkserver"]


def start_tracker() -> None:
    """The process that removes shared memory when we are gone. That there is some then is no news worth a warning."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    multiprocessing.resource_tracker.ensure_running()
    del os.environ["PYTHONWARNINGS"]
    if before is not None:
        os.environ["PYTHONWARNINGS"] = before


def serve_forks(listener: int, alive: int) -> None:
    try:
        multiprocessing.forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


def runner(parts: dict[str, str], role: str, joined: str) -> Any:
    deploy = part(parts["mars"], f"deploy.oscar.{role}")
    if role == "supervisor":
        return deploy.SupervisorCommandRunner()

    class Worker(deploy.WorkerCommandRunner):  # type: ignore[name-defined,misc]
        async def start_services(self) -> Any:
            await supervisor_ready(parts, self.args.supervisors)
            threading.Thread(target=end_with, args=(self.args.supervisors,), daemon=True).start()
            services = await super().start_services()
            await show(joined)
            return services

    return Worker()


async def show(address: str) -> None:
    """Accepts whoever comes, and says nothing."""
    host, _, port = address.rpartition(":")
    HELD.append(await asyncio.start_server(lambda _, writer: writer.close(), host, int(port)))


def end_with(address: str) -> None:
    """Hold a connection to the supervisor, on which nothing is ever said, and end when it breaks. The kernel asks from
    time to time whether the other side is there: a machine that vanishes does not say goodbye."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), CONNECT_SECONDS) as held:
        held.settimeout(None)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            held.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        try:
            while held.recv(4096):
                pass
        except OSError:
            pass  # reset, or no answer: gone all the same
    sys.stderr.write("The supervisor is gone; this worker ends, for there is no way back to another one.\n")
    sys.stderr.flush()
    os._exit(1)


async def supervisor_ready(parts: dict[str, str], address: str) -> None:
    """Returns when the supervisor counts itself ready. Whoever started us decides how long that may take."""
    oscar = importlib.import_module(parts["oscar"])  # noqa: TID251
    collector = part(parts["mars"], "services.cluster.supervisor.node_info").NodeInfoCollectorActor
    role = part(parts["mars"], "services.core").NodeRole.SUPERVISOR
    while True:
        try:
            ref = await oscar.actor_ref(collector.default_uid(), address=address)
            if await ref.get_nodes_info(role=role):
                return
        except (OSError, EOFError, oscar.ActorNotExist, oscar.ServerClosed):
            pass  # not there yet
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
