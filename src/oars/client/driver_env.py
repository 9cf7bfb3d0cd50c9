"""The environment of a program on this machine that connects to its cluster with the engine's own API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oars.base.files import write_private
from oars.client.backend import Driver
from oars.engines.base import Access

PACKAGE_ROOT = Path(__file__).parents[2]
_PASSED_ON = {"OARS_STATE_DIR", "OARS_CACHE_DIR", "OARS_CGROUP"}


def without_cluster(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of a cluster that this process is a member or a driver of."""
    return {k: v for k, v in environ.items() if not k.startswith("OARS_") or k in _PASSED_ON}


def make_driver(
    python: str, access: Access, environ: Mapping[str, str], directory: Path, files: Mapping[str, str]
) -> Driver:
    """`directory`: where files for this cluster are kept on this machine. `files`: modules that Python must find."""
    own = {
        "OARS_ENGINE": access.engine,
        "OARS_ADDRESS": access.address,
        "OARS_NAME": access.name,
        "OARS_NAMESPACE": access.namespace,
        "OARS_DASHBOARD": access.dashboard,
    }
    env = without_cluster(environ)
    env["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", os.defpath)])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_python_path(directory, files)), env.get("PYTHONPATH")]))
    return Driver(python, {**env, **access.env, **own})


def _python_path(directory: Path, files: Mapping[str, str]) -> Path:
    """A directory that contains only these files and the package `oars`, so that a script can call `oars.connect()`."""
    path = directory / "python"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        write_private(path / name, text.encode())
    link = path / "oars"
    if not link.is_symlink():
        link.symlink_to(PACKAGE_ROOT / "oars")
    return path
