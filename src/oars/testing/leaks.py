"""Find leaked processes, shared memory and temporary files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from oars import engines
from oars.places.local import process

SECONDS = 60.0


def assert_nothing_left(state: Path, before: set[str]) -> None:
    """Raise if processes of state directory `state`, or files that are not in `before`, do not disappear in time.

    `before` is the result of files() at the start of the test. Files that other processes use do not count: once the
    test's own processes are gone, these belong to somebody else."""
    left = _lasting(lambda: processes(state))
    assert not left, f"processes left behind: {left}"
    more = _lasting(lambda: sorted(_unused(files() - before)))
    assert not more, f"files left behind: {more}"


def _lasting(look: Callable[[], list[str]]) -> list[str]:
    """Call `look` until it returns nothing or the deadline has passed; return its last result."""
    deadline = time.monotonic() + SECONDS
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children, so we cannot wait for them
    return found


def processes(state: Path) -> list[str]:
    """Return all processes whose environment names the state directory: keepers, members, their children."""
    found = []
    for pid in process.all_pids():
        environment = process.environment_of(pid)
        places = (environment.get("OARS_STATE_DIR", ""), environment.get(process.CLUSTER, ""))
        ours = any(place == str(state) or place.startswith(f"{state}/") for place in places)
        if pid != os.getpid() and ours and process.start_of(pid) is not None:
            found.append(f"{pid} {_state_of(pid)} {command_of(pid)}")
    return found


def _state_of(pid: int) -> str:
    """Return the lines of /proc/PID/status that help to explain why a process is still there."""
    try:
        lines = (process.PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return "(exited)"
    return ", ".join(
        " ".join(line.split()) for line in lines if line.startswith(("Name:", "State:", "PPid:", "SigBlk:"))
    )


def command_of(pid: int) -> str:
    try:
        return (process.PROC / str(pid) / "cmdline").read_bytes()[:200].replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(exited)"


def files() -> set[str]:
    """Return shared memory and temporary files that may belong to engines.

    Set OARS_TEST_SHARED_MACHINE=1 if others use the machine: the owner of a file is unknown, so nothing is returned."""
    if os.environ.get("OARS_TEST_SHARED_MACHINE"):
        return set()
    footprints = [engines.get(name).footprint for name in engines.names()]
    begins = ("oars", *(name for footprint in footprints for name in footprint.temporary))
    permanent = {name for footprint in footprints for name in footprint.permanent}
    temporary = {f"/tmp/{name}" for name in os.listdir("/tmp") if name.startswith(begins) and name not in permanent}
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} | temporary


def _unused(names: set[str]) -> set[str]:
    """Return the files that no other process uses and whose names contain no mark of a running cluster."""
    if not names:
        return names
    others = [pid for pid in process.all_pids() if pid != os.getpid()]
    marks = {mark[:8] for pid in others if (mark := process.environment_of(pid).get(process.MARK))}
    used = {path for pid in others for path in _paths_in_use(pid)}
    return {name for name in names if name not in used and not any(mark in name for mark in marks)}


def _paths_in_use(pid: int) -> set[str]:
    """Return the paths that a process has open or mapped."""
    try:
        maps = (process.PROC / str(pid) / "maps").read_text().splitlines()
    except OSError:  # the process has just exited
        return set()
    mapped = [line.split(maxsplit=5) for line in maps]
    return {fields[5] for fields in mapped if len(fields) == 6} | set(_open_files(pid))


def _open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process refer to."""
    found = []
    with contextlib.suppress(OSError):  # the process has just exited
        for entry in os.scandir(process.PROC / str(pid) / "fd"):
            with contextlib.suppress(FileNotFoundError):  # just closed
                found.append(os.readlink(entry.path))
    return found


def listeners(pids: set[int]) -> set[str]:
    """Return the addresses on which these processes listen, in the kernel's format (hex, little endian)."""
    sockets = {target for pid in pids for target in _open_files(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (process.PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # 0A: LISTEN
                found.add(fields[1])
    return found
