"""Storage of local clusters: one directory each, readable by the owner only. It has the role of an API server: clients
write the intent (cluster.json), the keeper reconciles it and writes ledger.json and report.json."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from oars.base import codec
from oars.base.errors import Denied, NameInUse, NotFound, OarsError, Replaced
from oars.base.files import write_private
from oars.model import Desired
from oars.places.intent import Intent
from oars.places.local.host import Host, Residence, booted_at, residence, this_host
from oars.places.local.process import Identity
from oars.places.process.ledger import locked, read_ledger, write_json
from oars.places.process.link import Link
from oars.places.report import Report
from oars.secure.expiry import expires_at
from oars.secure.secrets import cluster_secrets
from oars.spec.status import Phase, Status

STOP = b"stop\n"  # to the keeper's socket: stops the cluster even if the disk is full
LOCK_SECONDS = 1.0
REMOVED = ".removed-"  # prefix of directories that are being removed


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster as clients write it: the intent, and the environment in which its members start."""

    name: str
    intent: Intent
    spec_desired: Desired  # built from the intent's spec by the client, as the keeper has no pydantic
    python: str
    mark: str  # in the environment of all its processes
    created: float
    host: Host  # only it and its user change the cluster, which does not survive a reboot
    owner: Identity | None = None  # a tied cluster ends when this process does
    cwd: str = "/"  # the user's directory: tasks find the same files and modules there
    import_path: tuple[str, ...] = ()
    link: Link | None = None  # to other machines
    job: str = ""  # mark of the job that it was created for

    @property
    def desired(self) -> Desired:
        return replace(self.intent.applied_to(self.spec_desired), created_at=self.created)

    def changed(self, desired: Desired | None = None, **intent: Any) -> ClusterRecord:
        """The record with a changed intent, and with a changed spec its desired state."""
        return replace(self, intent=self.intent.changed(**intent), spec_desired=desired or self.spec_desired)


def is_locked(path: Path) -> bool:
    """True if a keeper holds this lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_keeper(path: Path) -> int | None:
    """Lock the file as long as the returned descriptor is open. None: a keeper has it, or its directory was removed
    meanwhile. A client that tests for a keeper holds the lock for a moment (is_locked), so a single failure proves
    nothing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor if os.path.samestat(os.fstat(descriptor), path.stat()) else None
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)  # poll: flock has no timeout


def tag(mark: str, start: object) -> str:
    """Part of the names of what one start of a member leaves outside its directory. Short, because socket paths are
    limited."""
    return f"{mark[:8]}-{start}"


def remove_directory(path: Path) -> None:
    """Remove the directory of a cluster or job. It is renamed first, so that an interrupted removal does not block the
    name (see Store.remove_leftovers)."""
    removed = path.parent.parent / f"{REMOVED}{path.name}-{secrets.token_hex(4)}"
    with suppress(FileNotFoundError):
        path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


@lru_cache(maxsize=16)
def _decoded(text: str) -> ClusterRecord:
    """A client reads the record of its cluster many times while it waits, and decoding it takes a millisecond."""
    return codec.load(ClusterRecord, json.loads(text))


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
        except OarsError:
            return True  # its record is damaged
        return True

    @property
    def has_keeper(self) -> bool:
        """True if a keeper runs, here or on another host that shares the directory: it holds its lock until it
        ends."""
        return is_locked(self.keeper_lock)

    def read(self) -> ClusterRecord:
        """The cluster's record. Raises NotFound, or Replaced if another cluster has the name."""
        try:
            record = _decoded(self.record_file.read_text())
        except FileNotFoundError:
            raise NotFound(f"There is no cluster {self.name!r}.", "`oars ls` lists the clusters.") from None
        except ValueError as error:
            message = f"The record of cluster {self.name!r} cannot be read: {error}."
            raise OarsError(message, f"Run `oars down {self.name}`: it also stops a cluster like this.") from error
        if self._mark not in ("", record.mark):
            raise Replaced(self.name)
        return record

    def residence(self, record: ClusterRecord) -> Residence:
        """Where the cluster with this record is, seen from this process."""
        return residence(record.host, record.created, this_host(), booted_at(), lambda: self.has_keeper)

    def change(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        """Change the record. `change` runs under a lock, so that concurrent commands do not lose changes."""
        with locked(self.path / "intent.lock"):
            record = change(self.read())
            write_json(self.record_file, codec.dump(record))
        return record

    def read_report(self) -> Report | None:
        """None: there is none yet, or it cannot be read. The keeper writes it anew."""
        try:
            return codec.load(Report, json.loads(self.report_file.read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def write_report(self, report: Report) -> None:
        write_json(self.report_file, codec.dump(report), durable=False)

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

    def secrets_expire_at(self) -> float | None:
        return expires_at({path.name: path.read_bytes() for path in self.secrets.glob("ca.pem")})

    def renew_certificates(self) -> None:
        for name, data in cluster_secrets(self.name, ("tls",)).items():
            write_private(self.secrets / name, data)

    def log_file(self, member: str) -> Path:
        return self.logs / f"{member}.log"

    def remove(self) -> None:
        """Remove the directory, unless another cluster has taken the name."""
        if self.exists or not self.record_file.exists():
            remove_directory(self.path)


class Store:
    """All local clusters of this user."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir
        self.clusters = state_dir / "clusters"

    def open(self) -> None:
        """Create the directories. Raises OarsError if that fails."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be a directory of the user's
            self.clusters.mkdir(mode=0o700, exist_ok=True)
            self.clusters.chmod(0o700)
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
        self.remove_leftovers()
        directory = self.cluster(record.name)
        temporary = ClusterDir(self.root / f"new-{record.name}-{secrets.token_hex(4)}")
        try:
            for path in (temporary.path, temporary.secrets, temporary.logs, temporary.members):
                path.mkdir(mode=0o700)
            for name, data in private.items():
                write_private(temporary.secrets / name, data)
            write_json(temporary.record_file, codec.dump(record))
            with locked(self.root / "names.lock"):
                if not directory.exists:
                    directory.remove()  # it may exist without a record, if somebody deleted a part of it
                temporary.path.rename(directory.path)
        except OSError as error:
            shutil.rmtree(temporary.path, ignore_errors=True)
            if directory.exists:
                raise name_in_use(record.name) from error
            raise _cannot_write(self.root, error) from error
        return directory

    def remove_leftovers(self) -> None:
        """Remove directories that a killed process was removing."""
        for path in self.root.glob(f"{REMOVED}*"):
            shutil.rmtree(path, ignore_errors=True)


def name_in_use(name: str, host: str = "") -> NameInUse:
    """`host`: the other host that the cluster belongs to."""
    where = f" on {host}" if host else ""
    hint = f"Choose another name, or run `oars down {name}`{where}."
    return NameInUse(f"Cluster {name!r} exists already{where}.", hint)


def empty_report(record: ClusterRecord) -> Report:
    """The report of a cluster whose keeper has not published one yet."""
    phase = Phase.PENDING if record.intent.running else Phase.STOPPING
    return Report(Status(record.name, record.spec_desired.engine, record.spec_desired.place, phase))


def _cannot_write(path: Path, error: OSError) -> OarsError:
    hint = "Free some space, or set OARS_STATE_DIR to a directory that can be written."
    kind = Denied if isinstance(error, PermissionError) else OarsError
    return kind(f"The state directory {path} cannot be written: {error.strerror or error}.", hint)
