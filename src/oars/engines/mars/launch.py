"""Runs a Mars supervisor or worker. A script in Mars' environment (stdlib and Mars only), run directly or in a process
forked from a Python that has imported Mars:

    launch.py -- DISTRIBUTION ROLE IDENTITY DIRECTORY [--plugin FILE… | --joined HOST:PORT] ARGUMENTS OF MARS…

Differences from Mars' own command:
- Its sub-processes are forked from a copy of this process, made before Mars starts an event loop or a thread. So Mars
  is imported once, not once per sub-process.
- Shared memory, semaphores and sockets are named "oars-TAG-…" or are in DIRECTORY, so that they can be found and
  removed after the process was killed.
- Shared memory has a size. Without one Mars takes it for endless and never spills.
- SIGTERM ends it at once while it starts, also as the first process of a container, and later as cleanly as SIGINT. A
  worker with OARS_HAND_OVER in its environment, as pods have it, first asks the supervisor to move what it holds.
- A worker waits for its supervisor. pymars never finds one that starts later.
- A worker exits when its supervisor does. Mars' own would wait forever and never find the next supervisor.
- HOST:PORT accepts connections once the worker has joined. The worker's own ports are open long before.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import http.client
import importlib
import importlib.util
import json
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
import time
import urllib.parse
from types import ModuleType
from typing import Any

CONNECT_SECONDS = 10.0
HAND_OVER_SECONDS = 3600.0  # more than any grace period
HAND_OVER_PAUSE = 0.5
MAX_SILENT = 3  # requests in a row
SOCKET_NAME_LENGTH = 50  # what Mars and multiprocessing append to a directory; a socket path has at most 107
LIBRARIES = ("tensor", "dataframe", "learn", "remote")
QUOTA_SHARE = 0.95  # of the size of a storage backend, which Mars uses
KEEP_ALIVE: list[Any] = []  # must not be garbage-collected
PARTS = {
    "xorbits": {"mars": "xorbits._mars", "oscar": "xoscar", "pool": "xoscar.backends.indigen.pool"},
    "pymars": {"mars": "mars", "oscar": "mars.oscar", "pool": "mars.oscar.backends.mars.pool"},
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    distribution, role, identity, directory, *arguments = sys.argv[sys.argv.index("--") + 1 :]
    sys.argv = [f"{distribution}-{role}", identity, *arguments]  # Mars reports it to the supervisor
    parts = PARTS[distribution]
    add_driver_modules()
    for name in (f"deploy.oscar.{role}", *LIBRARIES):
        part(parts["mars"], name)  # import before any fork
    joined = ""
    while arguments[0] == "--plugin":
        load_plugin(arguments[1])
        arguments = arguments[2:]
    if arguments[0] == "--joined":
        joined, arguments = arguments[1], arguments[2:]
    name_resources(parts, f"oars-{os.environ.get('OARS_TAG') or os.getpid()}", short_path(directory))
    apply_totals(part(parts["mars"], "resource"))
    prepare_spilling(part(parts["mars"], "storage.shared_memory").SharedMemoryStorage)
    wrap_sub_pools(importlib.import_module(parts["pool"]), parts)  # noqa: TID251
    fork_server(short_path(directory))
    reset_after_fork(parts)
    if role == "supervisor":
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    deploy = part(parts["mars"], f"deploy.oscar.{role}")
    command = deploy.SupervisorCommandRunner() if role == "supervisor" else worker_command(deploy, parts, joined)
    try:
        command(arguments)
    finally:
        atexit._run_exitfuncs()  # a forked process does not run them


def add_driver_modules() -> None:
    """Let programs that tasks start find the modules of drivers, which send the cluster's token."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "driver")
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if os.path.isdir(folder) and folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, *known]))


