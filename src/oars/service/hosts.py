"""Clusters over several machines: runs the part of one that belongs to this machine, until it is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oars.base.errors import OarsError, UsageError
from oars.base.settings import Settings
from oars.client import hosts
from oars.client.hosts import HostOptions, WorkerSize
from oars.client.local import LocalBackend, LocalHandle
from oars.places.hosts.messages import HeadState, failure
from oars.places.hosts.worker import HEAD_CHANGED
from oars.places.report import Report
from oars.service.daemons import READY_FD, Daemon, Starter, start_daemon
from oars.spec.status import Phase

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec

RETRY_SECONDS = 1.0  # between two attempts to reach the head's machine
WARN_SECONDS = 10.0  # after which a head that does not answer is mentioned

OnReport = Callable[[Report], None]

__all__ = ["HostOptions", "HostService", "Joining", "WorkerSize"]


@dataclass(frozen=True)
class Joining:
    """Which head to join, and as what. `token`: the join token, or its file, which may be written later. `host`: this
    machine's own address; empty: found by the route to the head."""

    head: str
    token: str | Path = field(repr=False)
    name: str = ""
    host: str = ""
    size: WorkerSize = field(default_factory=WorkerSize)


class HostService:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._starter = Starter(environ)
        own = {name: value for name, value in environ.items() if name != READY_FD}
        self._backend = LocalBackend(Settings.from_environ(own), own)

    def token_file(self, name: str) -> Path:
        return hosts.token_file(self._backend, name)

    def host_name(self) -> str:
        """The default name of this machine's workers."""
        return hosts.host_name(socket.gethostname())

    def start_in_background(self, role: str, name: str, argv: Sequence[str]) -> Daemon:
        """Start a program that runs a head or workers, and wait until it has ready members or waits for a head."""
        log = self._backend.settings.state_dir / "join" / f"{name}.{role}.log"
        return start_daemon(f"{role} {name!r}", argv, log, self._backend.environ)

    async def find_port(self, head: str, token: str | Path, port: str) -> tuple[str, int, str]:
        """The host, number and token of a port of a running head. Raises OSError if it does not answer, or if the file
        of the join token does not exist yet."""
        state = await hosts.fetch_head(head, read_token(token))
        if state.head is None or port not in state.head.ports:
            raise ConnectionError("the head is being started")
        return state.head.host, state.head.ports[port], (state.secrets or {}).get("token", "").strip()

    async def run_head(
        self, name: str, spec: ClusterSpec, listen: str, options: HostOptions, on_report: OnReport
    ) -> None:
        """Run a head until it is stopped."""
        handle = await asyncio.to_thread(hosts.create_head, self._backend, name, spec, listen, options)
        await self._follow(handle, on_report)

    async def run_worker(self, joining: Joining, options: HostOptions, on_report: OnReport) -> None:
        """Run workers until they are stopped. A head that returns with another spec gets new ones."""
        hosts.check_host(joining.host)
        name = joining.name or self.host_name()
        is_wanted = True
        while is_wanted:
            token, state = await _wait_for_head(joining, options, self._starter.notify)
            handle = await asyncio.to_thread(
                hosts.create_worker,
                self._backend,
                name,
                joining.head,
                token,
                state,
                joining.size,
                options,
                joining.host,
            )
            is_wanted = await self._follow(handle, on_report)

    async def _follow(self, handle: LocalHandle, on_report: OnReport) -> bool:
        """Pass on reports until the cluster was stopped, and return False; or until it must be planned again."""
        try:
            async for report in handle.watch():
                on_report(report)
                if report.status.phase is Phase.READY:
                    self._starter.notify()
                if report.status.reason == HEAD_CHANGED:
                    return True
        except OarsError:
            if await handle.exists():
                raise
        finally:
            await handle.stop()
        return False


def read_token(source: str | Path) -> str:
    """The join token, from its file if it is a path. Raises FileNotFoundError if the file does not exist yet: the head
    makes the token, and may start later."""
    if isinstance(source, str):
        return source
    try:
        return source.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no join token {source} yet") from None
    except OSError as error:
        message = f"Cannot read the join token {source}: {error.strerror or error}."
        raise UsageError(message, "Use a file that this user may read.") from error


async def _wait_for_head(joining: Joining, options: HostOptions, on_wait: Callable[[], None]) -> tuple[str, HeadState]:
    """The join token and the state of the head. Machines may start in any order, so this waits as long as it takes."""
    begun = asyncio.get_running_loop().time()
    while True:
        try:
            token = read_token(joining.token)
            return token, await hosts.fetch_head(joining.head, token)
        except FileNotFoundError as error:
            options.progress(f"waiting for the head at {joining.head}: {error}")
        except (OSError, ValueError) as error:
            text = failure(error)
            if asyncio.get_running_loop().time() - begun > WARN_SECONDS:
                text = f"{text}; check the address and that its port is open"
            options.progress(f"waiting for the head at {joining.head}: {text}")
        on_wait()
        await asyncio.sleep(RETRY_SECONDS)
