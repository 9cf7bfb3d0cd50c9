"""The cgroup that contains all pods of a lab."""

import os
from pathlib import Path

from lab.wait import until

ROOT = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Create the lab's cgroup in every hierarchy; the kubelet requires it."""
    cpus = os.cpu_count() or 1
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        # The default weight is that of a single process: all pods together would starve.
        for file, each in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (hierarchy / name / file).exists():
                (hierarchy / name / file).write_text(str(each * cpus))


def found(name: str) -> list[Path]:
    """Return the directories of the cgroup that exist."""
    return [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).is_dir()]


def remove(name: str) -> None:
    """Wait until the cgroup has no processes, then remove it and its children."""
    until(f"cgroup {name} is empty and removed", lambda: _removed(name), 90)


def _removed(name: str) -> bool:
    for top in found(name):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                return False
    return True


def _hierarchies() -> list[Path]:
    """Return all v1 hierarchies, or the single v2 hierarchy."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return sorted({child.resolve() for child in ROOT.iterdir() if (child / "cgroup.procs").exists()})
