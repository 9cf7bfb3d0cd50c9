"""The versions of a program and of the cluster it connects to. Functions and results travel between them in forms that
another version of Python, or of the engine, cannot read; what comes of it is hard to understand later."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from oars.base.errors import VersionMismatch

PYTHON = "Python"


def python() -> str:
    return platform.python_version()


def check(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Both by the name of a package, or PYTHON. Versions that differ after the second number get along."""
    if any(_family(here[name]) != _family(version) for name, version in there.items()):
        raise mismatch(cluster, here, there)


def _family(version: str) -> list[str]:
    return version.split(".")[:2]


def mismatch(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> VersionMismatch:
    return VersionMismatch(
        f"This program and the cluster {cluster!r} have different versions: "
        f"{_listed(here)} here, {_listed(there)} there.",
        f"Use the same here, give the cluster another image, or work with its own: oars shell {cluster}.",
    )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
