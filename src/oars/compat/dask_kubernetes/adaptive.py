"""Dask's adaptive scaling, with the drains of Oars."""

from __future__ import annotations

from collections.abc import Collection

from distributed.deploy.adaptive import Adaptive


class DrainingAdaptive(Adaptive):  # type: ignore[misc]
    """As Dask's own, which decides how many workers are needed and which of them leave. Dask's own would then close
    them at once: their running tasks would start again elsewhere. Here they leave when they are drained."""

    async def scale_down(self, workers: Collection[str]) -> None:
        await self.cluster.scale_down(workers)
