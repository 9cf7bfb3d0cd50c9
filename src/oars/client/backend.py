"""Where clusters live, as front doors see it: this machine, or a Kubernetes namespace. One interface for both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from oars.engines.base import Access
from oars.places.report import Report

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec

Progress = Callable[[str], None]
Containers = Mapping[str, Sequence[str]]  # of each member


@dataclass(frozen=True)
class Driver:
    """How to run a program that finds its cluster with the engine's own words."""

    python: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class Making:
    """How a cluster is made. tied: it ends with the program that makes it."""

    tied: bool
    progress: Progress
    modules: str | None = None


@dataclass(frozen=True)
class Reading:
    """How a log is read: as it goes on, only its last lines, of the container before the last restart, of another
    container than the member's own. `told` hears of trouble that lasts while it is followed."""

    follow: bool = False
    tail: int | None = None
    previous: bool = False
    container: str = ""
    told: Progress = lambda text: None


PLAIN = Reading()


class Backend(Protocol):
    """The clusters of one place."""

    async def create(self, name: str, spec: ClusterSpec, how: Making) -> None:
        """Begin a new cluster; it is not ready when this returns. Raises NameInUse."""

    async def log_in(self) -> None:
        """Get what proves who we are, which may take a person; deadlines for answers begin afterwards."""

    async def names(self) -> list[str]: ...

    async def has_left(self, name: str) -> bool:
        """Whether there is something to remove of a cluster that is not there any more."""

    async def spec(self, name: str) -> ClusterSpec:
        """What was asked for. Raises NotFound."""

    async def report(self, name: str) -> Report:
        """How it is now."""

    def watch(self, name: str) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone."""

    async def generation(self, name: str) -> int:
        """Of what shall be; a report that speaks of an older one is no answer."""

    async def scale(self, name: str, replicas: int, group: str | None, *, force: bool = False) -> None: ...

    async def stop(self, name: str, *, wait: float) -> bool:
        """Ask it to stop and wait until it is gone."""

    def stop_at_exit(self, name: str) -> None:
        """The same without an event loop, for when Python shuts down."""

    async def open(self, name: str) -> None:
        """Make the way there; `access` and `driver` can be asked afterwards."""

    def access(self, name: str) -> Access: ...

    def driver(self, name: str) -> Driver:
        """For a program on this machine."""

    async def members(self, name: str) -> Sequence[str]:
        """Everyone who has a log."""

    async def containers(self, name: str) -> Containers:
        """The same, with the containers of each; a process of this machine has none."""

    def lines(self, name: str, member: str, how: Reading = PLAIN) -> AsyncIterator[str]: ...

    def last_seen(self, name: str) -> Report | None:
        """Without asking anyone."""

    def cancel(self) -> None:
        """Call off a create() that is under way."""

    async def close(self) -> None:
        """Let go; clusters that are not tied stay."""
