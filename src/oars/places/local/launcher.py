"""Starting a cluster's processes: their environment, their directory, and the fork server they are forked from."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from oars.model import Process
from oars.places.ledger import Entry
from oars.places.local.fork_client import ForkServerClient, Launch, base_environment
from oars.places.local.process import CLUSTER, MARK, MEMBER, TAG
from oars.places.local.store import ClusterDir, Intent
from oars.plan.fill import fill, fill_mapping


class Launcher:
    """Starts members. Keeps one fork server per set of import-time environment variables; usually there is one."""

    def __init__(
        self, directory: ClusterDir, intent: Intent, environ: Mapping[str, str], on_exit: Callable[[], None]
    ) -> None:
        self._dir = directory
        self._intent = intent
        self._environ = environ
        self._on_exit = on_exit
        self._nurseries: dict[tuple[tuple[str, str], ...], ForkServerClient] = {}

    async def start(self, entry: Entry, process: Process, values: Mapping[str, str]) -> int:
        """Start a member; its pid."""
        _prepare_directory(Path(values["dir"]), fill_mapping(process.files, values))
        env = self._environment(process, entry, values)
        launch = Launch(
            argv=[fill(word, values) for word in process.argv], entry=fill(process.entry, values), env=env,
            cwd=self._cwd(), log=str(self._dir.log_file(entry.id)), title=entry.id,
        )  # fmt: skip
        return await self._nursery(process, env).spawn(launch)

    async def start_helper(
        self, script: str, pipe: socket.socket, head: Entry, process: Process, values: Mapping[str, str]
    ) -> None:
        """Start a head_helper.py with the head's environment; it talks through the pipe."""
        path = self._dir.members / "head_helper.py"
        _write_file(path, script)
        env = self._environment(process, head, values)
        launch = Launch(
            [str(path)], str(path), env, str(self._dir.members), str(self._dir.log_file("beside")), "beside"
        )
        await self._nursery(process, env).spawn(launch, pipe)

    async def exit_reason(self, pid: int) -> str | None:
        for nursery in self._nurseries.values():
            if reason := await nursery.exit_reason(pid):
                return reason
        return None

    async def close(self, *, kill: bool = False) -> None:
        """Let go of the fork servers; what they started stays. kill: nothing may be started any more, from now on."""
        nurseries, self._nurseries = self._nurseries, {}
        await asyncio.gather(*(nursery.close(kill=kill) for nursery in nurseries.values()))

    def _environment(self, process: Process, entry: Entry, values: Mapping[str, str]) -> dict[str, str]:
        member = f"{entry.id}:{entry.incarnation}"
        marks = {MARK: self._intent.mark, MEMBER: member, CLUSTER: str(self._dir.path)}
        marks[TAG] = self._intent.tag(entry.incarnation)
        base = base_environment(self._environ, self._intent.python)
        base["PYTHONPATH"] = os.pathsep.join(self._intent.import_path)
        return {**base, "TMPDIR": values["dir"], **fill_mapping(process.env, values), **marks}

    def _cwd(self) -> str:
        """Where the user was, so that tasks find the same files; the state directory if that is gone."""
        return self._intent.cwd if os.path.isdir(self._intent.cwd) else str(self._dir.path)

    def _nursery(self, process: Process, env: Mapping[str, str]) -> ForkServerClient:
        """The fork server whose imports saw the same environment, as far as it matters at import time."""
        late = {*process.late_env, MEMBER, TAG}
        key = tuple(sorted((name, env[name]) for name in process.env if name not in late))
        nursery = self._nurseries.get(key)
        if nursery is None or not nursery.alive:
            plain = {name: value for name, value in env.items() if name not in late}
            plain["TMPDIR"] = str(self._dir.members)
            nursery = ForkServerClient(self._intent.python, plain, self._dir.keeper_log, self._on_exit)
            self._nurseries[key] = nursery
        nursery.preload(process.preload)
        return nursery


def _prepare_directory(scratch: Path, files: Mapping[str, str]) -> None:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        _write_file(scratch / "files" / name, text)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
