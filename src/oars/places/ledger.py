"""The ledger: what was started, written before it is started, so that whoever comes later can adopt it or clean up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from oars.model import Failure, LoopState, MemberId, Retiring, Role


@dataclass(frozen=True)
class Entry:
    """One member. pid None: it is about to be started, or could not be."""

    id: MemberId
    role: Role
    group: str
    incarnation: int = 0
    head: str = ""
    started: float = 0.0
    ports: Mapping[str, int] = field(default_factory=dict)
    pid: int | None = None
    start: int = 0
    boot: str = ""
    exit_reason: str = ""
    # What to sweep when it is gone; kept here because the spec may have changed by then.
    signal: str = "TERM"
    grace: float = 10.0
    litter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """The whole ledger of a cluster."""

    entries: Mapping[MemberId, Entry] = field(default_factory=dict)
    notes: LoopState = field(default_factory=LoopState)
    incarnations: int = 0  # how many starts there have been

    def with_entry(self, entry: Entry) -> Ledger:
        entries = {**self.entries, entry.id: entry}
        return replace(self, entries=entries, incarnations=max(self.incarnations, entry.incarnation))

    def without(self, member: MemberId) -> Ledger:
        return replace(self, entries={m: e for m, e in self.entries.items() if m != member})


def read_ledger(path: Path) -> Ledger:
    """An absent ledger is an empty one."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return Ledger()
    entries = [_entry(item) for item in data["entries"]]
    return Ledger({entry.id: entry for entry in entries}, _notes(data["notes"]), data["incarnations"])


def write_ledger(path: Path, book: Ledger) -> None:
    entries = [asdict(entry) for entry in book.entries.values()]
    write_json(path, {"entries": entries, "notes": asdict(book.notes), "incarnations": book.incarnations})


def write_json(path: Path, data: object) -> None:
    """Readers see the old file or the new one, never half of one; only the owner may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(data, stream)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock; it goes with the process, however that ends."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(**{**data, "id": MemberId(data["id"]), "role": Role(data["role"]), "litter": tuple(data["litter"])})


def _notes(data: dict[str, Any]) -> LoopState:
    return LoopState(
        retiring={MemberId(m): Retiring(**r) for m, r in data["retiring"].items()},
        failures={MemberId(m): Failure(**{**f, "tail": tuple(f["tail"])}) for m, f in data["failures"].items()},
    )
