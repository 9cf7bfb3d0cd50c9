"""A cluster handle that only has a spec: changes and applications are made to it as the backends make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from oars.client.backend import ClusterHandle
from oars.compat.dask_kubernetes.operator import KubeCluster
from oars.engines.base import Access
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Phase, Status


@dataclass
class MemoryHandle:
    kept: ClusterSpec
    name: str = "demo"
    env: dict[str, str] = field(default_factory=dict)  # for clients

    async def spec(self) -> ClusterSpec:
        return self.kept

    def access(self) -> Access:
        return Access(self.name, "dask", "tls://127.0.0.1:8786", "http://127.0.0.1:8787/status", self.env)

    async def report(self) -> Report:
        return Report(Status(self.name, self.kept.engine, "kubernetes", Phase.READY))

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool = False) -> None:
        self.kept = change(self.kept)

    async def apply(self, spec: ClusterSpec) -> None:
        self.kept = spec


def newer_cluster(**arguments: Any) -> tuple[KubeCluster, MemoryHandle]:
    """An asynchronous KubeCluster of the newer class that is connected to such a handle. Needs a running loop."""
    cluster = KubeCluster(**(arguments or {"name": "demo", "image": "i:1"}), asynchronous=True)
    handle = MemoryHandle(cluster._arguments.spec)
    cluster._handle = cast(ClusterHandle, handle)
    return cluster, handle
