"""This machine as a home of clusters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oars.base.settings import Settings
from oars.client.backend import PLAIN, Containers, Driver, Making, Reading
from oars.client.local_clusters import STOP_SECONDS, Kept
from oars.engines.base import Access
from oars.places.local import logs
from oars.places.report import Report

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


class LocalBackend:
    """Clusters with keepers; see home.Home."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self.kept = Kept(settings, environ)

    async def create(self, name: str, spec: ClusterSpec, how: Making) -> None:
        await asyncio.to_thread(self.kept.create, name, spec, how)

    async def log_in(self) -> None:
        """Whoever is here has done so."""

    async def names(self) -> list[str]:
        return self.kept.names()

    async def has_left(self, name: str) -> bool:
        return False

    async def spec(self, name: str) -> ClusterSpec:
        from oars.spec.cluster import ClusterSpec  # only where a spec is wanted: looking at clusters shall be quick

        return ClusterSpec.model_validate(self.kept.find(name).read_intent().spec)

    async def report(self, name: str) -> Report:
        return await self.kept.report(name)

    def watch(self, name: str) -> AsyncIterator[Report]:
        return self.kept.watch(name)

    async def generation(self, name: str) -> int:
        return self.kept.generation(name)

    async def scale(self, name: str, replicas: int, group: str | None, *, force: bool = False) -> None:
        await asyncio.to_thread(self.kept.scale, name, replicas, group, force=force)

    async def stop(self, name: str, *, wait: float = STOP_SECONDS) -> bool:
        return await asyncio.to_thread(self.kept.stop, name, wait=wait)

    def stop_at_exit(self, name: str) -> None:
        self.kept.stop(name)

    async def open(self, name: str) -> None:
        self.kept.find(name)

    def access(self, name: str) -> Access:
        return self.kept.access(name)

    def driver(self, name: str) -> Driver:
        return self.kept.driver(name)

    async def members(self, name: str) -> Sequence[str]:
        return self.kept.members(name)

    async def containers(self, name: str) -> Containers:
        return dict.fromkeys(self.kept.members(name), ())

    async def lines(self, name: str, member: str, how: Reading = PLAIN) -> AsyncIterator[str]:
        """One file holds all lives of a member, so there is no previous one to ask for, nor any container."""
        path = self.kept.store.cluster(name).log_file(member)
        with contextlib.suppress(FileNotFoundError):  # removed between a look and the next
            async for line in logs.lines(path, follow=how.follow, tail=how.tail):
                yield line

    def last_seen(self, name: str) -> Report | None:
        return self.kept.store.cluster(name).read_report()

    def cancel(self) -> None:
        self.kept.environments.cancel()

    async def close(self) -> None:
        """Keepers go on by themselves."""
