"""Identifies, watches and signals processes of this machine, and only those of Oars.

A process is identified by pid, start time and boot, because a pid may be reused. All processes of a cluster also carry
a random mark in their environment, which their children inherit. So processes that left their session are found, and no
others are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from oars.places.process.machine import Exit

MARK = "OARS_MARK"
MEMBER = "OARS_MEMBER"
TAG = "OARS_TAG"  # part of the names of what a process creates outside its directory (ClusterRecord.tag)
CLUSTER = "OARS_CLUSTER_DIR"  # directory of the cluster that the process belongs to; the keeper has it too
PROC = Path("/proc")


def is_supported() -> bool:
    """True if this system has what the functions here need: Linux with /proc."""
    return hasattr(os, "pidfd_open") and (PROC / "self/stat").exists()


@dataclass(frozen=True)
class Identity:
    """Identity of a process: a pid may be reused, but not with the same start time and boot."""

    pid: int
    start: int  # clock ticks since boot
    boot: str

    def alive(self) -> bool:
        return self.boot == boot_id() and start_of(self.pid) == self.start


def boot_id() -> str:
    """Identifies this boot of this kernel; empty on other systems than Linux."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    start = start_of(pid)
    return None if start is None else Identity(pid, start, boot_id())


def start_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


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
    """A process of a cluster: its identity, parent, session, and the mark and member label from its environment."""

    identity: Identity
    parent: int
    session: int
    mark: str
    member: str


def marked(value: str, variable: str = MARK) -> list[Marked]:
    """All live processes that carry this cluster's mark, or this value in another variable."""
    found, boot = [], boot_id()
    for pid in all_pids():
        environment = environment_of(pid)
        fields = _stat(pid) if environment.get(variable) == value else None
        if fields is not None and fields[0] not in ("Z", "X"):
            identity = Identity(pid, int(fields[19]), boot)
            # A fork server pads the label, so that its children can write theirs in the same memory.
            label = environment.get(MEMBER, "").strip()
            found.append(Marked(identity, int(fields[1]), int(fields[3]), environment.get(MARK, ""), label))
    return found


def usage_of(pid: int) -> tuple[float, int]:
    """CPU seconds so far, and bytes of memory; memory that several processes share is divided among them."""
    fields = _stat(pid)
    if fields is None:
        return 0.0, 0
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
        sizes = (line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))
        return seconds, 1024 * int(next(sizes, "0"))
    except OSError:  # it has ended, or the kernel does not have this file
        return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


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


def wait_for_exit(pid: int, seconds: float) -> None:
    """Block until a process ends, and reap it if it is a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, seconds))
    finally:
        os.close(descriptor)
    has_ended(pid)


def has_ended(pid: int) -> bool:
    """True if a child has ended, which also reaps it, or if the process is not a child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


async def gone(identities: Collection[Identity], seconds: float) -> bool:
    """Wait until all of them have ended; False after a timeout."""
    ended = asyncio.Event()
    watch = ExitWatch(ended.set)
    try:
        async with asyncio.timeout(seconds):
            for identity in identities:
                watch.watch(identity)
            while any(identity.alive() for identity in identities):
                await ended.wait()
                ended.clear()
    except TimeoutError:
        return False
    finally:
        watch.close()
    return True


class ExitWatch:
    """Calls back when any of the watched processes ends. They need not be our children."""

    def __init__(self, callback: Callable[[], None]) -> None:
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
        self._forget(identity)
        self._callback()

    def _forget(self, identity: Identity) -> None:
        descriptor = self._descriptors.pop(identity)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for identity in list(self._descriptors):
            self._forget(identity)


def exit_from_status(status: int) -> Exit:
    """The Exit for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return Exit(f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}", code)


def signal_name(number: int) -> str:
    """The name of a signal, for people."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
