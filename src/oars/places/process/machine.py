"""Machine: the interface of the process place to a computer. Ledger entries identify the members."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from oars.model import Limit, Process
from oars.places.process.ledger import Entry

HELPER_GRACE = 5.0  # for a script to undo what it began

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Exit:
    """How a process ended. `code` is negative for a signal and None if it is unknown."""

    reason: str
    code: int | None = None


UNKNOWN_EXIT = Exit("ended with an unknown exit status")


class Machine(Protocol):
    """Starts, watches and ends processes, on this computer or behind a transport. Methods that are not async are called
    in every pass and must not block: behind a transport they use what the remote side last reported."""

    @property
    def host(self) -> str:
        """The address that members bind to and are reached at."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        """How much the workers that autoscaling adds may take."""

    @property
    def fixed_ports(self) -> Mapping[str, int]:
        """Ports that the user has chosen, by name. Others are allocated."""

    def free_ports(self, count: int, claimed: Collection[int]) -> list[int]:
        """Ports that are neither claimed nor in use. Raises StartFailed if there are not enough."""

    def can_bind(self, ports: Collection[int]) -> bool:
        """True if no other process took these ports since their owner ended."""

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        """Paths for templates: dir, file.NAME, secret.NAME; and tag, for names outside of dir."""

    def secret(self, name: str) -> str:
        """The content of a file of the cluster's secrets; empty if there is none."""

    async def start(self, entry: Entry, process: Process, values: Mapping[str, str]) -> Entry:
        """Start a member. Returns the entry with the process identity. Raises StartFailed or OSError."""

    def is_running(self, entry: Entry) -> bool:
        """True if this process runs. From now on the machine reports its end."""

    def exit_of(self, entry: Entry) -> Exit | None:
        """How a process that no longer runs ended; None: not known yet, the machine will report it."""

    def memory_kills(self, entry: Entry) -> int:
        """How many processes of this member the kernel killed because the member used more than its memory."""

    async def stop(self, entry: Entry, grace: float) -> None:
        """Send the stop signal, wait, kill the process and all that it started, and remove what it left behind."""

    async def sweep(self, entries: Sequence[Entry]) -> None:
        """Kill remaining processes of these members and remove what they left outside their directories."""

    async def sweep_unknown(self, known: Sequence[Entry]) -> None:
        """Kill processes of this cluster that no entry records: a loop died before it could write them down."""

    def tail(self, member: str, count: int) -> tuple[str, ...]:
        """The last lines of a member's log."""

    async def start_helper(self, script: str, head: Entry, process: Process, values: Mapping[str, str]) -> Streams:
        """Run a script with the head's environment; the streams are its stdin and stdout. A script that does not end
        within HELPER_GRACE seconds after the streams were closed is killed."""

    async def close(self) -> None:
        """Release all resources. The members keep running."""
