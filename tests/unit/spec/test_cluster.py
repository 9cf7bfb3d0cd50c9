"""ClusterSpec as Python sees it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from oars.spec.cluster import ClusterSpec, check_name, check_namespace


def test_defaults_are_one_small_local_cluster() -> None:
    spec = ClusterSpec(engine="dask")
    assert (spec.place, [(group.name, group.replicas) for group in spec.workers]) == ("local", [("default", 1)])


def test_a_number_of_workers_is_one_group() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": 3})
    assert [(group.name, group.replicas) for group in spec.workers] == [("default", 3)]


def test_names_are_camel_case_in_files_and_snake_case_in_python() -> None:
    from_file = ClusterSpec.model_validate({"engine": "ray", "ray": {"objectStoreMemory": "1Gi"}})
    from_python = ClusterSpec.model_validate({"engine": "ray", "ray": {"object_store_memory": 2**30}})
    assert from_file == from_python


def test_another_number_of_workers_leaves_the_rest() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"name": "a"}, {"name": "b", "gpu": 1}]})
    changed = spec.with_replicas("b", 7)
    assert [(group.name, group.replicas, group.gpu) for group in changed.workers] == [("a", 1, 0), ("b", 7, 1)]
    assert spec.workers[1].replicas == 1


def test_group_by_name_and_the_first() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"name": "a"}, {"name": "b"}]})
    assert [spec.group(name) for name in (None, "b", "c")] == [spec.workers[0], spec.workers[1], None]
    assert ClusterSpec.model_validate({"engine": "dask", "workers": []}).group(None) is None


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "1a", "a" * 54, "a.b", "ä", "a\n"])
def test_names_that_are_no_dns_labels(name: str) -> None:
    with pytest.raises(ValueError, match="valid name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 53])
def test_names_that_are(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["a", "1a", "2024", "a" * 63])
def test_namespaces_are_what_kubernetes_takes(name: str) -> None:
    assert ClusterSpec.model_validate({"engine": "dask", "namespace": {"name": name}}).namespace.name == name


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a.b", "a\n"])
def test_namespaces_that_it_does_not(name: str) -> None:
    with pytest.raises(ValueError, match="valid namespace; use at most 63"):
        check_namespace(name)


@pytest.mark.parametrize(
    ("block", "given", "found"),
    [
        ({"name": "a", "create": True}, "b", "a"),
        ({"create": True}, "b", "b"),
        ({"create": True}, None, "demo"),
        ({}, "b", "b"),
        ({}, None, None),
    ],
)
def test_where_a_cluster_lives(block: dict[str, Any], given: str | None, found: str | None) -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "namespace": block})
    assert spec.namespace_for("demo", given) == found


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"engine": "dask", "workers": -1},
        {"engine": "dask", "workers": 10_001},
        {"engine": "dask", "workers": [{"name": "head"}]},
        {"engine": "dask", "workers": [{"name": "a"}, {"name": "a"}]},
        {"engine": "dask", "workers": [{"resources": {"x y": 1}}]},
        {"engine": "dask", "environment": {"packages": ["--index-url=x"]}},
        {"engine": "dask", "surprise": 1},
    ],
)
def test_what_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ClusterSpec.model_validate(data)
