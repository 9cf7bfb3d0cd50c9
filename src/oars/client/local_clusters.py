"""Clusters that a keeper process looks after: create, find, change, follow and stop them.

The directory of a cluster is the meeting point: we write what shall be, its keeper writes what is. A keeper that died
is replaced by whoever comes next.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oars import engines
from oars.base.errors import NameInUse, NotFound, OarsError, Replaced
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import Driver, Making, Progress
from oars.client.driver_env import PACKAGE_ROOT, make_driver
from oars.client.machine import check_fits, total_memory
from oars.client.scaling import rescaled
from oars.engines.base import Access
from oars.envs.build import Environments, PythonEnv
from oars.model import HEAD
from oars.places.ledger import read_ledger
from oars.places.local.litter import clear_away_all
from oars.places.local.process import boot_id, identify
from oars.places.local.store import ClusterDir, Intent, Store, empty_report
from oars.places.local.values import member_values
from oars.places.report import Report
from oars.plan.codec import dump_shape, load_shape
from oars.plan.desired import default_memory
from oars.plan.fill import fill_mapping
from oars.secure.secrets import cluster_secrets
from oars.spec.status import Phase, Status

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec

KEEPER_SECONDS = 20.0  # for a keeper to start, on a busy machine
STOP_SECONDS = 60.0


class Kept:
    """All clusters of this user that have keepers."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self._environ = environ
        self.store = Store(settings.state_dir)
        self.environments = Environments(settings.cache_dir)
        self._keepers: dict[Path, int] = {}  # those we started and have not seen end
        self._made: dict[str, str] = {}  # cluster → its mark, if we made it: another may get the name after it

    # create

    def create(self, name: str, spec: ClusterSpec, how: Making) -> None:
        """Write down a new cluster and start its keeper; it is not ready when this returns."""
        engine = engines.get(spec.engine)
        engine.check(spec)
        check_fits(spec, total_memory())
        spec = default_memory(spec, total_memory())
        self._make_room(name)
        self.store.open()
        env = self.prepare(spec, how.progress)
        owner = identify(os.getpid()) if how.tied else None
        shape = engine.shape(spec)
        intent = Intent(
            name=name, spec=_dump(spec), shape=dump_shape(shape), drain_seconds=spec.drain.timeout,
            python=str(env.python), mark=secrets.token_hex(16), created=time.time(), owner=owner, boot=boot_id(),
            cwd=os.getcwd(), import_path=self._import_path(how.modules),
        )  # fmt: skip
        directory = self.store.create(intent, cluster_secrets(name, shape.secrets))
        self._made[name] = intent.mark
        self._start_keeper(directory)

    def prepare(self, spec: ClusterSpec, progress: Progress) -> PythonEnv:
        """The Python for its members: the running one, or a cached environment, built if need be."""
        needs = engines.get(spec.engine).needs(spec)
        return self.environments.prepare(spec.engine, needs, spec.environment.packages, progress)

    def _import_path(self, modules: str | None) -> tuple[str, ...]:
        """Where the user's own modules are: the script's directory (or the current one) and PYTHONPATH, absolute."""
        listed = (self._environ.get("PYTHONPATH") or "").split(os.pathsep)
        first = sys.path[0] if modules is None else modules
        return tuple(dict.fromkeys(os.path.abspath(path) for path in (first, *filter(None, listed))))

    def _make_room(self, name: str) -> None:
        """The name must be free; what a reboot left under it is swept away."""
        directory = self.store.cluster(name)
        if not directory.exists:
            return
        if directory.read_intent().boot == boot_id():
            hint = f"Choose another name, or remove it with `oars down {name}`."
            raise NameInUse(f"A cluster called {name!r} is there already.", hint)
        _sweep(directory)

    def _start_keeper(self, directory: ClusterDir) -> None:
        code = f"import sys, os; sys.path.append({str(PACKAGE_ROOT)!r}); from oars.keeper.main import main; "
        argv = [sys.executable, "-P", "-c", code + "sys.exit(main(sys.argv[1], os.environ))", str(directory.path)]
        output = (os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory.keeper_log), *output),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawn(sys.executable, argv, dict(self._environ), file_actions=actions, setsid=True)
        self._keepers[directory.path] = pid

    def _ensure_keeper(self, directory: ClusterDir) -> None:
        """Start one if none is at work or, started by us, on its way."""
        pid = self._keepers.get(directory.path)
        if pid is not None and not _has_ended(pid):
            return
        if not directory.has_keeper and directory.exists:  # in this order: it may be removed meanwhile
            self._start_keeper(directory)

    # find

    def names(self) -> list[str]:
        return self.store.names()

    def find(self, name: str) -> ClusterDir:
        directory = self._directory(name)
        if not directory.exists:
            if self.store.cluster(name).exists:
                raise Replaced(name)
            hint = suggest(name, self.names()).strip() or "`oars ls` lists those that are there."
            raise NotFound(f"There is no cluster {name!r}.", hint)
        return directory

    def _directory(self, name: str) -> ClusterDir:
        """Of the cluster that we made, or else of whichever has that name."""
        return self.store.cluster(name, self._made.get(name, ""))

    async def report(self, name: str) -> Report:
        """How it is now, as said by a live keeper (one is started if there is none)."""
        directory = self.find(name)
        intent = directory.read_intent()
        if intent.boot != boot_id():
            return _rebooted(intent)
        async for report in self.watch(name):
            if report.status.generation >= intent.generation:
                return report
        raise NotFound(f"The cluster {name!r} has just been stopped.")

    async def watch(self, name: str) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone. Survives the keeper's death."""
        while True:
            directory = self.find(name)
            reader, writer = await self._connect(directory)
            try:
                while line := await reader.readline():
                    report = Report.from_json(json.loads(line))
                    yield report
                    if report.status.phase is Phase.STOPPED:
                        return
            except ConnectionError:
                continue
            finally:
                writer.close()
            if not directory.exists:
                return

    async def _connect(self, directory: ClusterDir) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A line to the keeper, which is started if it is not there."""
        deadline = time.monotonic() + KEEPER_SECONDS
        while True:
            try:
                with _short_path(directory.socket) as path:
                    return await asyncio.open_unix_connection(path, limit=2**24)
            except (ConnectionError, FileNotFoundError):
                if not directory.exists:
                    raise NotFound(f"The cluster {directory.name!r} is gone.") from None
            self._ensure_keeper(directory)
            if time.monotonic() > deadline:
                raise OarsError(f"The keeper of {directory.name!r} does not answer.", f"See {directory.keeper_log}.")
            await asyncio.sleep(0.02)  # until its socket is there; a directory cannot be awaited portably

    # change

    def generation(self, name: str) -> int:
        """Of what shall be; a report that speaks of an older one is no answer."""
        return self.find(name).read_intent().generation

    def scale(self, name: str, replicas: int, group: str | None, *, force: bool = False) -> None:
        directory = self.find(name)
        from oars.spec.cluster import ClusterSpec  # only where a spec is changed: looking at clusters shall be quick

        spec = ClusterSpec.model_validate(directory.read_intent().spec)
        changed = rescaled(name, spec, replicas, group)
        check_fits(changed, total_memory())
        shape = engines.get(changed.engine).shape(changed)
        directory.change_intent(spec=_dump(changed), shape=dump_shape(shape), force=force)
        self._poke(directory)

    def stop(self, name: str, *, wait: float = STOP_SECONDS) -> bool:
        """Ask it to stop and wait until it is gone. Needs no event loop: it also runs while Python shuts down."""
        directory = self._directory(name)
        try:
            intent = directory.change_intent(running=False)
        except (NotFound, FileNotFoundError):
            return True
        if intent.boot != boot_id():
            _sweep(directory)
            return True
        deadline = time.monotonic() + wait
        while directory.exists and time.monotonic() < deadline:
            self._wait_for_end(directory, deadline - time.monotonic())
        return not directory.exists

    def _wait_for_end(self, directory: ClusterDir, seconds: float) -> None:
        """Until the keeper has ended, which it does when it has cleaned up; start one if there is none."""
        try:
            with _short_path(directory.socket) as path, socket.socket(socket.AF_UNIX) as line:
                line.settimeout(seconds)
                line.connect(path)
                _await_exit(_peer(line), seconds)
        except (ConnectionError, FileNotFoundError):
            self._ensure_keeper(directory)
            time.sleep(0.05)  # its socket is not there yet, or its directory is just going

    def _poke(self, directory: ClusterDir) -> None:
        """Coming and going wakes the keeper; without one, the next caller starts it."""
        try:
            with _short_path(directory.socket) as path, socket.socket(socket.AF_UNIX) as line:
                line.settimeout(1.0)
                line.connect(path)
        except OSError:
            self._ensure_keeper(directory)

    # use

    def access(self, name: str) -> Access:
        """How clients reach it. The head must have been given its ports."""
        directory = self.find(name)
        intent = directory.read_intent()
        shape = load_shape(intent.shape)
        book = read_ledger(directory.ledger_file)
        head = book.entries.get(HEAD)
        if head is None:
            raise OarsError(f"The cluster {name!r} has no head yet.", f"`oars why {name}` says what it waits for.")
        values = member_values(directory, book, head, shape.head.process)
        endpoints = fill_mapping(shape.endpoints, values)
        env = fill_mapping(shape.driver_env, values)
        page, secret = endpoints.get("dashboard", ""), values.get(f"secret.{shape.dashboard_secret}", "")
        return Access(name, str(intent.spec["engine"]), endpoints["client"], page, env, secret)

    def driver(self, name: str) -> Driver:
        """Python and environment for a program that uses the cluster."""
        directory = self.find(name)
        return make_driver(directory.read_intent().python, self.access(name), self._environ, directory.path)

    def members(self, name: str) -> Sequence[str]:
        """Everyone who has a log."""
        return sorted(path.stem for path in self.find(name).logs.glob("*.log"))


def _dump(spec: ClusterSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def _sweep(directory: ClusterDir) -> None:
    """What a reboot left; no process is left."""
    clear_away_all(directory)
    directory.remove()


def _rebooted(intent: Intent) -> Report:
    status = empty_report(intent).status
    hint = f"`oars down {intent.name}` forgets it; `oars up {intent.name} …` starts it anew."
    message = f"The machine was restarted and the cluster ended with it. {hint}"
    return Report(Status(status.name, status.engine, status.place, Phase.STOPPED, "Rebooted", message))


def _peer(line: socket.socket) -> int:
    """The pid at the other end of a local socket."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


def _await_exit(pid: int, seconds: float) -> None:
    """Wait for a process to end; if it is our child, see to it that no zombie stays."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
    _has_ended(pid)


def _has_ended(pid: int) -> bool:
    """Of a child of ours, whose zombie goes with the question; others have, as far as we are concerned."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name for a socket that fits the kernel's 107 bytes, however deep its directory is."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
