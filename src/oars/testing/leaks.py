"""Nothing may be left behind: no process, no shared memory, no temporary file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from oars.places.local import process

SECONDS = 60.0
TEMPORARY = ("oars", "ray", "mars", "xorbits")
SHARED = ("ray", "mars")  # directories that a driver's engine makes once for the whole machine, whoever runs it


def assert_nothing_left(state: Path, before: set[str]) -> None:
    """`before` is what files() said at the start; `state` the state directory that was used."""
    left = _lasting(lambda: processes(state))
    assert not left, f"processes left behind: {left}"
    more = _lasting(lambda: sorted(files() - before))
    assert not more, f"files left behind: {more}"


def _lasting(look: Callable[[], list[str]]) -> list[str]:
    """What is still there when there was time enough to go."""
    deadline = time.monotonic() + SECONDS
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children: there is nothing to await but their absence
    return found


def processes(state: Path) -> list[str]:
    """Every process whose environment names the state directory: keepers, zygotes, members, their children."""
    found = []
    for pid in process.all_pids():
        environment = process.environment_of(pid)
        places = (environment.get("OARS_STATE_DIR", ""), environment.get(process.CLUSTER, ""))
        ours = any(place == str(state) or place.startswith(f"{state}/") for place in places)
        if pid != os.getpid() and ours and process.start_of(pid) is not None:
            found.append(f"{pid} {command_of(pid)}")
    return found


def command_of(pid: int) -> str:
    try:
        return (process.PROC / str(pid) / "cmdline").read_bytes()[:200].replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def files() -> set[str]:
    """Shared memory and temporary files of engines. Where others work on the same machine,
    OARS_TEST_SHARED_MACHINE=1 leaves this out: whose they are cannot be told from outside."""
    if os.environ.get("OARS_TEST_SHARED_MACHINE"):
        return set()
    temporary = {f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(TEMPORARY) and name not in SHARED}
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} | temporary


def listeners(pids: set[int]) -> set[str]:
    """Addresses on which these processes accept connections, as the kernel writes them (hex, little endian)."""
    sockets = {inode for pid in pids for inode in _socket_inodes(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (process.PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:  # 0A: LISTEN
                found.add(fields[1])
    return found


def _socket_inodes(pid: int) -> set[str]:
    descriptors = process.PROC / str(pid) / "fd"
    found = set()
    with contextlib.suppress(OSError):  # the process has just ended
        for name in os.listdir(descriptors):
            with contextlib.suppress(FileNotFoundError):  # this one has just been closed; the others count
                target = os.readlink(descriptors / name)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
