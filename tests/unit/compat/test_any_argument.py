"""Any value for any argument of the three interfaces is used, or refused with a sentence: no other error."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any, cast

import dask
import pytest

from oars.base.errors import OarsError, UsageError
from oars.compat.dask_kubernetes import config, make_pod_from_dict, make_pod_spec
from oars.compat.dask_kubernetes.classic import KubeCluster as ClassicCluster
from oars.compat.dask_kubernetes.classic import arguments as classic
from oars.compat.dask_kubernetes.classic import bounds
from oars.compat.dask_kubernetes.operator import KubeCluster, make_cluster_spec
from oars.compat.dask_kubernetes.operator import arguments as newer
from oars.compat.mars import KubernetesClusterClient, new_cluster
from oars.compat.mars import arguments as mars
from tests.unit.compat.memory_handle import newer_cluster

VALUES: list[Any] = [
    5, -1, 2.5, float("nan"), True, "", "x", "A B", "{NOT_SET}", b"x", [], [1], ["x"], [[]], [{}], [{"name": 1}], {},
    {"x": 1}, {1: 2}, {"spec": 1}, {"spec": {"containers": 1}}, {"spec": {"containers": [1]}}, {"limits": {"cpu": []}},
    {"spec": {"worker": {"spec": {"containers": [5]}}}}, {"spec": {"worker": {"spec": []}, "scheduler": 5}}, object(),
]  # fmt: skip


def names(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.name != "self" and each.kind is not each.VAR_KEYWORD}


CLASSIC = {**names(ClassicCluster.__init__), "pod_template": make_pod_spec("i:1")}
NEWER = names(KubeCluster.__init__)
MARS = {name: value for name, value in names(new_cluster).items() if name != "kube_api_client"}


def check(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result, or None if it is refused. Other errors fail the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments, **named)
        except OarsError as error:
            assert str(error).strip() and "Traceback" not in str(error)
    return None


@pytest.mark.parametrize("name", CLASSIC)
def test_argument_of_the_classic_kube_cluster(name: str) -> None:
    for value in VALUES:
        check(classic.resolve, {**CLASSIC, name: value}, {})


@pytest.mark.parametrize("name", names(make_pod_spec))
def test_argument_of_make_pod_spec(name: str) -> None:
    for value in VALUES:
        if (template := check(make_pod_spec, **{"image": "i:1", name: value})) is not None:
            check(classic.resolve, {**CLASSIC, "pod_template": template}, {})


@pytest.mark.parametrize("name", [*NEWER])
def test_argument_of_the_newer_kube_cluster(name: str) -> None:
    for value in VALUES:
        check(newer.resolve, {**NEWER, name: value}, {})


@pytest.mark.parametrize("name", names(make_cluster_spec))
def test_custom_cluster_spec(name: str) -> None:
    for value in VALUES:
        if (body := check(make_cluster_spec, **{"name": "demo", name: value})) is not None:
            check(newer.resolve, {**NEWER, "custom_cluster_spec": body}, {})


@pytest.mark.parametrize("name", [*MARS, *mars.FURTHER])
def test_argument_of_new_cluster(name: str) -> None:
    for value in VALUES:
        given = {**MARS, name: value} if name in MARS else MARS
        more = {} if name in MARS else {name: value}
        check(mars.resolve, given, more, lambda wanted: "xorbits")


# methods

GROUP: dict[str, Any] = {**names(KubeCluster.add_worker_group), "name": "more"}


@pytest.mark.parametrize("name", [*names(ClassicCluster.adapt), "interval", "wait_count", "target_duration"])
def test_argument_of_adapt_of_the_classic_class(name: str) -> None:
    async def body() -> None:
        cluster = ClassicCluster(make_pod_spec("i:1", memory_limit="2G"), asynchronous=True)
        for value in VALUES:
            check(cluster.adapt, **{name: value})
            check(cluster.scale, value)
        await cluster.close()

    if name != "Adaptive":  # a class
        asyncio.run(body())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minimum": 5, "maximum": 2}, "at least 5 workers, but at most 2"),
        ({"minimum": -1}, "minimum: -1 is not a number of workers"),
        ({"minimum": "a"}, "minimum: 'a' is not a number of workers"),
        ({"maximum": 1.5}, "maximum: 1.5 is not a number of workers"),
        ({"minimum_cores": "a"}, "minimum_cores: 'a' is not an amount"),
        ({"minimum_memory": "4XB"}, "minimum_memory: '4XB' is not a size"),
        ({"minimum_cores": 8, "maximum": 2}, "at least 4 workers, but at most 2"),
        ({"interval": "soon"}, "interval: 'soon' is not a time"),
    ],
)
def test_wrong_limit_of_the_classic_class(given: dict[str, Any], message: str) -> None:
    async def body() -> None:
        cluster = ClassicCluster(make_pod_spec("i:1", threads_per_worker=2, memory_limit="2G"), asynchronous=True)
        with pytest.raises(UsageError, match=message):
            cluster.adapt(**given)
        with pytest.raises(TypeError, match=r"'minimum_core'. Did you mean 'minimum_cores'"):
            cluster.adapt(minimum_core=1)
        adaptive = cluster.adapt(minimum_cores=3, maximum_memory="5GB", memory_ratio=2)
        assert (adaptive.minimum, adaptive.maximum) == (2, 2)
        await cluster.close()

    asyncio.run(body())


@pytest.mark.parametrize("args", [["--nthreads", "two"], ["--nthreads", "0"], ["--memory-limit", "auto"], []])
def test_template_whose_size_cannot_be_counted(args: list[str]) -> None:
    template = make_pod_from_dict({"spec": {"containers": [{"image": "i:1", "args": ["dask-worker", *args]}]}})
    for limit in ("minimum_cores", "maximum_memory"):
        with pytest.raises(UsageError, match="cannot be counted"):
            bounds.limits(template, 0, None, {**dict.fromkeys(bounds.LIMITS), limit: 1})


@pytest.mark.parametrize("name", [*GROUP])
def test_argument_of_add_worker_group(name: str) -> None:
    async def body() -> None:
        cluster, handle = newer_cluster()
        before = handle.kept

        async def add(value: Any) -> None:
            handle.kept = before
            await cluster.add_worker_group(**{**GROUP, name: value})

        for value in [*VALUES, "Bad Name", "x" * 70]:
            await check_async(add, value)
        await cluster.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "Bad Name"}, "Worker group 'Bad Name'"),
        ({"name": "x" * 70}, "Worker group 'x+'"),
        ({"name": 5}, "name: 5 is not a text"),
        ({"n_workers": -1}, "Worker group 'more': replicas"),
        ({"custom_spec": 5}, "5 is not a worker group"),
    ],
)
def test_wrong_worker_group_changes_nothing(given: dict[str, Any], message: str) -> None:
    async def body() -> None:
        cluster, handle = newer_cluster()
        before = handle.kept
        with pytest.raises(UsageError, match=message):
            await cluster.add_worker_group(**{**GROUP, **given})
        assert handle.kept == before
        await cluster.close()

    asyncio.run(body())


def test_numbers_for_the_newer_class() -> None:
    async def body() -> None:
        cluster, handle = newer_cluster()
        before = handle.kept
        for value in VALUES:
            for method, *given in (
                (cluster.scale, value), (cluster.scale, 1, value), (cluster.adapt, value, 3), (cluster.adapt, 0, value),
                (cluster.delete_worker_group, value),
            ):  # fmt: skip
                await check_async(method, *given)
        handle.kept = before
        with pytest.raises(UsageError, match="minimum: 'a' is not a number of workers"):
            cluster.adapt(cast(Any, "a"), 3)
        assert handle.kept == before
        await cluster.close()

    asyncio.run(body())


async def check_async(function: Callable[..., Any], *arguments: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            await function(*arguments)
        except OarsError as error:
            assert str(error).strip() and "Traceback" not in str(error)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("20", 1), "new_scale: '20' is not a number of pods"),
        ((None, 1), "new_scale: None is not a number of pods"),
        ((-1, None), "new_scale: -1 is not a number of pods"),
        ((True, None), "new_scale: True is not a number of pods"),
        ((3, "a"), "min_workers: 'a' is not a number of pods"),
        ((3, -1), "min_workers: -1 is not a number of pods"),
        ((2, 3), "min_workers is 3, but new_scale is 2"),
        ((2, 1, True, "soon"), "timeout: 'soon' is not a duration"),
    ],
)
def test_argument_of_rescale_workers(given: tuple[Any, ...], message: str) -> None:
    """It is refused before the connection is used: this object has none."""
    cluster = KubernetesClusterClient.__new__(KubernetesClusterClient)
    with pytest.raises(UsageError, match=message):
        cluster.rescale_workers(*given)


@pytest.mark.parametrize("key", config.DEFAULTS)
def test_key_of_the_configuration(key: str) -> None:
    for value, given in itertools.product(VALUES, (CLASSIC, NEWER)):
        resolve = classic.resolve if given is CLASSIC else newer.resolve
        with dask.config.set({f"kubernetes.{key}": value}):
            check(resolve, given, {})
