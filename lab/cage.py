"""The cage: one network, mount and process namespace that holds the whole lab.

Everything the lab runs (etcd to the last container) is a child of the cage's own process 1.
When that one process dies, by `down` or by a crash, the kernel ends all the others and takes
away every mount, device, route and nftables rule made inside. So nothing can be left behind,
two labs cannot meet, and no port of the machine is taken.

Run as a program, because namespaces are entered by a fork that must not be the caller's:
    cage.py make VARLOG          prints the pid of the new cage's process 1
    cage.py enter PID LOG CMD..  prints the pid of CMD, started inside
and waits for the line "keep" before the new process goes on: it runs only once its pid is
written down. If the caller dies first, so does the new process.
Standard library only, and no import of the lab: it runs isolated (`python -I`).
"""

# ruff: noqa: T201 - what it prints is its answer

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable

NEWNS, NEWPID, NEWNET = 0x00020000, 0x20000000, 0x40000000
REC, PRIVATE, SHARED, BIND = 0x4000, 1 << 18, 1 << 20, 0x1000


def make(varlog: str) -> int:
    """Start a cage; return its process 1 as seen from outside."""
    _call("unshare", NEWNS | NEWPID | NEWNET)
    return _forked(lambda: _furnish(varlog), _reap_forever)


def enter(init: int, log: str, argv: list[str]) -> int:
    """Start a command inside the cage; return its pid as seen from outside."""
    spaces = [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid", "mnt")]
    for space in spaces:
        _call("setns", space, 0)
        os.close(space)
    return _forked(lambda: _redirect(log), lambda: os.execvp(argv[0], argv))


def _forked(prepare: Callable[[], None], run: Callable[[], None]) -> int:
    """Fork a child that prepares itself, waits to be kept, and runs. It never returns."""
    ready, tell_ready = os.pipe()
    keep, tell_keep = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell_ready)
        if os.read(ready, 1) != b"+":
            raise SystemExit("could not be started: see the message above")
        print(pid, flush=True)
        if sys.stdin.readline() == "keep\n":
            os.write(tell_keep, b"+")
        return pid
    try:
        os.setsid()
        os.close(tell_keep)
        prepare()
        os.write(tell_ready, b"+")
        os.close(tell_ready)
        if os.read(keep, 1) == b"+":
            run()
    except BaseException:  # noqa: BLE001 - the child must say why and never run on as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


def _furnish(varlog: str) -> None:
    """Give the cage its own /proc, /run and /var/log, unseen from outside."""
    _mount(None, "/", None, REC | PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/run", "tmpfs")
    _mount(varlog, "/var/log", None, BIND)
    # As on an ordinary node: volumes mounted by the kubelet must reach running containers.
    _mount(None, "/", None, REC | SHARED)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.chdir("/")
    _redirect(os.devnull)


def _redirect(log: str) -> None:
    for number, path in enumerate((os.devnull, log, log)):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, number)
        os.close(handle)


def _reap_forever() -> None:
    """Be a good process 1: orphans (every container's shim is one) are ours to bury."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _mount(source: str | None, target: str, kind: str | None, flags: int = 0) -> None:
    text = [part.encode() if part else None for part in (source, target, kind)]
    _call("mount", *text, ctypes.c_ulong(flags), None)


def _call(name: str, *args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        enter(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
