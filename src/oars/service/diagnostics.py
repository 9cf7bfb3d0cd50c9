"""This machine: checks of Python, engines, directories, memory, ports and clusters, and the settings. Read-only."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from oars import engines
from oars.base.errors import OarsError
from oars.base.settings import Settings
from oars.client.backend import capabilities
from oars.client.local import UNREADABLE, LocalBackend
from oars.envs import program, scan
from oars.places.local import cgroup
from oars.places.local.host import Residence
from oars.places.local.memory import physical_memory, usable_memory
from oars.places.local.process import CLUSTER, MARK, all_pids, environment_of, is_supported
from oars.places.local.store import ClusterDir
from oars.spec.cluster import ClusterSpec
from oars.spec.resources import show_memory
from oars.spec.status import Phase

GIB = 2**30
MIN_DISK = 5 * GIB  # the largest engine environment takes 2
MIN_SHM = GIB
MIN_MEMORY = 2 * GIB
MIN_FILES = 1024
INCOMPLETE_SECONDS = 60.0  # creating a cluster's directory takes milliseconds


@dataclass(frozen=True)
class Finding:
    """The result of one check. level: ok, warn or fail."""

    level: str
    check: str
    found: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Setting:
    """A setting in effect. source: the variable that sets it, or default."""

    name: str
    value: str
    source: str
    meaning: str


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """The findings of all checks."""
    backend = LocalBackend(Settings.from_environ(environ), environ)
    found: list[Finding] = []
    for check in (machine, clusters):
        try:
            found += check(backend)
        except OarsError as error:
            found.append(Finding("fail", "clusters", error.message, error.hint))
        except OSError as error:
            found.append(Finding("fail", "clusters", f"Cannot be examined: {error.strerror}: {error.filename}."))
    return found


def settings(environ: Mapping[str, str]) -> list[Setting]:
    """All settings of this installation."""
    now = Settings.from_environ(environ)
    debug, no_color = ("yes" if environ.get(variable) else "no" for variable in ("OARS_DEBUG", "NO_COLOR"))
    rows = (  # the variables that set the value, in order of precedence
        ("state_dir", str(now.state_dir), ("OARS_STATE_DIR", "XDG_STATE_HOME"), "clusters"),
        ("cache_dir", str(now.cache_dir), ("OARS_CACHE_DIR", "XDG_CACHE_HOME"), "environments"),
        ("cgroup", environ.get("OARS_CGROUP", "auto"), ("OARS_CGROUP",), "where the memory of workers is limited"),
        ("debug", debug, ("OARS_DEBUG",), "tracebacks of unexpected errors"),
        ("no_color", no_color, ("NO_COLOR",), "no colours"),
    )
    return [
        Setting(name, value, next(filter(environ.get, variables), "default"), f"{meaning}: {variables[0]}")
        for name, value, variables, meaning in rows
    ]


def machine(backend: LocalBackend) -> Iterator[Finding]:
    yield _python()
    yield _uv()
    yield _directory("state directory", backend.store.root, "OARS_STATE_DIR")
    yield _directory("cache directory", backend.settings.cache_dir, "OARS_CACHE_DIR")
    yield _disk(backend.settings.cache_dir)
    if is_supported():
        yield _shared_memory(Path("/dev/shm"))
        yield _memory(Path("/proc/meminfo"), usable_memory(backend.environ))
        yield _memory_limits(cgroup.delegation(backend.environ))
    yield Finding("ok", "processors", str(os.cpu_count() or 1))
    yield _ports()
    yield _files()
    for name in engines.names():
        yield _engine(backend, name)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if not is_supported():
        return Finding("fail", "python", found, "Local clusters need Linux with /proc; use Kubernetes.")
    return Finding("ok", "python", found)


def _uv() -> Finding:
    path = program.find_uv()
    if path is None:
        return Finding("warn", "uv", "Not found; environments for engines cannot be built.", "Run `pip install uv`.")
    return Finding("ok", "uv", path)


def _directory(check: str, path: Path, variable: str) -> Finding:
    """Test that the directory can be written, or created."""
    try:
        with tempfile.NamedTemporaryFile(dir=_nearest_existing(path), prefix=".oars-doctor-"):
            return Finding("ok", check, str(path))
    except OSError as error:
        found = f"{path} cannot be written: {error.strerror or error}."
        return Finding("fail", check, found, f"Make it writable, or set {variable} to another directory.")


def _nearest_existing(path: Path) -> Path:
    """The path, or the nearest existing directory above it."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk(path: Path) -> Finding:
    try:
        free = shutil.disk_usage(_nearest_existing(path)).free
    except OSError as error:
        return Finding("warn", "disk", f"Cannot be measured: {error.strerror}.")
    found = f"{show_memory(free)} free for environments"
    if free < MIN_DISK:
        return Finding("warn", "disk", f"{found}.", "Free some space, or set OARS_CACHE_DIR to another directory.")
    return Finding("ok", "disk", found)


def _shared_memory(path: Path) -> Finding:
    if not path.is_dir():
        hint = f"Mount a tmpfs there; {_users_of_shared_memory()} store objects in it."
        return Finding("warn", "shared memory", f"{path} is missing.", hint)
    usage = shutil.disk_usage(path)
    found = f"{path} has {show_memory(usage.free)} free of {show_memory(usage.total)}"
    if usage.free < MIN_SHM:
        hint = f"Enlarge it (in a container: --shm-size); {_users_of_shared_memory()} store objects in it."
        return Finding("warn", "shared memory", f"{found}.", hint)
    return Finding("ok", "shared memory", found)


