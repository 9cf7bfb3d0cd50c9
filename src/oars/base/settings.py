"""Settings from the environment. Entry points read them once and pass them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Directories for state and caches."""

    state_dir: Path
    cache_dir: Path
    home: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        home = Path(environ.get("HOME") or "/")
        state = environ.get("OARS_STATE_DIR") or Path(environ.get("XDG_STATE_HOME") or home / ".local/state", "oars")
        cache = environ.get("OARS_CACHE_DIR") or Path(environ.get("XDG_CACHE_HOME") or home / ".cache", "oars")
        return cls(state_dir=Path(state).absolute(), cache_dir=Path(cache).absolute(), home=home)
