"""Worker groups that the newer KubeCluster adds and deletes while another program changes the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from oars.base.errors import NotFound, UsageError
from oars.client.backend import ClusterHandle
from oars.compat.dask_kubernetes.operator import KubeCluster, make_worker_spec
from oars.spec.cluster import ClusterSpec
from tests.unit.compat.memory_handle import MemoryHandle, newer_cluster

SCALED = 9


class ContendedHandle(MemoryHandle):
    """Another program scales the default group after every read, so the first write of a change is a conflict."""

    async def spec(self) -> ClusterSpec:
        read = self.kept
        self.kept = read.with_group("default", replicas=SCALED)
        return read

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool = False) -> None:
        change(await self.spec())
        self.kept = change(self.kept)


def contended_cluster() -> tuple[KubeCluster, ContendedHandle]:
    cluster, handle = newer_cluster()
    contended = ContendedHandle(handle.kept)
    cluster._handle = cast(ClusterHandle, contended)
    return cluster, contended


def test_changes_of_others_survive_added_and_deleted_groups() -> None:
    async def body() -> None:
        cluster, handle = contended_cluster()
        await cluster.add_worker_group("more", custom_spec=make_worker_spec("i:1", 1))
        assert {group.name: group.replicas for group in handle.kept.workers} == {"default": SCALED, "more": 1}
        handle.kept = handle.kept.with_group("default", replicas=0)
        await cluster.delete_worker_group("more")
        assert {group.name: group.replicas for group in handle.kept.workers} == {"default": SCALED}
        await cluster.close()

    asyncio.run(body())


def test_wrong_names_of_groups_are_refused() -> None:
    async def body() -> None:
        cluster, handle = contended_cluster()
        with pytest.raises(UsageError, match="has a worker group 'default' already"):
            await cluster.add_worker_group("default")
        for name in ("default", "other"):
            with pytest.raises(NotFound, match=f"no worker group '{name}' to delete"):
                await cluster.delete_worker_group(name)
        assert [group.name for group in handle.kept.workers] == ["default"]
        await cluster.close()

    asyncio.run(body())
