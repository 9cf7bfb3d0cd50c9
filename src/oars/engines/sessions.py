"""What the engines' sessions share. Runs in the user's Python."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from concurrent.futures import Executor

from oars import engines
from oars.base.errors import VersionMismatch
from oars.engines.base import Access
from oars.engines.executor import EngineExecutor

PYTHON = "Python"


def make_executor(access: Access, *, connect: bool) -> Executor:
    """An executor on a cluster. connect: raise errors of the connection now; otherwise the first call connects, and its
    future has the error."""
    made = engines.session(engines.get(access.engine)).executor(access)
    if connect and isinstance(made, EngineExecutor):
        made.connect()
    return made


def check_versions(access: Access, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Compare Python and the packages `here` with what the cluster has (`there`, by package name or PYTHON). Raises
    VersionMismatch if the first two numbers of one differ: functions and results are pickled, other versions cannot
    read them, and the errors that follow are hard to understand."""
    here = {**here, PYTHON: platform.python_version()}
    if any(here[name].split(".")[:2] != version.split(".")[:2] for name, version in there.items()):
        raise version_mismatch(access, here, there)


def version_mismatch(access: Access, here: Mapping[str, str], there: Mapping[str, str]) -> VersionMismatch:
    own, others = (", ".join(f"{name} {version}" for name, version in each.items()) for each in (here, there))
    return VersionMismatch(
        f"This program and the cluster {access.name!r} use different versions: {own} here, {others} in the cluster.",
        f"Install the cluster's versions here, use another image for it, or run `{access.command('shell')}`.",
    )
