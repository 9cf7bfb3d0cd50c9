"""The widget that notebooks show for a KubeCluster: Dask's own, with its buttons."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oars.compat.dask_kubernetes.classic import KubeCluster, make_pod_spec
from tests.unit.compat.memory_handle import newer_cluster

pytest.importorskip("ipywidgets", reason="a development dependency: run `make setup`")


def inside(widget: Any) -> list[Any]:
    """The widget and all that it contains."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in inside(child))]


def buttons(cluster: Any) -> dict[str, Any]:
    return {each.description: each for each in inside(cluster._widget()) if getattr(each, "description", "")}


def test_buttons_of_the_widget_scale_and_adapt() -> None:
    async def body() -> None:
        cluster = KubeCluster(make_pod_spec("i:1"), asynchronous=True)  # not awaited, so there are no pods
        parts = buttons(cluster)
        parts["Workers"].value = 3
        parts["Scale"].click()
        assert len(cluster._expected()) == 3
        parts["Minimum"].value, parts["Maximum"].value = 1, 4
        parts["Adapt"].click()
        assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (1, 4)
        parts["Scale"].click()
        assert cluster._adaptive.state == "stopped", "a number that is chosen by hand stays"
        await cluster.close()

    asyncio.run(body())


def test_buttons_of_the_newer_class_scale_and_adapt() -> None:
    """Nobody awaits what the buttons call."""

    async def body() -> None:
        cluster, handle = newer_cluster()
        parts = buttons(cluster)
        parts["Workers"].value = 3
        parts["Scale"].click()
        await asyncio.gather(*cluster._tasks)
        assert handle.kept.workers[0].replicas == 3
        parts["Minimum"].value, parts["Maximum"].value = 1, 4
        parts["Adapt"].click()
        await asyncio.gather(*cluster._tasks)
        (group,) = handle.kept.workers
        assert (group.replicas, group.min, group.max) == (3, 1, 4)
        parts["Scale"].click()
        await asyncio.gather(*cluster._tasks)
        assert not handle.kept.autoscaled, "a number that is chosen by hand stays"
        assert await cluster.scale(2) is None and handle.kept.workers[0].replicas == 2, "it can be awaited"
        await cluster.close()

    asyncio.run(body())
