"""What goes both ways between us and a pod: commands, ports and files. WebSocket only; SPDY is not needed."""

from __future__ import annotations

from oars.kube.copying import copy_from, copy_to
from oars.kube.execs import Completed, ExecSession, NoSuchCommand, execute, run
from oars.kube.forwarder import Forwarder
from oars.kube.ports import PortClosed, PortWriter, open_port

__all__ = [
    "Completed",
    "ExecSession",
    "Forwarder",
    "NoSuchCommand",
    "PortClosed",
    "PortWriter",
    "copy_from",
    "copy_to",
    "execute",
    "open_port",
    "run",
]
