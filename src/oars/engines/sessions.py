"""What the engines' session and executor modules share. Runs in the user's Python."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from oars.base.errors import VersionMismatch

PYTHON = "Python"
AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"  # as the executors of the standard library


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of the exception that a future raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set the result of a future, unless it was cancelled meanwhile."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def check_versions(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Compare Python and the packages `here` with what the cluster has (`there`, by package name or PYTHON). Raises
    VersionMismatch if the first two numbers of one differ: functions and results are pickled, other versions cannot
    read them, and the errors that follow are hard to understand."""
    here = {**here, PYTHON: platform.python_version()}
    if any(here[name].split(".")[:2] != version.split(".")[:2] for name, version in there.items()):
        raise version_mismatch(cluster, here, there)


def version_mismatch(cluster: str, here: Mapping[str, str], there: Mapping[str, str]) -> VersionMismatch:
    own, others = (", ".join(f"{name} {version}" for name, version in each.items()) for each in (here, there))
    return VersionMismatch(
        f"This program and the cluster {cluster!r} use different versions: {own} here, {others} in the cluster.",
        f"Install the cluster's versions here, use another image for it, or run `oars shell {cluster}`.",
    )
