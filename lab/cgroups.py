"""The one cgroup below which every pod of the lab lives."""

import os
from pathlib import Path

from lab.wait import until

ROOT = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Make the lab's cgroup in every hierarchy: the kubelet wants it there."""
    cpus = os.cpu_count() or 1
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        # All pods together weigh as much as the machine has cores; one task's weight would starve them.
        for file, each in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (hierarchy / name / file).exists():
                (hierarchy / name / file).write_text(str(each * cpus))


def found(name: str) -> list[Path]:
    """Where it exists now."""
    return [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).is_dir()]


def remove(name: str) -> None:
    """Remove it and all below, once the last process in it is gone."""
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
    """All v1 hierarchies, or the single v2 one."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return sorted({child.resolve() for child in ROOT.iterdir() if (child / "cgroup.procs").exists()})
