"""What the surroundings say, read once at the front door and handed down. Nothing below reads os.environ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Where Oars keeps its state and its caches."""

    state_dir: Path
    cache_dir: Path
    home: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        home = Path(environ.get("HOME") or "/")
        state = environ.get("OARS_STATE_DIR") or _below(environ, "XDG_STATE_HOME", home / ".local/state")
        cache = environ.get("OARS_CACHE_DIR") or _below(environ, "XDG_CACHE_HOME", home / ".cache")
        return cls(state_dir=Path(state).absolute(), cache_dir=Path(cache).absolute(), home=home)


def _below(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    return Path(environ.get(variable) or default) / "oars"
