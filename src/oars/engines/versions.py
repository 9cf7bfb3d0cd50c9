"""Version checks between a client and its cluster. Functions and results are pickled; other versions of Python or of
the engine cannot read them, and the errors that follow are hard to understand."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from oars.base.errors import VersionMismatch

PYTHON = "Python"


def python() -> str:
    return platform.python_version()


def check(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Compare the versions in this process with those in the cluster, by package name or PYTHON. Raises VersionMismatch
    if the first two numbers of one differ."""
    if any(here[name].split(".")[:2] != version.split(".")[:2] for name, version in there.items()):
        raise mismatch(cluster, here, there)


def mismatch(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> VersionMismatch:
    return VersionMismatch(
        f"This program and the cluster {cluster!r} use different versions: "
        f"{_join(here)} here, {_join(there)} in the cluster.",
        f"Install the cluster's versions here, use another image for it, or run `oars shell {cluster}`.",
    )


def _join(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
