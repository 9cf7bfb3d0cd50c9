"""Storage of local jobs: one directory each, readable by the owner only. Clients write job.json, the job's keeper
status.json, and each driver its own attempt's directory."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from oars.base import codec
from oars.base.errors import NotFound, OarsError
from oars.base.files import write_private
from oars.places.local.host import Host, Residence, booted_at, residence, this_host
from oars.places.local.process import Identity
from oars.places.local.store import is_locked, remove_directory
from oars.places.process.ledger import locked, write_json
from oars.spec.job_status import JobStatus

PACKAGE_ROOT = Path(__file__).parents[3]
JOB_MARK = "OARS_JOB_MARK"  # in the environment of an attempt's processes
CLOSED = "closed"  # a claim that no driver can win


@dataclass(frozen=True)
class JobRecord:
    """A job as clients write it. `mark` identifies it: another job may get its name later."""

    name: str
    spec: dict[str, Any]
    mark: str
    created: float
    host: Host
    engine: str = ""
    cancel: bool = False
    delete: bool = False
    schedule: str = ""  # mark of the job that has the schedule of which this is a run
    environ: dict[str, str] = field(default_factory=dict)  # of the shell that submitted it, as far as drivers get it


@dataclass(frozen=True)
class DriverExit:
    """How a driver ended, as its wrapper writes it."""

    code: int
    ended: float
    message: str = ""


class AttemptDir:
    """The directory of one attempt.

    The file `claim` decides who runs the driver: it is created atomically, by the wrapper that starts the driver or, to
    make sure that none starts any more, by the keeper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"
        self.log = path / "log"
        self.old_log = path / "log.old"
        self._claim = path / "claim"
        self._exit = path / "exit.json"

    def claim(self, owner: Identity | None) -> bool:
        """Claim the attempt for a process; None: close it. False: it is claimed already."""
        data = codec.dump(owner) if owner is not None else CLOSED
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path / f".claim-{secrets.token_hex(8)}"
        write_private(temporary, json.dumps(data).encode())
        try:
            os.link(temporary, self._claim)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def claimed_by(self) -> Identity | str | None:
        """The process that has claimed the attempt, CLOSED, or None."""
        try:
            data = json.loads(self._claim.read_text())
        except FileNotFoundError:
            return None
        return CLOSED if data == CLOSED else codec.load(Identity, data)

    def read_exit(self) -> DriverExit | None:
        try:
            return codec.load(DriverExit, json.loads(self._exit.read_text()))
        except FileNotFoundError:
            return None

    def write_exit(self, ended: DriverExit) -> None:
        write_private(self._exit, json.dumps(codec.dump(ended)).encode())


