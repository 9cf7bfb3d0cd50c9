"""The host and user that a local cluster belongs to.

Several machines or containers may share a home directory, and with it the records of clusters. Only the host and user
that created a cluster can see its processes, so nobody else changes it.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from oars.places.local.process import boot_id

MACHINE_ID = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
PID_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True)
class Host:
    """Where processes run, and as which user. Boot and process namespace say which processes can be seen. The name may
    change while a machine runs. Most containers have no machine id; clones of a disk image may have the same one."""

    name: str = ""
    machine: str = ""
    boot: str = ""
    pid_namespace: str = ""
    uid: int = 0

    def describe(self, here: Host) -> str:
        """The host, with the user if it is another one than here, as the owner of a cluster that is elsewhere."""
        name = self.name or "an unknown host"
        if self.uid != here.uid:
            return f"{_user(self.uid)}@{name}"
        return f"another host or container named {name}" if self.name == here.name else name


class Residence(StrEnum):
    """Where a cluster is, seen from this host and user."""

    HERE = "here"
    ENDED = "ended"  # it was here until the machine or container was restarted
    ELSEWHERE = "elsewhere"


def this_host() -> Host:
    return Host(socket.gethostname(), _machine_id(), boot_id(), _pid_namespace(), os.geteuid())


def booted_at() -> float:
    """When this machine was booted, as a wall-clock time."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def residence(host: Host, created: float, here: Host, booted: float, has_keeper: Callable[[], bool]) -> Residence:
    """Where a cluster is that was created on `host` at that time.

    The same boot is certainly this machine, whatever its name is now. Another boot is another machine, or an earlier
    life of this one: of that all but the boot stays the same. If only the name or only the machine id is the same (a
    laptop that was renamed, a node that gets a new id with every boot, clones of a disk image), then the cluster must
    also be older than the present boot. A keeper that holds its lock proves that the cluster runs elsewhere."""
    if host.uid != here.uid:
        return Residence.ELSEWHERE
    if (host.boot, host.pid_namespace) == (here.boot, here.pid_namespace):
        return Residence.HERE
    is_same_name = host.name == here.name
    is_same_machine = bool(host.machine) and host.machine == here.machine
    if host.boot == here.boot:  # another container of this machine, or this one before it was restarted
        is_same = is_same_name
    elif is_same_name and (is_same_machine or not (host.machine and here.machine)):
        is_same = True
    else:
        is_same = (is_same_name or is_same_machine) and created < booted
    return Residence.ENDED if is_same and not has_keeper() else Residence.ELSEWHERE


def _machine_id() -> str:
    for path in MACHINE_ID:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text and text != "uninitialized":
            return text
    return ""


def _pid_namespace() -> str:
    try:
        return os.readlink(PID_NAMESPACE)
    except OSError:
        return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
