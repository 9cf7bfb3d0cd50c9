"""Cluster and AsyncCluster: signatures that tools can read, suggestions for unknown keywords, and one location."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from oars import AsyncCluster, Cluster
from oars.base.errors import SpecError, TimedOut, UsageError
from oars.client import cluster as cluster_module
from oars.client.backend import Driver
from oars.client.keywords import ALIASES
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec, NamespaceBlock
from oars.spec.status import GroupStatus, Phase, Status

TEAM = NamespaceBlock(name="team")
LOCATION = ["place", "namespace", "context", "kubeconfig", "mode"]
SPEC = ["workers", "cpu", "memory", "cache", "spill", "head_cpu", "head_memory", "name", "packages", "image",
        "lifetime"]  # fmt: skip
CREATE = [*SPEC, *LOCATION, "timeout", "progress", "tied", "modules"]


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("cluster", [Cluster, AsyncCluster])
def test_signatures_list_all_parameters(cluster: type[Cluster] | type[AsyncCluster]) -> None:
    assert parameters(cluster) == ["engine", *CREATE]
    assert parameters(cluster.from_file) == ["path", "sets", *CREATE]
    assert parameters(cluster.attach) == ["name", *LOCATION, "progress"]
    assert parameters(cluster.scale) == ["workers", "group", "force"]
    assert parameters(cluster.wait) == ["workers", "timeout"]


def test_both_classes_have_the_same_methods() -> None:
    for name, member in inspect.getmembers(AsyncCluster):
        if name.startswith("_") or name in ("start", "follow_logs"):
            continue
        if inspect.isfunction(member):
            assert set(parameters(member)) <= set(parameters(getattr(Cluster, name))), name


@pytest.mark.parametrize("cluster", [Cluster, AsyncCluster])
def test_every_public_member_has_a_docstring(cluster: type[Any]) -> None:
    public = {name: member for name, member in inspect.getmembers(cluster) if not name.startswith("_")}
    assert [
        name for name, member in {**public, "__init__": cluster.__init__}.items() if not inspect.getdoc(member)
    ] == []
    documented = inspect.getdoc(cluster.__init__) or ""
    assert [name for name in parameters(cluster) if name not in documented] == []


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("n_workers", "workers"), ("num_workers", "workers"), ("nworkers", "workers"), ("worker_num", "workers"),
        ("threads_per_worker", "cpu"), ("num_cpus", "cpu"), ("ncores", "cpu"), ("memory_limit", "memory"),
        ("mem", "memory"), ("cluster_name", "name"), ("wokers", "workers"), ("Namespace", "namespace"),
        ("scheduler_memory", "head_memory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cluster", [Cluster, AsyncCluster])
def test_unknown_keyword_gets_a_suggestion(cluster: type[Any], keyword: str, meant: str) -> None:
    with pytest.raises(TypeError) as raised:
        cluster("toy", **{keyword: 3})
    expected = f"{cluster.__name__}() got an unexpected keyword argument {keyword!r}. Did you mean {meant!r}?"
    assert str(raised.value) == expected


def test_suggestions_fit_the_method() -> None:
    """And mypy refuses each of these, or it would report that `type: ignore` is not needed."""
    with pytest.raises(TypeError, match=r"'wokers'\. Did you mean 'workers'"):
        Cluster("dask", wokers=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'wokers'\. Did you mean 'workers'"):
        AsyncCluster("dask", wokers=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Cluster.attach\(\) got an unexpected keyword argument 'n_workers'.$"):
        Cluster.attach("demo", n_workers=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'ns'\. Did you mean 'namespace'"):
        Cluster.from_file("x.yaml", ns="team")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"AsyncCluster.scale\(\) .* 'n'. Did you mean 'workers'"):
        AsyncCluster("toy").scale(n=3)  # type: ignore[call-arg, unused-coroutine]


def test_wrong_arguments_are_those_of_the_class_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"^Cluster\(\): missing a required argument: 'engine'\.$"):
        Cluster()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^AsyncCluster\(\): missing a required argument: 'engine'\.$"):
        AsyncCluster()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Cluster.attach\(\): too many positional arguments\.$"):
        Cluster.attach("demo", "local")  # type: ignore[call-arg]


def test_aliases_name_real_parameters() -> None:
    assert set(ALIASES) <= {*CREATE, "tail"}
    assert not {alias for aliases in ALIASES.values() for alias in aliases.split()} & {*CREATE, "engine"}


def test_location_of_a_new_cluster(tmp_path: Path) -> None:
    assert AsyncCluster("dask").place == "local"
    assert AsyncCluster("dask", namespace="team").place == "kubernetes"
    assert AsyncCluster(ClusterSpec(engine="dask", place="kubernetes"), workers=2).place == "kubernetes"
    path = tmp_path / "cluster.yaml"
    path.write_text("apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nspec: {engine: dask}\n")
    cluster = AsyncCluster.from_file(
        path, place="kubernetes", namespace="team", context="c", kubeconfig="k", mode="direct"
    )
    assert (cluster.place, cluster.engine) == ("kubernetes", "dask")
    assert AsyncCluster(ClusterSpec(engine="dask", namespace=TEAM)).place == "kubernetes"
    with pytest.warns(UserWarning, match="modules='lib' has no effect: pods"):
        AsyncCluster("dask", namespace="team", modules="lib")
    assert AsyncCluster(ClusterSpec(engine="dask", namespace=TEAM), place="local").place == "local"
    with pytest.raises(SpecError, match="namespace applies to Kubernetes only"):
        AsyncCluster(ClusterSpec(engine="dask", place="local", namespace=TEAM))
    with pytest.raises(UsageError, match="mode= applies to Kubernetes only, but place= is 'local'"):
        AsyncCluster("dask", place="local", mode="operator")


def test_size_of_the_head_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nspec: {engine: dask, head: {cpu: 4}}\n")
    for cluster in (
        AsyncCluster("dask", head_cpu="300m", head_memory="1Gi"),
        AsyncCluster.from_file(path, head_cpu=0.3),
    ):
        assert cluster._spec.head.cpu == 0.3
    assert AsyncCluster("dask", head_memory="1Gi")._spec.head.memory == 2**30
    with pytest.raises(SpecError, match=r"spec\.head\.cpu"):
        AsyncCluster("dask", head_cpu="many")


def test_cluster_that_is_not_started_has_no_address() -> None:
    cluster = AsyncCluster("dask", name="demo")
    assert "demo: dask on local, Stopped" in repr(cluster)
    with pytest.raises(UsageError, match="Cluster 'demo' is not started"):
        _ = cluster.address


class Unstoppable:
    """A cluster on Kubernetes that does not stop in time, and the backend that created it."""

    name, namespace = "demo", "team"
    is_closed = False

    async def stop(self) -> bool:
        return False

    async def close(self) -> None:
        self.is_closed = True


def test_close_reports_a_cluster_that_does_not_stop() -> None:
    cluster: Any = AsyncCluster("dask", name="demo")
    cluster._handle = cluster._backend = unstoppable = Unstoppable()
    cluster._finalizer = weakref.finalize(cluster, print)
    with pytest.raises(TimedOut, match=r"Cluster 'demo' did not stop within 60 s.") as raised:
        asyncio.run(cluster.close())
    assert raised.value.hint == "It continues to stop; run `oars why demo -n team`."
    assert unstoppable.is_closed and not cluster._finalizer.alive


class Scaled:
    """A running cluster of one worker whose report is that from before the last change."""

    name, namespace = "demo", ""
    generation_now = 1
    replicas = 1

    def sized(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    async def spec(self) -> ClusterSpec:
        return ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": self.replicas, "memory": "4Gi"}]})

    async def generation(self) -> int:
        return self.generation_now

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool) -> None:
        self.replicas, self.generation_now = change(await self.spec()).workers[0].replicas, self.generation_now + 1

    async def report(self, seconds: float | None = None) -> Report:
        return Report(
            Status("demo", "dask", "local", Phase.READY, groups=(GroupStatus("default", 1, 1),), generation=1)
        )

    def last_report(self) -> Report | None:
        return None

    def stop_at_exit(self) -> None:
        self.replicas = 0


def test_repr_after_scale_shows_the_new_number_and_the_memory_of_ready_workers() -> None:
    cluster: Any = AsyncCluster("dask", name="demo")
    cluster._handle = Scaled()

    async def scale() -> None:
        await cluster.status()
        await cluster.scale(3)

    asyncio.run(scale())
    assert repr(cluster) == "<AsyncCluster demo: dask on local, Ready, workers 1/3, memory 4Gi>"


def test_collected_cluster_with_a_client_warns_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    monkeypatch.setattr(cluster_module, "_disconnect_all", lambda engine, clients: closed.set())
    cluster: Any = AsyncCluster("dask", name="demo")
    handle = Scaled()
    cluster._finalizer = cluster_module._stop_when_collected(cluster, cast(Any, handle), "dask", cluster._clients)
    cluster._clients.append(object())
    with pytest.warns(RuntimeWarning, match="Cluster 'demo' is stopped and its client closed") as warned:
        del cluster
        gc.collect()
    assert [each.filename for each in warned] == [__file__]
    assert handle.replicas == 0 and closed.wait(10)


def test_repr_of_a_driver_shows_no_environment() -> None:
    assert repr(Driver("/usr/bin/python", {"API_TOKEN": "secret"})) == "Driver(python='/usr/bin/python')"


def test_engines_without_a_security_object_have_none() -> None:
    cluster: Any = AsyncCluster("ray")
    assert not hasattr(cluster, "scheduler_address") and not hasattr(cluster, "security")


def documented_calls() -> None:
    """Never called: mypy checks that the documented calls have the right types."""
    Cluster(
        "dask",
        workers=3,
        cpu=1,
        memory="1Gi",
        head_cpu="300m",
        head_memory="1Gi",
        name="demo",
        packages=["pandas"],
        timeout=60,
        tied=False,
    )
    Cluster("dask", place="kubernetes", namespace="team", context="c", kubeconfig="k", mode="operator", image="i")
    attached: Cluster = Cluster.attach("demo", place="kubernetes", namespace="team", mode="direct")
    described: Cluster = Cluster.from_file("cluster.yaml", sets=["head.cpu=2"], context="c", workers=4)
    attached.scale(3, group="a", force=True)
    text: str = described.logs("head", tail=5)
    for line in described.logs("head", follow=True):
        text += line