class JobDir:
    """One job's directory. With a mark, only the job with that mark."""

    def __init__(self, path: Path, mark: str = "") -> None:
        self.path = path
        self.name = path.name
        self._mark = mark
        self.record_file = path / "job.json"
        self.status_file = path / "status.json"
        self.keeper_lock = path / "keeper.lock"
        self.keeper_log = path / "keeper.log"
        self.archive = path / "files.tar.gz"

    @property
    def exists(self) -> bool:
        try:
            self.read()
        except NotFound:
            return False
        except OarsError:
            return True
        return True

    @property
    def has_keeper(self) -> bool:
        return is_locked(self.keeper_lock)

    def read(self) -> JobRecord:
        """Raises NotFound if the job is gone, or another one has its name."""
        try:
            record = codec.load(JobRecord, json.loads(self.record_file.read_text()))
        except FileNotFoundError:
            raise self.not_found() from None
        except ValueError as error:
            message = f"The record of job {self.name!r} cannot be read: {error}."
            raise OarsError(message, f"Remove its directory: `rm -r {self.path}`.") from error
        if self._mark not in ("", record.mark):
            raise NotFound(f"The job {self.name!r} was removed, and another one has its name.")
        return record

    def not_found(self) -> NotFound:
        return NotFound(f"There is no job {self.name!r}.", "`oars jobs ls` lists the jobs.")

    def residence(self, record: JobRecord) -> Residence:
        return residence(record.host, record.created, this_host(), booted_at(), lambda: self.has_keeper)

    def change(self, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
        """Raises NotFound if the job is gone, also if it is removed meanwhile."""
        try:
            with locked(self.path / "record.lock"):
                record = change(self.read())
                write_json(self.record_file, codec.dump(record))
        except FileNotFoundError:
            raise self.not_found() from None
        return record

    def read_status(self) -> JobStatus:
        try:
            return codec.load(JobStatus, json.loads(self.status_file.read_text()))
        except FileNotFoundError:
            return JobStatus()
        except ValueError as error:
            raise OarsError(f"The status of job {self.name!r} cannot be read: {error}.") from error

    def write_status(self, status: JobStatus) -> None:
        write_json(self.status_file, codec.dump(status))

    def attempt(self, n: int) -> AttemptDir:
        return AttemptDir(self.path / "attempts" / str(n))

    def remove(self) -> None:
        remove_directory(self.path)
        _remove_unused_files(self.path.parent.parent)


def start_keeper(directory: JobDir, environ: Mapping[str, str]) -> int:
    """Start a keeper, which ends at once if another one runs. Returns its pid."""
    return spawn(directory, "from oars.client.job_keeper import main", [str(directory.path)], environ)


def spawn(directory: JobDir, entry: str, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start a program of Oars in a session of its own, with its output in the keeper's log. `entry` imports `main`,
    which gets the arguments and the environment. Raises NotFound if the job was removed."""
    code = f"import sys, os; sys.path.append({str(PACKAGE_ROOT)!r}); {entry}; sys.exit(main(sys.argv[1:], os.environ))"
    output = (os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(directory.keeper_log), *output),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    argv = [sys.executable, "-P", "-c", code, *arguments]
    try:
        return os.posix_spawn(sys.executable, argv, environ, file_actions=actions, setsid=True)
    except FileNotFoundError:  # of the keeper's log
        if directory.path.exists():
            raise
        raise directory.not_found() from None


class JobStore:
    """All local jobs of this user."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir
        self.jobs = state_dir / "jobs"
        self.secrets = state_dir / "secrets"

    def job(self, name: str, mark: str = "") -> JobDir:
        return JobDir(self.jobs / name, mark)

    def names(self) -> list[str]:
        try:
            return sorted(path.parent.name for path in self.jobs.glob("*/job.json"))
        except OSError:
            return []

    def _link_files(self, archive: bytes, target: Path) -> None:
        """Store an archive under the hash of its content, once for all jobs with the same files."""
        files = self.root / "files"
        files.mkdir(mode=0o700, exist_ok=True)
        stored = files / hashlib.sha256(archive).hexdigest()
        with locked(self.root / "files.lock"):
            if not stored.exists():
                write_private(stored, archive)
            os.link(stored, target)

    def create(self, record: JobRecord, archive: bytes) -> JobDir:
        """Create the directory of a new job atomically, with its first status. Raises OarsError if there is one of that
        name."""
        self.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = JobDir(self.root / f"new-job-{record.name}-{secrets.token_hex(4)}")
        try:
            temporary.path.mkdir(mode=0o700)
            if archive:
                self._link_files(archive, temporary.archive)
            write_json(temporary.record_file, codec.dump(record))
            cluster = (record.spec.get("cluster") or {}).get("name") or ""
            temporary.write_status(JobStatus(engine=record.engine, cluster=cluster))
            temporary.path.rename(self.jobs / record.name)
        except OSError as error:
            shutil.rmtree(temporary.path, ignore_errors=True)
            if (self.jobs / record.name / "job.json").exists():
                hint = f"Choose another name with --name, or remove it: `oars jobs rm {record.name}`."
                raise OarsError(f"Job {record.name!r} exists already.", hint) from error
            raise
        return self.job(record.name, record.mark)


def _remove_unused_files(root: Path) -> None:
    """Remove archives that no job links to."""
    with locked(root / "files.lock"):
        for path in (root / "files").glob("*"):
            if path.stat().st_nlink == 1:
                path.unlink()


class LogReader:
    """Reads the output of an attempt while it grows, also across the rotation of its file."""

    def __init__(self, attempt: AttemptDir) -> None:
        self._attempt = attempt
        self._file: IO[bytes] | None = None
        self._is_new = True

    def read(self) -> bytes:
        """What is new since the last call."""
        data = b""
        file = self._file or self._open()
        if self._is_new and file is not None:
            self._is_new = False
            with suppress(FileNotFoundError):
                data += self._attempt.old_log.read_bytes()
        while file is not None:
            data += file.read()
            try:
                is_same = os.path.samestat(os.fstat(file.fileno()), self._attempt.log.stat())
            except FileNotFoundError:
                break
            if is_same:
                break
            data += file.read()  # nobody writes to the old file any more
            file.close()
            file = self._open()
        return data

    def _open(self) -> IO[bytes] | None:
        try:
            self._file = open(self._attempt.log, "rb")
        except FileNotFoundError:
            self._file = None
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
