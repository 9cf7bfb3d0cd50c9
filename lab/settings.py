"""Where things are. The environment is read here and nowhere else."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

# A Unix socket's path may have 107 characters; the longest name below the directory has about 20.
LONGEST_DIR = 80
# These are covered by private mounts inside the lab, so a lab living there would not see itself.
COVERED = (Path("/run"), Path("/var/run"), Path("/var/log"), Path("/proc"))


@dataclass(frozen=True)
class Settings:
    """One lab's place on disk, the shared cache, and how tests should behave."""

    dir: Path
    cache: Path
    ci: bool = False
    foreign_kubeconfig: str | None = None

    @property
    def id(self) -> str:
        """A short name for this lab's devices and cgroups, the same for the same directory."""
        return hashlib.sha256(str(self.dir).encode()).hexdigest()[:8]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.dir / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One log per component."""
        return self.dir / "logs"


def load(chosen: str | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Settings from `--dir` (if given) and the environment."""
    home = Path(env.get("HOME", "/root"))
    state = Path(env.get("XDG_STATE_HOME") or home / ".local/state")
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    place = Path(chosen or env.get("OARS_LAB_DIR") or state / "oars-lab").absolute()
    return Settings(
        dir=_checked(place),
        cache=cache / "oars-lab",
        ci=bool(env.get("CI")),
        foreign_kubeconfig=env.get("OARS_TEST_KUBECONFIG") or None,
    )


def _checked(place: Path) -> Path:
    if len(str(place)) > LONGEST_DIR:
        raise LabError(f"{place} is too long for the sockets below it: choose one of at most {LONGEST_DIR} characters.")
    if any(place.is_relative_to(covered) for covered in COVERED):
        raise LabError(f"{place} is hidden inside the lab: choose a directory outside /run, /proc and /var/log.")
    return place
