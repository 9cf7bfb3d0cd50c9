"""Where local clusters are kept: one directory each, readable by the owner only. It plays the part of an API server:
clients write what shall be (cluster.json), the keeper makes it so and writes what is (ledger.json, report.json)."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oars.base.errors import Denied, NameInUse, NotFound, OarsError, Replaced
from oars.places.ledger import locked, write_json
from oars.places.local.process import Identity
from oars.places.report import Report
from oars.spec.status import Phase, Status


@dataclass(frozen=True)
class Intent:
    """What shall be, as clients write it."""

    name: str
    spec: Mapping[str, Any]
    shape: Mapping[str, Any]  # what the engine makes of the spec; the keeper needs no more
    python: str
    mark: str
    created: float
    drain_seconds: float = 60.0
    running: bool = True
    force: bool = False
    owner: Identity | None = None  # the cluster ends when this process does
    boot: str = ""  # of the machine; a cluster does not outlive it
    cwd: str = "/"  # where the user was: tasks find the same files and modules there
    import_path: tuple[str, ...] = ()
    generation: int = 1

    def tag(self, start: object) -> str:
        """Names what one start of a member leaves outside its directory; short, for paths of sockets are."""
        return f"{self.mark[:8]}-{start}"


class ClusterDir:
    """One cluster's directory: of the cluster with that mark, or without one of whichever has the name."""

    def __init__(self, path: Path, mark: str = "") -> None:
        self._mark = mark
        self.path = path
        self.name = path.name
        self.intent_file = path / "cluster.json"
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
            return self.intent_file.exists()
        try:
            self.read_intent()
        except NotFound:
            return False
        return True

    @property
    def has_keeper(self) -> bool:
        """A keeper holds its lock for as long as it lives."""
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

    def read_intent(self) -> Intent:
        try:
            data = json.loads(self.intent_file.read_text())
        except FileNotFoundError:
            raise NotFound(f"There is no cluster {self.name!r}.", "`oars ls` lists those that are there.") from None
        except ValueError as error:
            hint = f"Remove {self.path} when nothing of it runs any more (`oars doctor` says)."
            raise OarsError(
                f"What is written about the cluster {self.name!r} cannot be read: {error}.", hint
            ) from error
        if self._mark not in ("", data["mark"]):
            raise Replaced(self.name)
        owner = Identity(**data["owner"]) if data["owner"] else None
        return Intent(**{**data, "owner": owner, "import_path": tuple(data["import_path"])})

    def change_intent(self, **changes: object) -> Intent:
        """Read, change and write under a lock: two commands at once do not lose each other's change."""
        with locked(self.path / "intent.lock"):
            before = self.read_intent()
            intent = replace(before, generation=before.generation + 1, **changes)  # type: ignore[arg-type]
            write_json(self.intent_file, asdict(intent))
        return intent

    def read_report(self) -> Report | None:
        try:
            return Report.from_json(json.loads(self.report_file.read_text()))
        except FileNotFoundError:
            return None

    def write_report(self, report: Report) -> None:
        write_json(self.report_file, report.to_json())

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
        """Make the directories; a clear error where that cannot be."""
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

    def create(self, intent: Intent, private: Mapping[str, bytes]) -> ClusterDir:
        """A new cluster's directory, complete or not at all."""
        self.open()
        directory = self.cluster(intent.name)
        temporary = ClusterDir(self.root / f"new-{intent.name}-{secrets.token_hex(4)}")
        try:
            for path in (temporary.path, temporary.secrets, temporary.logs, temporary.members):
                path.mkdir(mode=0o700)
            for name, data in private.items():
                _write_secret(temporary.secrets / name, data)
            write_json(temporary.intent_file, asdict(intent))
            temporary.path.rename(directory.path)
        except OSError as error:
            temporary.remove()
            if directory.exists:
                raise NameInUse(
                    f"A cluster called {intent.name!r} is there already.",
                    f"Choose another name, or remove it with `oars down {intent.name}`.",
                ) from error
            raise _cannot_write(self.root, error) from error
        return directory


def empty_report(intent: Intent) -> Report:
    """Before the keeper has said anything."""
    phase = Phase.PENDING if intent.running else Phase.STOPPING
    return Report(Status(intent.name, str(intent.spec["engine"]), str(intent.spec.get("place", "local")), phase))


def _write_secret(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _cannot_write(path: Path, error: OSError) -> OarsError:
    hint = "Free some space, or set OARS_STATE_DIR to a directory that can be written."
    kind = Denied if isinstance(error, PermissionError) else OarsError
    return kind(f"The state directory {path} cannot be written: {error.strerror or error}.", hint)
