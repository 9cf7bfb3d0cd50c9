"""The lab's settings. Only this module reads the environment."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

# The path of a Unix socket has at most 107 characters; the longest name below the directory has about 20.
LONGEST_DIR = 80
# The lab mounts private file systems here and could not see its own directory.
COVERED = (Path("/run"), Path("/var/run"), Path("/var/log"), Path("/proc"))


@dataclass(frozen=True)
class Settings:
    """The lab's directory, the shared cache, and options for tests."""

    dir: Path
    cache: Path
    foreign_kubeconfig: str | None = None

    @property
    def id(self) -> str:
        """Short identifier for devices and cgroups, derived from the directory."""
        return hashlib.sha256(str(self.dir).encode()).hexdigest()[:8]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.dir / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Directory with one log per component."""
        return self.dir / "logs"


def load(chosen: str | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from `--dir`, if given, and the environment."""
    home = Path(env.get("HOME", "/root"))
    state = Path(env.get("XDG_STATE_HOME") or home / ".local/state")
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    place = Path(chosen or env.get("OARS_LAB_DIR") or state / "oars-lab").absolute()
    return Settings(
        dir=_checked(place),
        cache=cache / "oars-lab",
        foreign_kubeconfig=env.get("OARS_TEST_KUBECONFIG") or None,
    )


def _checked(place: Path) -> Path:
    if len(str(place)) > LONGEST_DIR:
        raise LabError(
            f"The path {place} is too long for Unix sockets: choose a directory of at most {LONGEST_DIR} characters."
        )
    if any(place.is_relative_to(covered) for covered in COVERED):
        raise LabError(f"{place} is not visible inside the lab: choose a directory outside /run, /proc and /var/log.")
    return place
