"""Storage of local clusters: one directory each, readable by the owner only. It has the role of an API server: clients
write the intent (cluster.json), the keeper reconciles it and writes ledger.json and report.json."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oars.base import codec
from oars.base.errors import Denied, NameInUse, NotFound, OarsError, Replaced
from oars.model import Desired
from oars.places.intent import Intent
from oars.places.local.process import Identity
from oars.places.process.ledger import locked, read_ledger, write_json
from oars.places.report import Report
from oars.spec.status import Phase, Status


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster as clients write it: the intent, and the environment in which its members start."""

    name: str
    intent: Intent
    spec_desired: Desired  # built from the intent's spec by the client, as the keeper has no pydantic
    python: str
    mark: str  # in the environment of all its processes
    created: float
    owner: Identity | None = None  # a tied cluster ends when this process does
    boot: str = ""  # of the machine; a cluster does not survive a reboot
    cwd: str = "/"  # the user's directory: tasks find the same files and modules there
    import_path: tuple[str, ...] = ()

    @property
    def desired(self) -> Desired:
        return self.intent.applied_to(self.spec_desired)

    def tag(self, start: object) -> str:
        """Part of the names of what one start of a member leaves outside its directory. Short, because socket paths are
        limited."""
        return f"{self.mark[:8]}-{start}"


class ClusterDir:
    """One cluster's directory. With a mark, only the cluster with that mark; without, any cluster of that name."""

    def __init__(self, path: Path, mark: str = "") -> None:
        self._mark = mark
        self.path = path
        self.name = path.name
        self.record_file = path / "cluster.json"
        self.ledger_file = path / "ledger.json"
        self.report_file = path / "report.json"
        self.keeper_lock = path / "keeper.lock"
        self.keeper_log = path / "keeper.log"
        self.socket = path / "keeper.sock"
        self.secrets = path / "secrets"
        self.logs = path / "logs"
        self.members = path / "members"

    @property
    def exists(self) -> bool:
        if not self._mark:
            return self.record_file.exists()
        try:
            self.read()
        except NotFound:
            return False
        return True

    @property
    def has_keeper(self) -> bool:
        """True if a keeper runs: it holds its lock until it ends."""
        try:
            descriptor = os.open(self.keeper_lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read(self) -> ClusterRecord:
        """The cluster's record. Raises NotFound, or Replaced if another cluster has the name."""
        try:
            record = codec.load(ClusterRecord, json.loads(self.record_file.read_text()))
        except FileNotFoundError:
            raise NotFound(f"There is no cluster {self.name!r}.", "`oars ls` lists the clusters.") from None
        except ValueError as error:
            raise OarsError(
                f"The record of cluster {self.name!r} cannot be read: {error}.",
                f"Remove {self.path} once nothing of the cluster runs any more (`oars doctor` tells).",
            ) from error
        if self._mark not in ("", record.mark):
            raise Replaced(self.name)
        return record

    def change(self, desired: Desired | None = None, **changes: Any) -> ClusterRecord:
        """Change the intent, and with a new spec the desired state. Holds a lock, so that concurrent commands do not
        lose changes."""
        with locked(self.path / "intent.lock"):
            before = self.read()
            record = replace(
                before, intent=before.intent.changed(**changes), spec_desired=desired or before.spec_desired
            )
            write_json(self.record_file, codec.dump(record))
        return record

    def read_report(self) -> Report | None:
        try:
            return codec.load(Report, json.loads(self.report_file.read_text()))
        except FileNotFoundError:
            return None

    def write_report(self, report: Report) -> None:
        write_json(self.report_file, codec.dump(report))

    @contextmanager
    def claim_ports(self) -> Iterator[set[int]]:
        """Hold the lock on ports that all clusters share; yields the claimed ports."""
        with locked(self.path.parent.parent / "ports.lock"):
            claimed: set[int] = set()
            for path in self.path.parent.glob("*/ledger.json"):
                with suppress(OarsError):  # a damaged ledger of another cluster must not stop this one
                    for entry in read_ledger(path).entries.values():
                        claimed.update(entry.ports.values())
            yield claimed

    def log_file(self, member: str) -> Path:
        return self.logs / f"{member}.log"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Store:
    """All local clusters of this user."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir
        self.clusters = state_dir / "clusters"

    def open(self) -> None:
        """Create the directories. Raises OarsError if that fails."""
        try:
            for path in (self.root, self.clusters):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.chmod(0o700)
        except OSError as error:
            raise _cannot_write(self.root, error) from error

    def cluster(self, name: str, mark: str = "") -> ClusterDir:
        return ClusterDir(self.clusters / name, mark)

    def names(self) -> list[str]:
        try:
            found = sorted(entry.name for entry in self.clusters.iterdir() if (entry / "cluster.json").exists())
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise Denied(f"May not read {self.clusters}.", "Check its owner, or set OARS_STATE_DIR.") from error
        return found

    def create(self, record: ClusterRecord, private: Mapping[str, bytes]) -> ClusterDir:
        """Create the directory of a new cluster atomically."""
        self.open()
        directory = self.cluster(record.name)
        temporary = ClusterDir(self.root / f"new-{record.name}-{secrets.token_hex(4)}")
        try:
            for path in (temporary.path, temporary.secrets, temporary.logs, temporary.members):
                path.mkdir(mode=0o700)
            for name, data in private.items():
                _write_secret(temporary.secrets / name, data)
            write_json(temporary.record_file, codec.dump(record))
            temporary.path.rename(directory.path)
        except OSError as error:
            temporary.remove()
            if directory.exists:
                raise NameInUse(
                    f"A cluster called {record.name!r} is there already.",
                    f"Choose another name, or remove it with `oars down {record.name}`.",
                ) from error
            raise _cannot_write(self.root, error) from error
        return directory


def empty_report(record: ClusterRecord) -> Report:
    """The report of a cluster whose keeper has not published one yet."""
    phase = Phase.PENDING if record.intent.running else Phase.STOPPING
    return Report(Status(record.name, record.spec_desired.engine, record.spec_desired.place, phase))


def _write_secret(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _cannot_write(path: Path, error: OSError) -> OarsError:
    hint = "Free some space, or set OARS_STATE_DIR to a directory that can be written."
    kind = Denied if isinstance(error, PermissionError) else OarsError
    return kind(f"The state directory {path} cannot be written: {error.strerror or error}.", hint)
