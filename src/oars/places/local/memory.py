"""How much memory the processes of a cluster may use on this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
FILES = {"v2": ("memory.max", "memory.high"), "v1": ("memory.limit_in_bytes",)}


def physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory(environ: Mapping[str, str]) -> int:
    """The memory of the machine, or less if this process has a limit: as a container, a batch job and a service have,
    whose processes are killed if they use more."""
    limits = (physical_memory(), *_cgroup_limits(PROC, CGROUPS), *_slurm_limits(environ), *_resource_limits())
    return min(limit for limit in limits if limit > 0)


def _cgroup_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """The limits of this process's cgroup and of those above it, in both versions of cgroups."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        bases: tuple[Path, ...]
        if not controllers:  # version 2, alone or beside version 1
            bases, files = (cgroups, cgroups / "unified"), FILES["v2"]
        elif "memory" in controllers.split(","):
            bases, files = (cgroups / "memory",), FILES["v1"]
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        # In a container the root may be the container's own cgroup, although `path` is that on the machine.
        for directory in (base / each for base in bases for each in (group, *group.parents) if ".." not in each.parts):
            for text in (_read(directory / file).strip() for file in files):
                if text.isdigit():  # otherwise it is "max", or there is no such file
                    yield int(text)


def _slurm_limits(environ: Mapping[str, str]) -> Iterator[int]:
    """Slurm may only watch the memory of a job, without a cgroup. It writes megabytes; 0 is all memory of the node."""
    try:
        if text := environ.get("SLURM_MEM_PER_NODE"):
            yield int(text) * 2**20
        elif (text := environ.get("SLURM_MEM_PER_CPU")) and (cpus := environ.get("SLURM_CPUS_ON_NODE")):
            yield int(text) * int(cpus) * 2**20
    except ValueError:
        return  # not written by Slurm


def _resource_limits() -> Iterator[int]:
    """Other batch systems limit the address space of each process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
