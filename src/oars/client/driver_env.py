"""The environment of a program on this machine that connects to its cluster with the engine's own API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oars.client.backend import Driver
from oars.engines.base import Access

PACKAGE_ROOT = Path(__file__).parents[2]
_PASSED_ON = {"OARS_STATE_DIR", "OARS_CACHE_DIR"}


def make_driver(python: str, access: Access, environ: Mapping[str, str], directory: Path) -> Driver:
    """`directory`: where files for this cluster are kept on this machine."""
    own = {"OARS_ENGINE": access.engine, "OARS_ADDRESS": access.address, "OARS_NAME": access.name}
    own |= {"OARS_DASHBOARD": access.dashboard}
    env = {k: v for k, v in environ.items() if not k.startswith("OARS_") or k in _PASSED_ON}
    env["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", os.defpath)])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_python_path(directory)), env.get("PYTHONPATH")]))
    return Driver(python, {**env, **access.env, **own})


def _python_path(directory: Path) -> Path:
    """A directory that contains only the package `oars`, so that a script can call `oars.connect()`."""
    path = directory / "python"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = path / "oars"
    if not link.is_symlink():
        link.symlink_to(PACKAGE_ROOT / "oars")
    return path
