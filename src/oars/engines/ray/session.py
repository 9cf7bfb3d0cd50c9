"""The user's part of Ray: the connected ray module, and an executor. Imports ray when its functions are called.

A process can be connected to one Ray cluster at a time, so clients and executors of a cluster share one Link."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from typing import Any

from oars.base.errors import UsageError
from oars.engines.base import Access
from oars.engines.executor import EngineExecutor
from oars.engines.ray.connection import RayConnection
from oars.engines.ray.link import Link

_lock = threading.Lock()
_link: Link | None = None


def connect(access: Access) -> Any:
    """The ray module, connected to this cluster."""
    return _acquire(access).ray


def disconnect(client: Any) -> None:
    """Release the client; the last one closes the connection."""
    _release(_link)


def executor(access: Access) -> Executor:
    def connect() -> RayConnection:
        link = _acquire(access)
        return RayConnection(link, lambda: _release(link))

    return EngineExecutor(connect, _dumps)


def _dumps(value: Any) -> bytes:
    """Ray's pickler also knows actors and references."""
    from ray import cloudpickle

    return bytes(cloudpickle.dumps(value))


def _acquire(access: Access) -> Link:
    global _link
    with _lock:
        if _link is not None and not _link.usable:
            _link.close()
            _link = None
        if _link is None:
            _link = Link(access)
        elif _link.address != access.address:
            raise UsageError(
                f"This process is connected to the Ray cluster {_link.access.name!r} already; Ray allows one.",
                "Close that connection first, or use another process.",
            )
        _link.users += 1
        return _link


def _release(link: Link | None) -> None:
    global _link
    with _lock:
        if link is None or link is not _link:
            return
        link.users -= 1
        if link.users <= 0:
            link.close()
            _link = None
