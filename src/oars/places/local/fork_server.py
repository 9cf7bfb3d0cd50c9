"""The fork server: imports an engine once and forks members from that process. It runs as a script in the engine's
environment: standard library only, no import of Oars.

It reads requests as JSON lines from the socket whose descriptor is its first argument, and replies there:

    {"op": "preload", "modules": [...]}                               → {"preloaded": […], "failed": {module: error}}
    {"op": "spawn", "id": n, "argv": […], "entry": "m:f", "env": {…}, "cwd": …, "log": path, "pipe": bool,
     "title": name, "cgroup": path}
                                                                      → {"spawned": n, "pid": …} or {…, "error": …}
    a child ends                                                      → {"exited": pid, "status": wait status}

With "pipe" a descriptor comes with the message and becomes the child's stdin and stdout. At end of file the keeper is
gone, and the fork server ends. Its children keep running: each leads its own session.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

PR_SET_NAME = 15
LABEL = "OARS_MEMBER"


def main() -> None:
    del sys.path[0]  # the directory of this script: the engine must not import its modules
    channel = socket.socket(fileno=int(sys.argv[1]))
    waker, woken = socket.socketpair()
    for end in (waker, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    descriptors: list[int] = []
    while True:
        readable, _, _ = select.select([channel, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            reap(channel)
        if channel in readable:
            data, received = receive(channel)
            descriptors += received
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                handle(channel, json.loads(line), descriptors)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Data and descriptors; socket.recv_fds is missing in Python 3.8, which pymars may run in."""
    size = array.array("i").itemsize
    data, ancillary, _, _ = channel.recvmsg(65536, socket.CMSG_SPACE(8 * size))
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % size])
    return data, list(received)


def handle(channel: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    if message["op"] == "preload":
        reply(channel, preload(message["modules"]))
        return
    pipe = descriptors.pop(0) if message["pipe"] else None
    try:
        result = {"spawned": message["id"], "pid": spawn(channel, message, pipe)}
    except OSError as error:
        result = {"spawned": message["id"], "error": str(error)}
    if pipe is not None:
        os.close(pipe)
    reply(channel, result)


def preload(modules: list[str]) -> dict[str, Any]:
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)  # noqa: TID251 (a script of its own, not part of the package's imports)
        except Exception as error:  # noqa: BLE001 (an import may raise anything; the reply reports it)
            failed[module] = f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, memory shared with children
    return {"preloaded": modules, "failed": failed}


def spawn(channel: socket.socket, message: dict[str, Any], pipe: int | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        set_up_child(channel, message, pipe)
        code = run(message["entry"])
    except BaseException:  # noqa: BLE001 (the last frame of a process: report, then end it)
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def set_up_child(channel: socket.socket, message: dict[str, Any], pipe: int | None) -> None:
    """Set up the process as a new exec would: session, signals, descriptors, environment, directory, argv."""
    label_child(message["env"].get(LABEL, ""))
    os.setsid()
    channel.close()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing if pipe is None else pipe, 0)
    os.dup2(log if pipe is None else pipe, 1)
    os.dup2(log, 2)
    os.closerange(3, 256)
    if message["cgroup"]:
        join_cgroup(message["cgroup"])
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["cwd"])
    sys.argv = list(message["argv"])
    sys.path[:0] = [entry for entry in message["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    ctypes.CDLL(None).prctl(PR_SET_NAME, message["title"].encode()[:15], 0, 0, 0)
    if "numpy" in sys.modules:  # children must not draw the same random numbers; Python reseeds its own generator
        sys.modules["numpy"].random.seed()


def join_cgroup(path: str) -> None:
    """Without the limit of its memory a process can still work."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "w") as members:
            members.write("0")  # this process
    except OSError as error:
        sys.stderr.write(f"The memory is not limited: cannot join {path}: {error}.\n")


def label_child(label: str) -> None:
    """Show the label in /proc/PID/environ, where Oars finds the processes of a member. A forked process has the memory
    from which the kernel reads it, with the blanks that the keeper put there for this."""
    width = len(os.environ.get(LABEL, ""))
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(LABEL.encode())
    if address and len(label) <= width:
        ctypes.memmove(address, label.encode().ljust(width), width)


def run(entry: str) -> int:
    module, _, function = entry.partition(":")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        if function:
            getattr(importlib.import_module(module), function)()  # noqa: TID251
        else:
            exec(compile(open(module).read(), module, "exec"), {"__name__": "__main__", "__file__": module})
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def reap(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        reply(channel, {"exited": pid, "status": status})


def reply(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
