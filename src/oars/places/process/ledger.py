"""The ledger: records members before they are started, so that a later loop can adopt them or clean up."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from oars.base import codec
from oars.base.errors import OarsError
from oars.base.files import write_private
from oars.model import LoopState, MemberId, Role


@dataclass(frozen=True)
class Entry:
    """One member. pid None: it has not been started yet, or the start failed."""

    id: MemberId
    role: Role
    group: str
    incarnation: int = 0
    head_epoch: int = 0
    started_at: float = 0.0
    ports: Mapping[str, int] = field(default_factory=dict)
    pid: int | None = None
    start: int = 0
    boot: str = ""
    exit_reason: str = ""
    exit_code: int | None = None
    exited_at: float = 0.0
    # What is needed to stop it. It is stored here because the spec may have changed by then.
    signal: str = "TERM"
    grace: float = 10.0
    litter: tuple[str, ...] = ()
    memory: int | None = None  # bytes that it may use; None: not limited
    cgroup: str = ""  # that limits its memory; empty: nothing does
    spill: tuple[str, ...] = ()  # directories for data that does not fit in memory, named by $(tag); removed with it


@dataclass(frozen=True)
class Ledger:
    """All members of a cluster, and the loop's state."""

    entries: Mapping[MemberId, Entry] = field(default_factory=dict)
    state: LoopState = field(default_factory=LoopState)
    incarnations: int = 0  # number of starts so far

    def with_entries(self, entries: Iterable[Entry]) -> Ledger:
        changed = {entry.id: entry for entry in entries}
        newest = max((entry.incarnation for entry in changed.values()), default=0)
        return replace(self, entries={**self.entries, **changed}, incarnations=max(self.incarnations, newest))

    def without(self, members: Iterable[MemberId]) -> Ledger:
        gone = set(members)
        return replace(self, entries={m: e for m, e in self.entries.items() if m not in gone})


def read_ledger(path: Path) -> Ledger:
    """The ledger; empty if there is no file. Raises OarsError if it is damaged: its members must not be started
    twice."""
    try:
        return codec.load(Ledger, json.loads(path.read_text()))
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        message = f"The ledger {path} is damaged: {error}."
        raise OarsError(message, f"Stop the cluster with `oars down {path.parent.name}` and start it again.") from error


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Not durable: no process that it lists survives a power cut."""
    write_json(path, codec.dump(ledger), durable=False)


def write_json(path: Path, data: object, *, durable: bool = True) -> None:
    """Write a private file atomically. Raises FileNotFoundError, and creates nothing, if its directory was removed."""
    path.parent.stat()
    write_private(path, json.dumps(data).encode(), durable=durable)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock. The kernel releases it when the process ends for any reason."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
