"""What `oars doctor` says of the machine: Python, engines, directories, memory, ports."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oars import engines
from oars.base.errors import OarsError
from oars.client.local_clusters import Kept
from oars.client.machine import total_memory
from oars.envs import scan
from oars.spec.cluster import ClusterSpec
from oars.spec.resources import show_memory

GIB = 2**30
LITTLE_DISK = 5 * GIB  # the largest engine environment takes 2
LITTLE_SHM = GIB
LITTLE_MEMORY = 2 * GIB
FEW_FILES = 1024


@dataclass(frozen=True)
class Finding:
    """One line: ok, warn or fail; what was found; what to do."""

    level: str
    check: str
    found: str = ""
    hint: str = ""


def examine(mine: Kept) -> Iterator[Finding]:
    yield _python()
    yield _uv()
    yield _directory("state directory", mine.store.root, "OARS_STATE_DIR")
    yield _directory("cache directory", mine.settings.cache_dir, "OARS_CACHE_DIR")
    yield _disk(mine.settings.cache_dir)
    yield _shared_memory(Path("/dev/shm"))
    yield _memory(Path("/proc/meminfo"))
    yield Finding("ok", "processors", str(os.cpu_count() or 1))
    yield _ports()
    yield _files()
    for name in engines.names():
        yield _engine(mine, name)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/stat").exists():
        return Finding("fail", "python", found, "The local place needs Linux with /proc.")
    return Finding("ok", "python", found)


def _uv() -> Finding:
    path = _find_uv()
    if path is None:
        return Finding("warn", "uv", "Not found; engines that this Python lacks cannot be had.", "`pip install uv`.")
    return Finding("ok", "uv", path)


def _find_uv() -> str | None:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


def _directory(check: str, path: Path, variable: str) -> Finding:
    """Writable, or could it be made?"""
    try:
        with tempfile.NamedTemporaryFile(dir=_existing(path), prefix=".oars-doctor-"):
            return Finding("ok", check, str(path))
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror or error}."
        return Finding("fail", check, found, f"Make it writable, or name another with {variable}.")


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there. A file in the way is an error to find."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk(path: Path) -> Finding:
    try:
        free = shutil.disk_usage(_existing(path)).free
    except OSError as error:
        return Finding("warn", "disk", f"Cannot be measured: {error.strerror}.")
    found = f"{show_memory(free)} free for environments"
    if free < LITTLE_DISK:
        return Finding("warn", "disk", f"{found}.", "Free some, or name another directory with OARS_CACHE_DIR.")
    return Finding("ok", "disk", found)


def _shared_memory(path: Path) -> Finding:
    if not path.is_dir():
        hint = "Mount a tmpfs there; Ray and Mars keep their objects in it."
        return Finding("warn", "shared memory", f"{path} is missing.", hint)
    usage = shutil.disk_usage(path)
    found = f"{path} has {show_memory(usage.free)} free of {show_memory(usage.total)}"
    if usage.free < LITTLE_SHM:
        hint = "Make it larger (in a container: --shm-size); Ray and Mars keep their objects there."
        return Finding("warn", "shared memory", f"{found}.", hint)
    return Finding("ok", "shared memory", found)


def _memory(path: Path) -> Finding:
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    available = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024
    found = f"{show_memory(available)} available of {show_memory(total_memory())}"
    if available < LITTLE_MEMORY:
        return Finding("warn", "memory", f"{found}.", "End other programs, or use fewer and smaller workers.")
    return Finding("ok", "memory", found)


def _ports() -> Finding:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with socket.create_connection(server.getsockname(), timeout=2):
                return Finding("ok", "ports", "127.0.0.1 can be listened on and reached")
    except OSError as error:
        return Finding("fail", "ports", f"127.0.0.1 does not work: {error}.", "Check the loopback interface.")


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    if not unlimited and soft < FEW_FILES:
        return Finding("warn", "open files", f"At most {soft}.", "Raise it with `ulimit -n 65536`.")
    return Finding("ok", "open files", "unlimited" if unlimited else f"at most {soft}")


def _engine(mine: Kept, name: str) -> Finding:
    check = f"engine {name}"
    try:
        needs = engines.get(name).needs(ClusterSpec(engine=name))
    except OarsError as error:
        return Finding("fail", check, error.message, error.hint)
    here = scan.installed(needs)
    if here is not None:
        return Finding("ok", check, f"{here} in this Python")
    cached = [info.version for info in mine.environments.list() if info.engine == name]
    if cached:
        return Finding("ok", check, f"{cached[-1]} in a cached environment")
    return Finding("ok", check, "not here yet; its environment is built at the first use")
