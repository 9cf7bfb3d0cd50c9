"""Identifies, watches and signals processes of this machine, and only those of Oars.

A process is identified by pid, start time and boot, because a pid may be reused. All processes of a cluster also carry
a random mark in their environment, which their children inherit. So processes that left their session are found, and no
others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oars.places.process.machine import Exit

MARK = "OARS_MARK"
MEMBER = "OARS_MEMBER"
TAG = "OARS_TAG"  # part of the names of what a process creates outside its directory (ClusterRecord.tag)
CLUSTER = "OARS_CLUSTER_DIR"  # directory of the cluster that the process belongs to
PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """Identity of a process: a pid may be reused, but not with the same start time and boot."""

    pid: int
    start: int  # clock ticks since boot
    boot: str

    def alive(self) -> bool:
        return self.boot == boot_id() and start_of(self.pid) == self.start


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    start = start_of(pid)
    return None if start is None else Identity(pid, start, boot_id())


def start_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def session_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain blanks and parentheses."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None


def environment_of(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty if we may not read it."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def all_pids() -> Iterator[int]:
    for entry in os.listdir(PROC):
        if entry.isdigit():
            yield int(entry)


@dataclass(frozen=True)
class Marked:
    """A process of a cluster: its identity, parent, session, and the member label from its environment."""

    identity: Identity
    parent: int
    session: int
    member: str


def marked(mark: str) -> list[Marked]:
    """All live processes that carry this cluster's mark."""
    found = []
    for pid in all_pids():
        environment = environment_of(pid)
        if environment.get(MARK) != mark:
            continue
        identity, parent, session = identify(pid), parent_of(pid), session_of(pid)
        if identity is not None and parent is not None and session is not None:
            found.append(Marked(identity, parent, session, environment.get(MEMBER, "")))
    return found


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone. Checks the identity after it opens the descriptor, so that a
    reused pid is never signalled."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if not identity.alive():
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def gone(identities: Iterable[Identity], seconds: float) -> bool:
    """Wait until all of them have ended; False after a timeout."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(_gone(identity) for identity in identities))
    except TimeoutError:
        return False
    return True


async def _gone(identity: Identity) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(identity.pid)
        try:
            if identity.alive():
                await _readable(descriptor)
        finally:
            os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


class ExitWatch:
    """Calls back when any of the watched processes ends. They need not be our children."""

    def __init__(self, callback: object) -> None:
        assert callable(callback)
        self._callback = callback
        self._descriptors: dict[Identity, int] = {}

    def watch(self, identity: Identity) -> None:
        if identity in self._descriptors:
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(identity.pid)
            self._descriptors[identity] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._ended, identity)

    def _ended(self, identity: Identity) -> None:
        self.forget(identity)
        self._callback()

    def forget(self, identity: Identity) -> None:
        descriptor = self._descriptors.pop(identity, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        for identity in list(self._descriptors):
            self.forget(identity)


def exit_from_status(status: int) -> Exit:
    """The Exit for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return Exit(reason, code)
