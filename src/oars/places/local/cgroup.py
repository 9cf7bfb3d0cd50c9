"""Memory limits of members by cgroups: the kernel kills a process of a member that uses more, and counts it.

Oars needs a cgroup in which it may create others. On systems with cgroups of version 2 it is one above our own: systemd
gives a user's services and scopes to the user. OARS_CGROUP names another one, of version 1 or 2; "off": no limits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from oars.base.log import get_logger, pairs

ENV = "OARS_CGROUP"
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
PREFIX = "oars-"
# By version: the file that has the limit, the one that counts kills.
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
EVENTS = {1: "memory.oom_control", 2: "memory.events"}
SWAP = "memory.swap.max"  # version 2: the limit is of memory and swap together

log = get_logger(__name__)


@dataclass(frozen=True)
class Delegation:
    """A cgroup in which Oars may create others, or why there is none."""

    path: Path | None
    version: int = 2
    problem: str = ""
    hint: str = ""


def delegation(environ: Mapping[str, str], proc: Path = PROC, cgroups: Path = CGROUPS) -> Delegation:
    given = environ.get(ENV, "")
    if given == "off":
        return Delegation(None, problem=f"{ENV} is off")
    if given:
        return _given(Path(given))
    own = next((line[3:] for line in _read(proc / "self/cgroup").splitlines() if line.startswith("0::")), None)
    if own is None or not (cgroups / "cgroup.controllers").exists():
        return Delegation(None, problem="this system does not use cgroups of version 2", hint=_ask_for("version 1"))
    group = PurePosixPath(own.lstrip("/"))
    for path in (cgroups / each for each in (group, *group.parents) if ".." not in each.parts):
        if _can_create(path):
            return Delegation(path)
    hint = "If systemd manages your session, start clusters from a shell in a scope: `systemd-run --user --scope bash`."
    return Delegation(None, problem="no cgroup is delegated to this session", hint=hint)


def _given(path: Path) -> Delegation:
    if (path / LIMIT[1]).exists() and os.access(path, os.W_OK):
        return Delegation(path, 1)
    if _can_create(path):
        return Delegation(path)
    return Delegation(None, problem=f"{ENV} is {path}, where Oars cannot limit memory", hint=_ask_for("version 1 or 2"))


def _ask_for(version: str) -> str:
    return f"Set {ENV} to a cgroup of {version} with the memory controller in which you may create others."


def _can_create(path: Path) -> bool:
    """Version 2: the limit of a child needs the controller in the parent; moving a process needs its cgroup.procs."""
    writable = all(os.access(each, os.W_OK) for each in (path, path / "cgroup.procs"))
    return writable and "memory" in _read(path / "cgroup.subtree_control").split()


def create(found: Delegation, tag: str, limit: int) -> str:
    """Create the cgroup of one start of a member. Returns its path; empty if there are no limits here."""
    if found.path is None:
        return ""
    path = found.path / f"{PREFIX}{tag}"
    try:
        path.mkdir(exist_ok=True)
        (path / LIMIT[found.version]).write_text(str(limit))
        if found.version == 2 and (path / SWAP).exists():
            (path / SWAP).write_text("0")
    except OSError as error:
        log.warning(pairs("memory not limited", cgroup=path, error=error))
        return ""
    return str(path)


def kills(path: str) -> int:
    """How many processes of the cgroup the kernel killed because they used more than its limit."""
    text = "\n".join(_read(Path(path) / name) for name in EVENTS.values())
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def remove(path: str) -> None:
    """Remove a cgroup whose processes have ended."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning(pairs("cgroup not removed", path=path, error=error))


def remove_all(found: Delegation, tag: str) -> None:
    """Remove the cgroups whose tag begins so."""
    if found.path is not None:
        for path in found.path.glob(f"{PREFIX}{tag}*"):
            remove(str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