def part(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")  # noqa: TID251 (a standalone script)


def short_path(directory: str) -> str:
    """A path of the directory that is short enough for sockets in it."""
    if len(directory) + SOCKET_NAME_LENGTH <= 107:
        return directory
    if not hasattr(short_path, "handle"):
        short_path.handle = os.open(directory, os.O_RDONLY)  # type: ignore[attr-defined]
    return f"/proc/{os.getpid()}/fd/{short_path.handle}"  # type: ignore[attr-defined]


def load_plugin(path: str) -> None:
    """Import a file as a module that the web server can find by name: head_plugin.py as oars_head_plugin."""
    name = f"oars_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def name_resources(parts: dict[str, str], tag: str, directory: str) -> None:
    """Give semaphores, sockets and shared memory names by which they can be found."""
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
    """Set what Mars reads from the environment when it is imported, which may have been before the fork."""
    if "MARS_CPU_TOTAL" in os.environ:
        resource._cpu_total = math.ceil(float(os.environ["MARS_CPU_TOTAL"]))
    if "MARS_MEMORY_TOTAL" in os.environ:
        resource._mem_total = int(os.environ["MARS_MEMORY_TOTAL"])


def prepare_spilling(storage: Any) -> None:
    """Give shared memory a size, and use a directory of our own in each spill directory: Mars deletes it at the end."""
    if size := os.environ.get("XORBITS_CACHE_MEM_SIZE"):
        storage.size = property(lambda _: int(size) / QUOTA_SHARE)
    for name in ("MARS_SPILL_DIRS", "XORBITS_SPILL_DIRS"):
        if paths := os.environ.get(name):
            os.environ[name] = ":".join(os.path.join(path, "mars") for path in paths.split(":"))


def wrap_sub_pools(pool: Any, parts: dict[str, str]) -> None:
    """Reset the state of sub-processes after the fork."""
    original = pool.MainActorPool._start_sub_pool.__func__

    @functools.wraps(original)
    def start(cls: type, *arguments: Any) -> Any:
        reset_after_fork(parts)
        return original(cls, *arguments)

    pool.MainActorPool._start_sub_pool = classmethod(start)


def reset_after_fork(parts: dict[str, str]) -> None:
    """A forked process must not repeat its parent's random numbers, nor use threads that it does not have."""
    part(parts["mars"], "utils").reset_id_random_seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    caller = getattr(part(parts["oscar"], "backends.core"), "ActorCaller", None)
    if caller is not None and hasattr(caller, "_close_thread") and not caller._close_thread.is_alive():
        # The parent's loop must be neither used nor freed: its file descriptors may be reused in this process.
        KEEP_ALIVE.append(caller._close_loop)
        atexit.unregister(caller._close_loop.call_soon_threadsafe)
        caller._close_loop = asyncio.new_event_loop()
        caller._close_thread = threading.Thread(target=caller._close_loop.run_forever, daemon=True)
        caller._close_thread.start()


def fork_server(directory: str) -> None:
    """Start multiprocessing's fork server as a fork of this process, in which Mars is imported.

    Mars replaces a dead sub-process with "spawn"; this makes it a fork from the same server."""
    start_tracker()
    server: Any = multiprocessing.forkserver._forkserver
    # A restarted container finds files of the previous one, which had the same process id.
    address = os.path.join(directory, f"fork-{os.getpid()}-{secrets.token_hex(3)}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    os.chmod(address, 0o600)
    listener.listen()
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        try:
            multiprocessing.forkserver.main(listener.detach(), alive, [])
        finally:
            os._exit(0)
    os.close(alive)
    listener.close()
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, held, pid
    contexts = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = contexts["forkserver"]


def start_tracker() -> None:
    """Start the process that removes shared memory when this one is gone, without its warnings about leaks."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    multiprocessing.resource_tracker.ensure_running()
    del os.environ["PYTHONWARNINGS"]
    if before is not None:
        os.environ["PYTHONWARNINGS"] = before


def worker_command(deploy: Any, parts: dict[str, str], joined: str) -> Any:
    class Worker(deploy.WorkerCommandRunner):  # type: ignore[misc]
        async def start_services(self) -> Any:
            await wait_for_supervisor(parts, self.args.supervisors)
            signal.signal(signal.SIGTERM, lambda *_: end_worker(self.args.endpoint))
            threading.Thread(target=exit_with_supervisor, args=(self.args.supervisors,), daemon=True).start()
            services = await super().start_services()
            host, _, port = joined.rpartition(":")  # accepts connections now that the worker has joined
            KEEP_ALIVE.append(await asyncio.start_server(lambda _, writer: writer.close(), host, int(port)))
            return services

    return Worker()


def end_worker(address: str) -> None:
    if os.environ.get("OARS_HAND_OVER"):
        end_drained(address)
    else:
        signal.raise_signal(signal.SIGINT)


def end_drained(worker: str) -> None:
    """In a thread: this one runs the worker, whose data is to be read."""

    def end() -> None:
        try:
            hand_over(worker)
        finally:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=end, daemon=True).start()


def hand_over(worker: str) -> None:
    """Repeat the request of head_plugin.py until the worker is drained, or the supervisor does not answer. What no
    other worker can take now may fit on its successor."""
    silent = 0
    while silent < MAX_SILENT:
        try:
            if request_drain(worker) != "refused":
                return
            silent = 0
        except (OSError, ValueError, http.client.HTTPException) as error:
            sys.stderr.write(f"The supervisor does not take over the data of this worker: {error}\n")
            silent += 1
        time.sleep(HAND_OVER_PAUSE)


def request_drain(worker: str) -> str:
    """The outcome so far; empty: the supervisor does not know the worker."""
    with open(os.environ["OARS_TOKEN_FILE"]) as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    body = json.dumps({"workers": [worker], "seconds": HAND_OVER_SECONDS, "force": False})
    where = urllib.parse.urlsplit(os.environ["OARS_MARS_ADDRESS"])
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=CONNECT_SECONDS)
    try:
        connection.request("POST", "/api/oars/drain", body, headers)
        return str(json.loads(connection.getresponse().read()).get(worker, {}).get("outcome", ""))
    finally:
        connection.close()


def exit_with_supervisor(address: str) -> None:
    """Hold an idle connection to the supervisor, and exit when it breaks. TCP keepalive detects a lost machine."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        try:
            while connection.recv(4096):
                pass
        except OSError:
            pass  # a reset or a timeout ends the connection too
    sys.stderr.write("The supervisor is gone. This worker exits: it cannot join another supervisor.\n")
    sys.stderr.flush()
    os._exit(1)


async def wait_for_supervisor(parts: dict[str, str], address: str) -> None:
    """Wait until the supervisor is ready. The control plane decides how long that may take."""
    oscar = importlib.import_module(parts["oscar"])  # noqa: TID251
    collector = part(parts["mars"], "services.cluster.supervisor.node_info").NodeInfoCollectorActor
    role = part(parts["mars"], "services.core").NodeRole.SUPERVISOR
    while True:
        try:
            ref = await oscar.actor_ref(collector.default_uid(), address=address)
            if await ref.get_nodes_info(role=role):
                return
        except (OSError, EOFError, oscar.ActorNotExist, oscar.ServerClosed):
            pass  # not up yet
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
