"""The cage: one network, mount and PID namespace that contains the whole lab.

Everything that the lab runs, from etcd to the last container, is a descendant of the cage's process 1. When that
process ends, by `down` or by a crash, the kernel kills all others and removes every mount, device, route and nftables
rule in the cage. Nothing is left behind, labs do not interfere with each other, and no port of the machine is used.

It is a program of its own because the fork that enters the namespaces must not happen in the caller:
    cage.py make VARLOG          prints the pid of the new cage's process 1
    cage.py enter PID LOG CMD..  starts CMD inside and prints its pid
It then waits for the line "keep" before the new process continues, so that a process runs only after its pid has been
recorded. If the caller dies first, the new process ends too.
It runs isolated (`python -I`): standard library only, no imports from the lab.
"""

# ruff: noqa: T201 - it prints pids for its caller

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
    """Create a cage; return the pid of its process 1 outside the cage."""
    _call("unshare", NEWNS | NEWPID | NEWNET)
    return _forked(lambda: _furnish(varlog), _reap_forever)


def enter(init: int, log: str, argv: list[str]) -> int:
    """Start a command inside the cage; return its pid outside the cage."""
    spaces = [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid", "mnt")]
    for space in spaces:
        _call("setns", space, 0)
        os.close(space)
    return _forked(lambda: _redirect(log), lambda: os.execvp(argv[0], argv))


def _forked(prepare: Callable[[], None], run: Callable[[], None]) -> int:
    """Fork a child that prepares itself, waits for the line "keep", and runs. The child never returns."""
    ready, tell_ready = os.pipe()
    keep, tell_keep = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell_ready)
        if os.read(ready, 1) != b"+":
            raise SystemExit("the process could not be started: see the message above")
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
    except BaseException:  # noqa: BLE001 - the child must print the error and never continue as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


def _furnish(varlog: str) -> None:
    """Mount a private /proc, /run and /var/log."""
    _mount(None, "/", None, REC | PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/run", "tmpfs")
    _mount(varlog, "/var/log", None, BIND)
    # Shared, as on an ordinary node: volumes that the kubelet mounts must appear in running containers.
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
    """Reap orphaned processes, as process 1 must; every container's shim is one."""
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
