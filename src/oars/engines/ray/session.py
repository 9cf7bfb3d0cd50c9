"""The user's half: Ray's own module, connected, and an executor. Imports ray when it is used.

A process has one Ray at a time, so it has one Link; clients and executors of the same cluster share it."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from typing import Any

from oars.base.errors import UsageError
from oars.engines.base import Access
from oars.engines.ray.executor import RayExecutor
from oars.engines.ray.link import Link

_lock = threading.Lock()
_link: Link | None = None


def connect(access: Access) -> Any:
    """The ray module, initialised for this cluster."""
    return _join(access).ray


def disconnect(client: Any) -> None:
    """Let go of what connect gave; the last one to do so closes the connection."""
    _leave(_link)


def executor(access: Access) -> Executor:
    link = _join(access)
    return RayExecutor(link, lambda: _leave(link))


def _join(access: Access) -> Link:
    global _link
    with _lock:
        if _link is not None and not _link.usable:
            _link.close()
            _link = None
        if _link is None:
            _link = Link(access)
        elif _link.address != access.address:
            raise UsageError(
                f"This process is connected to the Ray cluster {_link.name!r} already; Ray allows one at a time.",
                "Close that connection first, or use another process.",
            )
        _link.users += 1
        return _link


def _leave(link: Link | None) -> None:
    global _link
    with _lock:
        if link is None or link is not _link:
            return
        link.users -= 1
        if link.users <= 0:
            link.close()
            _link = None