def _users_of_shared_memory() -> str:
    names = [name for name in engines.BUILT_IN if engines.get(name).footprint.shared_memory]
    return " and ".join(name.capitalize() for name in names)


def _memory(path: Path, usable: int) -> Finding:
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    available = min(usable, int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024)
    found = f"{show_memory(available)} available of {show_memory(usable)}"
    if usable < physical_memory():
        found = f"{found}, the limit of this session; the machine has {show_memory(physical_memory())}"
    if available < MIN_MEMORY:
        return Finding("warn", "memory", f"{found}.", "Stop other programs, or use fewer and smaller workers.")
    return Finding("ok", "memory", found)


def _memory_limits(found: cgroup.Delegation) -> Finding:
    check = "memory limits"
    if found.path is not None:
        return Finding("ok", check, f"the kernel enforces those of workers, with cgroups in {found.path}")
    return Finding("warn", check, f"Not enforced on this machine: {found.problem}.", found.hint)


def memory_note(spec: ClusterSpec, environ: Mapping[str, str]) -> str:
    """A sentence if the spec limits the memory of workers, and nothing enforces it."""
    is_enforced = capabilities(spec.place).limits_memory or not any(group.memory for group in spec.workers)
    problem = "" if is_enforced else cgroup.delegation(environ).problem
    return f"The memory of its workers is not enforced: {problem} (`oars doctor`)." if problem else ""


def _ports() -> Finding:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            with socket.create_connection(server.getsockname(), timeout=2):
                return Finding("ok", "ports", "127.0.0.1 accepts connections")
    except OSError as error:
        return Finding("fail", "ports", f"127.0.0.1 does not work: {error}.", "Check the loopback interface.")


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "unlimited")
    if soft < MIN_FILES:
        return Finding("warn", "open files", f"At most {soft}.", "Run `ulimit -n 65536`.")
    return Finding("ok", "open files", f"at most {soft}")


def _engine(backend: LocalBackend, name: str) -> Finding:
    check = f"engine {name}"
    try:
        needs = engines.get(name).needs(ClusterSpec(engine=name))
    except OarsError as error:
        return Finding("fail", check, error.message, error.hint)
    installed = scan.installed(needs)
    other = scan.differences(needs) if installed is not None else ()
    if other:
        text = f"This Python has {', '.join(map(str, other))}; clusters use their own environment."
        return Finding("warn", check, text, "Install the supported version to use one Python for clients and clusters.")
    if installed is not None:
        return Finding("ok", check, f"{installed} in this Python")
    cached = [info.version for info in backend.environments.list() if info.engine == name]
    if cached:
        return Finding("ok", check, f"{cached[-1]} in a cached environment")
    return Finding("ok", check, "not installed; its environment is built at the first use")


def clusters(backend: LocalBackend) -> Iterator[Finding]:
    names = backend.store.names()
    unhealthy = [finding for name in names if (finding := _cluster(backend.store.cluster(name)))]
    yield from unhealthy
    if not unhealthy:
        yield Finding("ok", "clusters", f"{len(names)}, all with a keeper" if names else "none")
    for path in sorted(backend.store.root.glob("new-*")):
        if time.time() - path.stat().st_mtime > INCOMPLETE_SECONDS:
            yield Finding("warn", "leftovers", f"{path} is incomplete.", f"Remove it: `rm -r {path}`.")
    if is_supported():
        yield _orphans()


def _cluster(directory: ClusterDir) -> Finding | None:
    """None: nothing is wrong."""
    name, check = directory.name, f"cluster {directory.name}"
    try:
        record, report = directory.read(), directory.read_report()
    except UNREADABLE as error:
        return Finding("fail", check, f"Its record cannot be read: {error}.", f"Run `oars down {name}`.")
    match directory.residence(record):
        case Residence.ELSEWHERE:
            return None  # its own host examines it
        case Residence.ENDED:
            return Finding("warn", check, "It ended when the machine restarted.", f"Run `oars down {name}`.")
    if not directory.has_keeper:
        hint = f"Run `oars status {name}` to start a new one."
        return Finding("warn", check, "Its keeper is gone, so failed workers are not replaced.", hint)
    if report is not None and report.status.phase in (Phase.FAILED, Phase.DEGRADED):
        return Finding("warn", check, f"It is {report.status.phase}.", f"Run `oars why {name}`.")
    return None


def _orphans() -> Finding:
    """Processes of clusters whose directory is gone, of this state directory or another."""
    found = sorted(pid for pid in all_pids() if is_orphan(environment_of(pid)))
    if not found:
        return Finding("ok", "processes", "none without a cluster")
    pids = " ".join(map(str, found[:20]))
    text = f"{len(found)} of clusters that no longer exist."
    return Finding("warn", "processes", text, f"Inspect them with `ps {pids}`, then end them with `kill {pids}`.")


def is_orphan(environment: Mapping[str, str]) -> bool:
    """True if a process with this environment belongs to a cluster that no longer exists."""
    path = environment.get(CLUSTER)
    return MARK in environment and path is not None and not ClusterDir(Path(path)).exists
